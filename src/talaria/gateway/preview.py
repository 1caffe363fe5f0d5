"""What people see of a turn while it runs: the typing sign, the step being done, and the answer as it grows."""

import asyncio
import logging

from talaria.core.clock import Clock
from talaria.core.events import (
    AnswerRestarted,
    Event,
    RoundEnded,
    RouteSwitched,
    TextDelta,
    ToolBegan,
    ToolEnded,
    TurnBegan,
)
from talaria.core.ids import SessionId, TurnId
from talaria.gateway.delivery import Delivery, Draft
from talaria.gateway.gateway_state import PlatformLinks
from talaria.gateway.replies import EXPIRES_AFTER_S, MARK_CHARS, may_be_silent, without_files
from talaria.platforms.base import Address, Platform, PlatformFailure
from talaria.platforms.splitting import split

log = logging.getLogger(__name__)

SHOWN_AFTER_S = 1.0
"""A quick answer needs no preview."""
TICK_S = 0.5
TYPING_S = 4.0
WORDS_CHARS = 60


class LivePreview:
    """One turn in one chat. It is that turn's observer."""

    def __init__(self, where: Address, session: SessionId, reply_to: str, began_at: float) -> None:
        self.where = where
        self._session = session
        self._reply_to = reply_to
        self._began_at = began_at
        self._turn: TurnId | None = None
        self._text: list[str] = []
        self._tools = 0
        self._doing = ""
        self._next_at = began_at + SHOWN_AFTER_S
        self._typing_at = began_at + SHOWN_AFTER_S

    def __call__(self, event: Event) -> None:
        match event:
            case TurnBegan(_, turn):
                self._turn = turn
            case TextDelta(text):
                self._text.append(text)
            case AnswerRestarted() | RoundEnded():
                self._text.clear()
            case ToolBegan(_, name, arguments):
                self._tools += 1
                self._doing = f"{name} {' '.join(arguments.split())}"[:WORDS_CHARS]
            case ToolEnded(result):
                self._doing = ""
                self._tools -= result.disposition == "none"  # it did not run: that is not a step
            case RouteSwitched(before, model):
                log.info("%s answers in place of %s", model, before, extra={"session": self._session})
            case _:
                pass

    def draft(self, now: float, wall: float, platform: Platform) -> Draft | None:
        """What to show now; None: nothing yet."""
        if now < self._next_at or self._turn is None or not platform.capabilities.can_edit:
            return None
        text = without_files("".join(self._text))
        if text and not may_be_silent(text):
            limit = platform.capabilities.max_chars - MARK_CHARS
            parts = split(text, limit, platform.capabilities.length)
            text = parts[0] if len(parts) == 1 else f"{parts[0]} …"
        elif self._tools:
            doing = f": {self._doing}" if self._doing else ""
            calls = "1 step" if self._tools == 1 else f"{self._tools} steps"
            text = f"⚙ {calls}, {now - self._began_at:.0f} s{doing}"
        else:
            return None
        self._next_at = now + platform.capabilities.edit_every_s
        return Draft(self._session, f"{self._turn}:0", text, self._reply_to, wall + EXPIRES_AFTER_S)

    def is_typing_due(self, now: float) -> bool:
        if now < self._typing_at:
            return False
        self._typing_at = now + TYPING_S
        return True


class PreviewUpdater:
    """Updates the previews of all running turns twice a second."""

    def __init__(self, delivery: Delivery, links: PlatformLinks, clock: Clock) -> None:
        self._delivery = delivery
        self._links = links
        self._clock = clock
        self._previews: set[LivePreview] = set()

    def begin(self, where: Address, session: SessionId, reply_to: str) -> LivePreview:
        preview = LivePreview(where, session, reply_to, self._clock.monotonic())
        self._previews.add(preview)
        return preview

    def end(self, preview: LivePreview) -> bool:
        """Show nothing more of this turn. False: that was done already."""
        is_shown = preview in self._previews
        self._previews.discard(preview)
        return is_shown

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await self._clock.sleep(TICK_S)
                now, wall = self._clock.monotonic(), self._clock.now()
                for preview in tuple(self._previews):
                    platform = self._links.find(preview.where.platform)
                    if platform is None or self._links.pause_s(platform.name) > 0:
                        continue
                    if (draft := preview.draft(now, wall, platform)) is not None:
                        self._delivery.show(preview.where, draft)
                    if platform.capabilities.can_type and preview.is_typing_due(now):
                        group.create_task(self._show_typing(platform, preview.where))

    async def _show_typing(self, platform: Platform, where: Address) -> None:
        if self._links.find(platform.name) is not platform:  # it was closed since the tick
            return
        try:
            with self._links.call(platform):  # keeps it from being closed meanwhile
                async with asyncio.timeout(TYPING_S):
                    await platform.show_typing(where)
        except PlatformFailure as fault:
            await self._links.note_pause(platform.name, fault)
            log.debug("no typing sign in %s: %s", where, fault)
        except TimeoutError:
            log.debug("no typing sign in %s: it took too long", where)
        except Exception:  # one platform must not take the others down
            log.exception("the typing sign in %s broke", where)
