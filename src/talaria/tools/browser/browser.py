"""The browser of an application: one process, started with the first page, with one window per session."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from talaria.core.aio import complete
from talaria.core.clock import Clock
from talaria.core.errors import ToolFailed
from talaria.core.ids import SessionId
from talaria.net.urls import Lookup, parse_allowance, system_lookup
from talaria.net.web_settings import WebSettings
from talaria.tools.browser.browser_process import NO_PAGE, RunningBrowser, is_responding, start

if TYPE_CHECKING:
    from talaria.tools.browser.window import BrowserWindow

IDLE_S = 15 * 60.0


class _OpenWindow(msgspec.Struct):
    window: "BrowserWindow"
    used_at: float


class Browser:
    def __init__(self, web: WebSettings, clock: Clock, *, lookup: Lookup = system_lookup) -> None:
        """Raises `BadConfig` for an invalid entry of `allow_private`."""
        self._timeout_s = web.timeout_s
        self._allowance = parse_allowance(web.allow_private)
        self._clock = clock
        self._lookup = lookup
        self._running: RunningBrowser | None = None
        self._open: dict[SessionId, _OpenWindow] = {}
        self._locks: defaultdict[SessionId, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._changing = asyncio.Lock()
        self._tidying: asyncio.Task[None] | None = None

    def host(self, session: SessionId) -> str:
        """Of the page that the session has open; empty if there is none."""
        known = self._open.get(session)
        return known.window.host if known else ""

    @asynccontextmanager
    async def visiting(self, session: SessionId, *, opens: bool = False) -> AsyncGenerator["BrowserWindow"]:
        """The window of a session, for one call at a time. With `opens` it is opened if necessary, otherwise raises
        `ToolFailed` if there is none."""
        async with self._locks[session]:
            known = await complete(self._ensure_window(session)) if opens else self._open.get(session)
            if known is None:
                raise ToolFailed(NO_PAGE)
            known.used_at = self._clock.monotonic()
            try:
                yield known.window
            finally:
                known.used_at = self._clock.monotonic()

    async def close(self, session: SessionId) -> None:
        """Closes what the session has open, including cookies, and the browser itself with the last session."""
        async with self._changing:
            await complete(self._close_windows([session]))

    async def aclose(self) -> None:
        if self._tidying is not None:
            self._tidying.cancel()
        async with self._changing:
            await complete(self._close_windows(list(self._open)))

    async def _ensure_window(self, session: SessionId) -> _OpenWindow:
        async with self._changing:
            if self._running is not None and not await is_responding(self._running.browser):
                await self._close_windows(list(self._open))
            self._running = self._running or await start()
            if session not in self._open:
                from talaria.tools.browser.window import open_window  # noqa: PLC0415  (Playwright may be missing)

                browser = self._running.browser
                window = await open_window(browser, self._timeout_s, self._allowance, self._clock, self._lookup)
                self._open[session] = _OpenWindow(window, self._clock.monotonic())
            if self._tidying is None or self._tidying.done():
                self._tidying = asyncio.create_task(self._tidy(), name="browser tidying")
            return self._open[session]

    async def _close_windows(self, sessions: Sequence[SessionId]) -> None:
        for session in sessions:
            self._locks.pop(session, None)
            known = self._open.pop(session, None)
            if known is not None:
                await known.window.close()
        running = self._running
        if running is not None and not self._open:
            self._running = None
            await running.stop()

    async def _tidy(self) -> None:
        """Closes windows that nobody has used for long."""
        while self._open:
            session, known = min(self._open.items(), key=lambda item: item[1].used_at)
            left_s = known.used_at + IDLE_S - self._clock.monotonic()
            if left_s > 0:
                await self._clock.expire(left_s)
            else:
                await self.close(session)
