"""What was said while we were away. Slack does not reliably tell of it by itself: it is asked, one conversation at a
time, beside what arrives now.

A cursor keeps how far each conversation is read, be it a channel or a thread in which we take part. The mark of one
that has not been asked about yet does not move, so a crash in between loses nothing.
"""

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from talaria.core.clock import Clock
from talaria.platforms.base import NotTaken, PlatformFailure
from talaria.platforms.slack.incoming import SlackMessage, conversation, decode, is_timestamp
from talaria.platforms.slack.web_api import Channels, Messages, SlackPage, Web

MOST_MARKS = 500
MOST_PAGES = 5
PAGE = 200
MOST_THREADS = 50
OVERLAP_S = 60.0
"""Events may overtake each other; what comes twice is known by its id."""
HORIZON_S = 24 * 3600.0
"""What is older is not answered any more."""
REST_S = 5.0

_ELSEWHERE = ""
"""The mark of all conversations without one."""

P = TypeVar("P", bound=SlackPage)

log = logging.getLogger(__name__)


class Marks:
    def __init__(self, cursor: str | None, now: float) -> None:
        self._marks = _parse_cursor(cursor)
        self.is_first = not self._marks
        """There was no time before."""
        self._marks.setdefault(_ELSEWHERE, timestamp(now))

    def __contains__(self, key: object) -> bool:
        return key in self._marks

    def __getitem__(self, key: str) -> str:
        return self._marks.get(key, self._marks[_ELSEWHERE])

    @property
    def keys(self) -> Sequence[str]:
        """The latest first."""
        known = (key for key in self._marks if key != _ELSEWHERE)
        return sorted(known, key=self._marks.__getitem__, reverse=True)

    def advance(self, key: str, ts: str) -> None:
        if ts > self._marks.get(key, ""):
            self._marks[key] = ts
        if len(self._marks) > MOST_MARKS + 1:
            del self._marks[self.keys[-1]]

    def join(self, key: str, ts: str) -> None:
        """Read from there on, if it is not read already."""
        if key not in self._marks:
            self.advance(key, ts)

    def complete(self, now: float) -> None:
        """All was asked about at that time."""
        self.advance(_ELSEWHERE, timestamp(now))

    def cursor(self) -> str:
        return msgspec.json.encode(self._marks).decode()


class Missed:
    """The conversations that have not been asked about yet. The first question is which direct messages there are."""

    def __init__(self, web: Web, marks: Marks, clock: Clock) -> None:
        self._web = web
        self._marks = marks
        self._clock = clock
        self._since = clock.now()
        self._rests_until = 0.0
        self._waiting: dict[str, str] = {}
        if not marks.is_first:
            threads = [key for key in marks.keys if ":" in key][:MOST_THREADS]
            channels = [key for key in marks.keys if ":" not in key]
            self._waiting = {key: marks[key] for key in (_ELSEWHERE, *channels, *threads)}

    def __contains__(self, key: object) -> bool:
        return key in self._waiting

    @property
    def is_due(self) -> bool:
        return bool(self._waiting) and self._clock.monotonic() >= self._rests_until

    async def next(self, key: str | None = None) -> list[SlackMessage]:
        """What was said in one of them (or in that one), oldest first; nothing, if Slack asks to wait."""
        key = next(iter(self._waiting)) if key is None else key
        try:
            found = await (self._ask(key) if key else self._find())
        except NotTaken as fault:
            self._rests_until = self._clock.monotonic() + (fault.retry_after_s or REST_S)
            self._waiting[key] = self._waiting.pop(key)  # the others first
            return []
        except PlatformFailure as fault:
            log.warning("What was said in %s meanwhile cannot be read: %s", key or "direct messages", fault)
            found = []
        del self._waiting[key]
        if not self._waiting:
            self._marks.complete(self._since)
        return found

    async def _find(self) -> list[SlackMessage]:
        async for page in self._pages("users_conversations", Channels, types="im", exclude_archived=True):
            for channel in page.channels:
                self._waiting.setdefault(channel.id, self._marks[channel.id])
        return []

    async def _ask(self, key: str) -> list[SlackMessage]:
        channel, _, thread = key.partition(":")
        oldest = timestamp(max(float(self._waiting[key]) - OVERLAP_S, self._clock.now() - HORIZON_S))
        method = "conversations_replies" if thread else "conversations_history"
        place = {"channel": channel, "ts": thread} if thread else {"channel": channel}
        found: list[SlackMessage] = []
        async for page in self._pages(method, Messages, oldest=oldest, **place):
            for told in page.messages:
                self._follow(channel, told, oldest)
                message = decode({**told, "channel": channel}, SlackMessage)
                if message and message.ts > oldest:
                    found.append(message)
        return sorted(found, key=lambda message: message.ts)

    def _follow(self, channel: str, told: Mapping[str, Any], oldest: str) -> None:
        """A thread that has begun meanwhile: the history has only its first message."""
        threads = sum(":" in key for key in self._waiting)
        if told.get("latest_reply") and threads < MOST_THREADS:
            self._waiting.setdefault(conversation(channel, str(told.get("ts"))), oldest)

    async def _pages(self, method: str, page: type[P], **arguments: Any) -> AsyncGenerator[P]:
        cursor = ""
        for _ in range(MOST_PAGES):
            found = await self._web.read(method, page, limit=PAGE, cursor=cursor or None, **arguments)
            yield found
            cursor = found.next_cursor
            if not cursor:
                break


def timestamp(seconds: float) -> str:
    """As Slack writes it: texts of equal length, so that they compare as numbers do."""
    return f"{seconds:017.6f}"


def _parse_cursor(cursor: str | None) -> dict[str, str]:
    try:
        marks = msgspec.json.decode(cursor or "{}", type=dict[str, str])
        return {key: ts for key, ts in marks.items() if is_timestamp(ts)}
    except (msgspec.MsgspecError, UnicodeError):
        log.warning("The cursor of Slack cannot be read: what was said meanwhile is not fetched.")
        return {}
