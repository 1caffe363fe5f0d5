"""Workspaces: the shell and the background processes of a session, in its sandbox. Keyed by the session's id.

A workspace outlives the live session that made it; closing the session ends it, and nothing of it is left running.
"""

import asyncio
import os
from collections import deque
from contextlib import AsyncExitStack
from pathlib import Path

from talaria.model.clock import Clock
from talaria.model.ids import SessionId
from talaria.tools.base import Scope
from talaria.tools.processes import Processes
from talaria.tools.sandbox.base import Host, Sandbox
from talaria.tools.sandbox.choosing import Choosing
from talaria.tools.sandbox.commands import Command, Sink, Started
from talaria.tools.sandbox.settings import TerminalSettings
from talaria.tools.sandbox.view import view_of
from talaria.tools.sandbox.way_out import WayOut
from talaria.waiting import completed, in_thread

MAX_NEWS = 20


class Workspace:
    def __init__(
        self, sandbox: Sandbox, project: Path, home: Path, settings: TerminalSettings, way_out: WayOut, clock: Clock
    ) -> None:
        self._sandbox = sandbox
        self._project = project
        self._home = home
        self._settings = settings
        self.way_out = way_out
        self._news: deque[str] = deque(maxlen=MAX_NEWS)
        self._opening = asyncio.Lock()
        self._open = AsyncExitStack()
        self._host: Host | None = None
        self.processes = Processes(clock, self._news.append)

    async def start(self, command: Command, sink: Sink) -> Started:
        """Raises `ToolFailed` where nothing can run."""
        async with self._opening:
            if self._host is None or not self._host.is_alive:
                await self._leave()
                self._host = await completed(self._enter())
        return self._host.start(command, sink)

    async def _enter(self) -> Host:
        view = await in_thread(lambda: view_of(self._project, self._home, self._settings, os.environ))
        host = await self._open.enter_async_context(self._sandbox.opened(view))
        if host.listener is not None:
            await self._open.enter_async_context(self.way_out.served(host.listener))
        return host

    async def _leave(self) -> None:
        self._host = None
        await self._open.aclose()

    @property
    def has_news(self) -> bool:
        return bool(self._news)

    def take_news(self) -> tuple[str, ...]:
        """What has happened in the background since it was last asked."""
        news = tuple(self._news)
        self._news.clear()
        return news

    async def close(self) -> None:
        self.processes.close()
        async with self._opening:
            await self._leave()


class Workspaces:
    def __init__(self, settings: TerminalSettings, home: Path, clock: Clock, private: tuple[str, ...] = ()) -> None:
        """`private`: what a way out may reach although it is not on the public internet."""
        self._settings = settings
        self._private = private
        self._home = home
        self._clock = clock
        self._choosing = Choosing(settings)
        self._all: dict[SessionId, Workspace] = {}

    @property
    def settings(self) -> TerminalSettings:
        return self._settings

    @property
    def sandbox(self) -> Sandbox:
        """Tried out at the first use, which takes a moment: not on the loop."""
        return self._choosing.sandbox

    async def open(self, scope: Scope) -> Workspace:
        """The one of this session; nothing is started in it yet."""
        known = self._all.get(scope.session)
        return known if known is not None else await in_thread(lambda: self._made(scope))

    def _made(self, scope: Scope) -> Workspace:
        workspace = self._all.get(scope.session)
        if workspace is None:
            project = scope.cwd.resolve()
            way_out = WayOut(self._settings.network, self._private, self._clock)
            home = self._home.resolve()
            workspace = Workspace(self.sandbox, project, home, self._settings, way_out, self._clock)
            self._all[scope.session] = workspace
        return workspace

    def has(self, session: SessionId) -> bool:
        return session in self._all

    def has_news(self, session: SessionId) -> bool:
        return session in self._all and self._all[session].has_news

    def take_news(self, session: SessionId) -> tuple[str, ...]:
        workspace = self._all.get(session)
        return workspace.take_news() if workspace else ()

    async def close(self, session: SessionId) -> None:
        workspace = self._all.pop(session, None)
        if workspace is not None:
            await completed(workspace.close())

    async def aclose(self) -> None:
        for session in tuple(self._all):
            await self.close(session)
