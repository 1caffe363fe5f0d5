"""Workspaces: the shell and the background processes of a session, in its sandbox. Keyed by the session's id.

A workspace outlives the live session that made it; closing the session ends it, and nothing of it is left running.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from talaria.model.clock import Clock
from talaria.model.errors import ToolFailed
from talaria.model.ids import SessionId
from talaria.tools.base import Scope
from talaria.tools.processes import Processes
from talaria.tools.quarantine import Quarantine
from talaria.tools.sandbox.base import Host, Sandbox, View
from talaria.tools.sandbox.choosing import Choosing
from talaria.tools.sandbox.commands import Command, End, Sink, Started
from talaria.tools.sandbox.reading import LEVELS, MAX_OPEN, Reader
from talaria.tools.sandbox.settings import TerminalSettings
from talaria.tools.sandbox.view import view_of
from talaria.tools.sandbox.way_out import WayOut
from talaria.trees import Root
from talaria.waiting import completed, in_thread

MAX_NEWS = 20

log = logging.getLogger(__name__)


class Workspace:
    def __init__(
        self, sandbox: Sandbox, project: Path, look: Callable[[], View], way_out: WayOut, quarantine: Quarantine
    ) -> None:
        """`look`: what commands see, as it is then. Not on the loop."""
        self._sandbox = sandbox
        self._quarantine = quarantine
        self._look = look
        self.way_out = way_out
        self._news: deque[str] = deque(maxlen=MAX_NEWS)
        self._opening = asyncio.Lock()
        self._open = AsyncExitStack()
        self._host: Host | None = None
        self._is_closed = False
        self._project: Root | None = None
        """Opened when its commands were first let in: whatever they put in its place later is not the project."""
        self._unwanted: tuple[str, ...] = ()
        """Below the project."""
        self.cwd = str(project)
        """Where the next command begins, as the tool host has told it."""
        self.processes = Processes(self._news.append)

    async def start(self, command: Command, sink: Sink) -> Started:
        """Raises `ToolFailed` where nothing can run."""
        async with self._opening:
            if self._is_closed:
                raise ToolFailed("This session is closed.")
            if self._host is None or not self._host.is_alive:
                await self._leave()
                self._host = await self._enter()
        started = self._host.start(command, sink)
        started.when_ended(self._note)
        return started

    def _note(self, end: End) -> None:
        self.cwd = end.cwd or self.cwd

    async def tidy(self) -> None:
        """After a command: what it made and nobody wants there moves to quarantine, and that is news."""
        project, unwanted = self._project, self._unwanted
        if project is not None and unwanted:
            moved = await completed(in_thread(lambda: self._quarantine.move(project, unwanted)))
            for one in moved:
                log.warning("in %s: %s", self.cwd, one)
                self._news.append(str(one))

    async def _enter(self) -> Host:
        view = await in_thread(self._look)
        if self._project is None:
            self._project = await in_thread(lambda: Root.open(view.project))
        self._unwanted = tuple(str(path.relative_to(view.project)) for path in view.unwanted)
        self.cwd = str(view.project)
        host = await self._open.enter_async_context(self._sandbox.opened(view))
        if host.listener is not None:
            await self._open.enter_async_context(self.way_out.served(host.listener))
        return host

    async def _leave(self) -> None:
        self._host = None
        await self._open.aclose()
        await self.tidy()

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
        self._is_closed = True
        async with self._opening:
            await self._leave()
            if self._project is not None:
                self._project.close()
                self._project = None


class Workspaces:
    def __init__(
        self,
        settings: TerminalSettings,
        home: Path,
        clock: Clock,
        private: tuple[str, ...] = (),
        programs: Sequence[Path] = (),
    ) -> None:
        """`private`: what a way out may reach although it is not on the public internet. `programs`: files that no
        command changes."""
        self.settings = settings
        self._private = private
        self._programs = programs
        self._home = home
        self._clock = clock
        self._choosing = Choosing(settings)
        self._all: dict[SessionId, Workspace] = {}
        self._readers: dict[SessionId, Reader] = {}

    @property
    def sandbox(self) -> Sandbox:
        """Tried out at the first use, which takes a moment: not on the loop."""
        return self._choosing.sandbox

    def when_chosen(self, tell: Callable[[Sandbox], None]) -> None:
        """From another thread, at the first use, before a command runs."""
        self._choosing.tell = tell

    @property
    def is_confined(self) -> bool:
        """On another machine commands have all rights of the account there."""
        return self.sandbox.level not in ("none", "remote")

    @property
    def brings_strange_words(self) -> bool:
        """Whether commands reach what strangers write, unasked. Where each is asked about, people know what it does."""
        return self.is_confined and (bool(self.settings.network) or self.sandbox.level == "container")

    def place(self, scope: Scope) -> str:
        """Where the next command of a session begins."""
        workspace = self._all.get(scope.session)
        return workspace.cwd if workspace else str(scope.cwd.resolve())

    async def open(self, scope: Scope) -> Workspace:
        """The one of this session; nothing is started in it yet."""
        known = self._all.get(scope.session)
        if known is not None:
            return known
        made = await in_thread(lambda: self._made(scope))
        return self._all.setdefault(scope.session, made)  # another call may have been quicker

    def _made(self, scope: Scope) -> Workspace:
        project = scope.cwd.resolve()
        way_out = WayOut(self.settings.network, self._private, self._clock)
        quarantine = Quarantine(self._home.resolve(), scope.session)
        return Workspace(self.sandbox, project, lambda: self._view(project), way_out, quarantine)

    def _view(self, project: Path) -> View:
        return view_of(project, self._home.resolve(), self.settings, os.environ, programs=self._programs)

    @asynccontextmanager
    async def reading(self, scope: Scope) -> AsyncGenerator[Host | None]:
        """Where our own programs read the project of a session; None: there is no sandbox for that. Raises
        `ToolFailed`."""
        sandbox, project = await in_thread(lambda: (self.sandbox, scope.cwd.resolve()))
        if sandbox.level not in LEVELS:
            yield None
            return
        reader = self._readers.pop(scope.session, None) or Reader(sandbox, lambda: self._view(project))
        self._readers[scope.session] = reader  # the one that was used last is last
        reader.users += 1
        try:
            idle = [session for session, one in self._readers.items() if not one.users]
            for session in idle[: max(0, len(self._readers) - MAX_OPEN)]:
                await completed(self._readers.pop(session).close())
            yield await reader.host()
        finally:
            reader.users -= 1

    def has(self, session: SessionId) -> bool:
        return session in self._all

    def has_news(self, session: SessionId) -> bool:
        return session in self._all and self._all[session].has_news

    def take_news(self, session: SessionId) -> tuple[str, ...]:
        workspace = self._all.get(session)
        return workspace.take_news() if workspace else ()

    async def close(self, session: SessionId) -> None:
        workspace, reader = self._all.pop(session, None), self._readers.pop(session, None)
        if workspace is not None:
            await completed(workspace.close())
        if reader is not None:
            await completed(reader.close())

    async def aclose(self) -> None:
        for session in {*self._all, *self._readers}:
            await self.close(session)
