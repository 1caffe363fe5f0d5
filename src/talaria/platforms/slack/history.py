"""Fetches what was said while we were offline, which Slack does not deliver reliably: one conversation at a time,
alongside what arrives now.

The cursor says how far each conversation is read: each channel, and each thread that we take part in. The mark of a
conversation that is still to be fetched does not move, so a crash in between loses nothing.
"""

import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Any, TypeVar

import msgspec

from talaria.core.clock import Clock
from talaria.platforms.base import NotTaken, PlatformFailure
from talaria.platforms.slack.incoming import SlackMessage, conversation, decode, is_timestamp
from talaria.platforms.slack.slack_api import Channels, Messages, SlackPage, WebApi

MOST_MARKS = 500
MOST_PAGES = 5
PAGE = 200
MOST_THREADS = 50
OVERLAP_S = 60.0
"""Events may overtake each other; duplicates are recognised by their id."""
HORIZON_S = 24 * 3600.0
"""Older messages are no longer answered."""
PAUSE_S = 5.0

_DEFAULT = ""
"""The key of the mark for all conversations that have none of their own."""

P = TypeVar("P", bound=SlackPage)

log = logging.getLogger(__name__)


class Marks:
    def __init__(self, cursor: str | None, now: float) -> None:
        self._marks: dict[str, str] = {}
        try:
            marks = msgspec.json.decode(cursor or "{}", type=dict[str, str])
            self._marks = {key: ts for key, ts in marks.items() if is_timestamp(ts)}
        except (msgspec.MsgspecError, UnicodeError):
            log.warning("The cursor of Slack cannot be read: missed messages are not fetched.")
        self.is_first = not self._marks
        """There was no previous run."""
        self._marks.setdefault(_DEFAULT, timestamp(now))

    def __contains__(self, key: object) -> bool:
        return key in self._marks

    def __getitem__(self, key: str) -> str:
        return self._marks.get(key, self._marks[_DEFAULT])

    @property
    def keys(self) -> Sequence[str]:
        """The most recent first."""
        known = (key for key in self._marks if key != _DEFAULT)
        return sorted(known, key=self._marks.__getitem__, reverse=True)

    def advance(self, key: str, ts: str) -> None:
        if ts > self._marks.get(key, ""):
            self._marks[key] = ts
        if len(self._marks) > MOST_MARKS + 1:
            del self._marks[self.keys[-1]]

    def join(self, key: str, ts: str) -> None:
        """Start reading from there, unless it is read already."""
        if key not in self._marks:
            self.advance(key, ts)

    def complete(self, now: float) -> None:
        """Everything up to then is fetched."""
        self.advance(_DEFAULT, timestamp(now))

    def cursor(self) -> str:
        return msgspec.json.encode(self._marks).decode()


class Missed:
    """The conversations that are still to be fetched. The first step lists the direct messages."""

    def __init__(self, web: WebApi, marks: Marks, clock: Clock) -> None:
        self._web = web
        self._marks = marks
        self._clock = clock
        self._since = clock.now()
        self._paused_until = 0.0
        self._waiting: dict[str, str] = {}
        if not marks.is_first:
            threads = [key for key in marks.keys if ":" in key][:MOST_THREADS]
            channels = [key for key in marks.keys if ":" not in key]
            self._waiting = {key: marks[key] for key in (_DEFAULT, *channels, *threads)}

    def __contains__(self, key: object) -> bool:
        return key in self._waiting

    @property
    def is_due(self) -> bool:
        return bool(self._waiting) and self._clock.monotonic() >= self._paused_until

    async def fetch_next(self, key: str | None = None) -> list[SlackMessage]:
        """The missed messages of one conversation (or of that one), oldest first; none if Slack asks us to wait."""
        key = next(iter(self._waiting)) if key is None else key
        found: list[SlackMessage] = []
        try:
            if key != _DEFAULT:
                found = await self._fetch_conversation(key)
            else:
                async for page in self._pages("users_conversations", Channels, types="im", exclude_archived=True):
                    for channel in page.channels:
                        self._waiting.setdefault(channel.id, self._marks[channel.id])
        except NotTaken as fault:
            self._paused_until = self._clock.monotonic() + (fault.retry_after_s or PAUSE_S)
            self._waiting[key] = self._waiting.pop(key)  # the others first
            return []
        except PlatformFailure as fault:
            log.warning("The missed messages in %s cannot be read: %s", key or "direct messages", fault)
        del self._waiting[key]
        if not self._waiting:
            self._marks.complete(self._since)
        return found

    async def _fetch_conversation(self, key: str) -> list[SlackMessage]:
        channel, _, thread = key.partition(":")
        oldest = timestamp(max(float(self._waiting[key]) - OVERLAP_S, self._clock.now() - HORIZON_S))
        method = "conversations_replies" if thread else "conversations_history"
        place = {"channel": channel, "ts": thread} if thread else {"channel": channel}
        found: list[SlackMessage] = []
        async for page in self._pages(method, Messages, oldest=oldest, **place):
            for raw in page.messages:
                threads = sum(":" in key for key in self._waiting)
                if raw.get("latest_reply") and threads < MOST_THREADS:  # the history has only a thread's first message
                    self._waiting.setdefault(conversation(channel, str(raw.get("ts"))), oldest)
                message = decode({**raw, "channel": channel}, SlackMessage)
                if message and message.ts > oldest:
                    found.append(message)
        return sorted(found, key=lambda message: message.ts)

    async def _pages(self, method: str, page: type[P], **arguments: Any) -> AsyncGenerator[P]:
        cursor = ""
        for _ in range(MOST_PAGES):
            found = await self._web.read(method, page, limit=PAGE, cursor=cursor or None, **arguments)
            yield found
            cursor = found.next_cursor
            if not cursor:
                break


def timestamp(seconds: float) -> str:
    """As Slack writes it; the fixed width makes strings compare like numbers."""
    return f"{seconds:017.6f}"
