"""The browser of an application: one process, which starts with the first page, and one window per session in it."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from talaria.core.aio import complete
from talaria.core.clock import Clock
from talaria.core.errors import ToolFailed
from talaria.core.ids import SessionId
from talaria.net.urls import Lookup, parse_allowance, system_lookup
from talaria.net.web_settings import WebSettings
from talaria.tools.browser import browser_process
from talaria.tools.browser.browser_process import NO_PAGE

if TYPE_CHECKING:
    from talaria.tools.browser.browser_process import RunningBrowser
    from talaria.tools.browser.window import BrowserWindow

IDLE_S = 15 * 60.0


def is_available() -> bool:
    """Whether there is anything to start; nothing is loaded for it."""
    return browser_process.find_executable() is not None and find_spec("playwright") is not None


class _Seat(msgspec.Struct):
    window: "BrowserWindow"
    used_at: float


class Browser:
    def __init__(self, web: WebSettings, clock: Clock, *, lookup: Lookup = system_lookup) -> None:
        """Raises `BadConfig` for an entry of `allow_private` that is none."""
        self._timeout_s = web.timeout_s
        self._allowance = parse_allowance(web.allow_private)
        self._clock = clock
        self._lookup = lookup
        self._running: RunningBrowser | None = None
        self._seats: dict[SessionId, _Seat] = {}
        self._turns: defaultdict[SessionId, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._changing = asyncio.Lock()
        self._tidying: asyncio.Task[None] | None = None

    def host(self, session: SessionId) -> str:
        """Of the page that the session looks at; empty if there is none."""
        seat = self._seats.get(session)
        return seat.window.host if seat else ""

    @asynccontextmanager
    async def visiting(self, session: SessionId, *, opens: bool = False) -> AsyncGenerator["BrowserWindow"]:
        """The window of a session, for one call at a time; where there is none it is opened, or `ToolFailed` raised."""
        async with self._turns[session]:
            seat = await complete(self._ensure_seat(session)) if opens else self._seats.get(session)
            if seat is None:
                raise ToolFailed(NO_PAGE)
            seat.used_at = self._clock.monotonic()
            try:
                yield seat.window
            finally:
                seat.used_at = self._clock.monotonic()

    async def close(self, session: SessionId) -> None:
        """What the session has open, cookies included; the browser itself with the last session."""
        async with self._changing:
            await complete(self._close_seats([session]))

    async def aclose(self) -> None:
        if self._tidying is not None:
            self._tidying.cancel()
        async with self._changing:
            await complete(self._close_seats(list(self._seats)))

    async def _ensure_seat(self, session: SessionId) -> _Seat:
        from talaria.tools.browser.browser_process import answers, start  # noqa: PLC0415  (who opens no page does not pay)

        async with self._changing:
            if self._running is not None and not await answers(self._running.browser):
                await self._close_seats(list(self._seats))
            self._running = self._running or await start()
            if session not in self._seats:
                self._seats[session] = _Seat(await self._open_window(self._running), self._clock.monotonic())
            if self._tidying is None or self._tidying.done():
                self._tidying = asyncio.create_task(self._tidy(), name="browser tidying")
            return self._seats[session]

    async def _open_window(self, running: "RunningBrowser") -> "BrowserWindow":
        from talaria.tools.browser.window import open_window  # noqa: PLC0415  (nor who has no Playwright)

        return await open_window(running.browser, self._timeout_s, self._allowance, self._clock, self._lookup)

    async def _close_seats(self, sessions: Sequence[SessionId]) -> None:
        for session in sessions:
            self._turns.pop(session, None)
            seat = self._seats.pop(session, None)
            if seat is not None:
                await seat.window.close()
        running = self._running
        if running is not None and not self._seats:
            self._running = None
            await running.stop()

    async def _tidy(self) -> None:
        """What nobody has used for long is closed."""
        while self._seats:
            session, seat = min(self._seats.items(), key=lambda item: item[1].used_at)
            left_s = seat.used_at + IDLE_S - self._clock.monotonic()
            if left_s > 0:
                await self._clock.expire(left_s)
            else:
                await self.close(session)
