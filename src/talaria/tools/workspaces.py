"""The workspaces of all sessions, by session id, with the chosen sandbox and what commands see in it."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from talaria.core.aio import complete, in_thread
from talaria.core.clock import Clock
from talaria.core.errors import BadConfig, ToolFailed
from talaria.core.fs import safe_file_name
from talaria.core.ids import SessionId
from talaria.tools.base import Scope
from talaria.tools.protected import Protected
from talaria.tools.sandbox.base import Level, Sandbox, SandboxPolicy, ToolHost
from talaria.tools.sandbox.chooser import SandboxChooser
from talaria.tools.sandbox.sandbox_settings import TerminalSettings, project_folder
from talaria.tools.sandbox_permissions import Permission

if TYPE_CHECKING:
    from talaria.tools.folder_events import FolderEvents
    from talaria.tools.sandbox.project_reader import Reader
    from talaria.tools.workspace import Workspace


_WITH_CACHES = ("strict", "landlock", "seatbelt")
"""Levels at which commands see another home than the person's, without caches."""
log = logging.getLogger(__name__)


class Workspaces:
    def __init__(
        self,
        settings: TerminalSettings,
        home: Path,
        clock: Clock,
        private: tuple[str, ...] = (),
        programs: Sequence[Path] = (),
        people: Path | None = None,
        of_project: Callable[[TerminalSettings, Path], TerminalSettings] = lambda settings, _: settings,
    ) -> None:
        """`private`: what the egress proxy may reach although it is not on the public internet. `programs`: files that
        no command may change. `people`: the folder with those of people in chats. `of_project`: adds the settings of
        one project; not on the loop."""
        self.settings = settings
        self._of_project = of_project
        self._private = private
        self._programs = programs
        self._people = people
        self._home = home
        self._clock = clock
        self._choosing = SandboxChooser(settings)
        self._all: dict[SessionId, Workspace] = {}
        self._readers: dict[SessionId, Reader] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def sandbox(self) -> Sandbox:
        """Chosen at first use, which takes a moment: not on the loop."""
        return self._choosing.sandbox

    def on_sandbox_chosen(self, tell: Callable[[Sandbox], None]) -> None:
        """Calls `tell` from another thread at first use, before any command runs."""
        self._choosing.tell = tell

    @property
    def is_confined(self) -> bool:
        """False on another machine, where commands have all rights of the account."""
        return self.sandbox.level not in ("none", "remote")

    def settings_in(self, session: SessionId, cwd: Path) -> TerminalSettings:
        """The settings of a session: those at the time when it opened its workspace. Raises `ToolFailed`."""
        workspace = self._all.get(session)
        return workspace.settings if workspace else self._settings_of(cwd.resolve())

    def _settings_of(self, project: Path) -> TerminalSettings:
        try:
            return self._of_project(self.settings, project)
        except BadConfig as fault:
            raise ToolFailed(str(fault)) from fault

    def reads_untrusted(self, scope: Scope) -> bool:
        """Whether commands can read what strangers write without a question."""
        return self.is_confined and (
            bool(self.settings_in(scope.session, scope.cwd).network) or self.sandbox.level == "container"
        )

    def can_send(self, scope: Scope) -> bool:
        """Whether commands can send something outside. Those that are not confined always can."""
        match self.sandbox.level:
            case "none" | "remote":
                return True
            case "container":
                return self.settings.docker.network != "none"
            case "landlock":
                return False
            case "strict" | "seatbelt":
                return bool(self.settings_in(scope.session, scope.cwd).network)

    def may_be_shared(self, folder: Path) -> bool:
        """Whether a person can open it: not if it holds too much, secrets, or what runs when they log in."""
        from talaria.tools.sandbox.sandbox_policy import NEVER  # noqa: PLC0415

        protected = Protected(Path.home().resolve(), self._home.resolve(), programs=self._programs)
        is_system = any(folder.is_relative_to(place) for place in NEVER)
        if self._people is not None and self._people.is_relative_to(folder):
            return False
        is_kept = protected.is_secret(folder) or protected.is_startup(folder)
        return protected.may_be_shared(folder) and not is_kept and not is_system

    def is_secret(self, path: Path) -> bool:
        """Whether commands can neither open it nor learn whether it exists."""
        protected = Protected(Path.home().resolve(), self._home.resolve(), programs=self._programs)
        is_of_others = self._people is not None and path.is_relative_to(self._people)
        return protected.is_secret(path) or is_of_others

    def find_workdir(self, scope: Scope) -> str:
        """Where the next command of a session starts."""
        workspace = self._all.get(scope.session)
        return workspace.cwd if workspace else str(scope.cwd.resolve())

    async def open(self, scope: Scope) -> "Workspace":
        """The workspace of this session; nothing is started in it yet."""
        known = self._all.get(scope.session)
        if known is not None:
            return known
        self._loop = asyncio.get_running_loop()
        made = await in_thread(lambda: self._make(scope))
        return self._all.setdefault(scope.session, made)  # another call may have been faster

    def _make(self, scope: Scope) -> "Workspace":
        from talaria.tools.git_settings import GitSettings  # noqa: PLC0415  (only needed if commands run)
        from talaria.tools.quarantine import Quarantine  # noqa: PLC0415
        from talaria.tools.sandbox.egress_proxy import EgressProxy  # noqa: PLC0415
        from talaria.tools.workspace import Workspace  # noqa: PLC0415

        project = scope.cwd.resolve()
        settings = self._settings_of(project)
        egress = EgressProxy(settings.network, self._private, self._clock)
        level, git = self.sandbox.level, None
        if level in ("strict", "landlock", "seatbelt"):
            git = GitSettings(
                self._home.resolve() / "git" / safe_file_name(scope.session), has_mounts=level == "strict"
            )
        workspace = Workspace(
            self.sandbox,
            project,
            partial(self.make_policy, project, settings),
            egress,
            Quarantine(self._home.resolve(), scope.session),
            lambda: self._events,
            partial(self._find_neighbors, scope.session),
            git,
            partial(self._use_caches, project, settings),
            settings,
            self.may_be_shared,
            self.is_secret,
        )
        if git is not None and level == "strict":
            egress.intercept = partial(workspace.intercept, git, partial(self.open_reader, scope))
        return workspace

    @contextmanager
    def _use_caches(self, project: Path, settings: TerminalSettings) -> Generator[None]:
        limit_bytes = int(settings.cache_gb * (1 << 30))
        if not limit_bytes or self.sandbox.level not in _WITH_CACHES:
            yield
            return
        from talaria.tools.sandbox.caches import use_caches  # noqa: PLC0415  (only needed if commands run)

        with use_caches(project_folder(self._home.resolve(), project), limit_bytes):
            yield

    def _find_neighbors(self, session: SessionId) -> Sequence["Workspace"]:
        """Of other sessions, in the same project or repository."""
        own = self._all.get(session)
        if own is None:
            return ()
        return [one for one in tuple(self._all.values()) if one is not own and one.top == own.top]

    def find(self, session: SessionId) -> "Workspace | None":
        """None: no command of this session has run here."""
        return self._all.get(session)

    async def revoke(self, permission: Permission) -> tuple[str, ...]:
        """In all sessions of this process. Returns what keeps it open for now. If another grant covers it, the next
        command opens it again."""
        left = [await workspace.revoke(permission) for workspace in tuple(self._all.values())]
        return tuple(filter(None, dict.fromkeys(left)))

    def make_policy(
        self, project: Path, settings: TerminalSettings | None = None, shared: Sequence[Path] = ()
    ) -> SandboxPolicy:
        """What commands in a project see, with the settings of a session or the current ones. `shared`: what the person
        has opened in addition. Not on the loop. Raises `ToolFailed`."""
        from talaria.tools.sandbox.sandbox_policy import view_of  # noqa: PLC0415

        settings = settings or self._settings_of(project)
        view = view_of(
            project,
            self._home.resolve(),
            settings,
            os.environ,
            programs=self._programs,
            people=self._people,
            shared=shared,
        )
        if settings.cache_gb and self.sandbox.level in _WITH_CACHES:
            from talaria.tools.sandbox.caches import with_caches  # noqa: PLC0415

            folder = project_folder(self._home.resolve(), project)
            view = with_caches(view, folder, can_mount=self.sandbox.level == "strict")
        can_be_opened = self.sandbox.level in ("strict", "seatbelt")  # a host can be allowed while commands run
        return msgspec.structs.replace(view, has_egress=True) if can_be_opened else view

    @cached_property
    def _events(self) -> "FolderEvents | None":
        """None: this machine has no such events, or no more of them."""
        from talaria.tools.folder_events import FolderEvents  # noqa: PLC0415  (ctypes: only needed if commands run)

        try:
            events = FolderEvents()
        except OSError as fault:
            log.warning("new files cannot be watched, so projects are searched after each command: %s", fault)
            return None
        if self._loop is not None:
            self._loop.call_soon_threadsafe(events.listen, self._loop)
        return events

    @contextmanager
    def allow_change(self, path: Path, content: bytes) -> Generator[None]:
        """Entered while a tool writes a file with the person's consent, whatever else runs. Not on the loop."""
        with ExitStack() as held:
            for workspace in tuple(self._all.values()):
                held.enter_context(workspace.guard.allow_change(path, content))
            yield

    @asynccontextmanager
    async def open_reader(self, scope: Scope) -> AsyncGenerator[ToolHost | None]:
        """The tool host in which our own programs read the project of a session; None: no sandbox can do that. Raises
        `ToolFailed`."""
        from talaria.tools.sandbox.project_reader import LEVELS, MAX_OPEN, Reader  # noqa: PLC0415

        sandbox, project = await in_thread(lambda: (self.sandbox, scope.cwd.resolve()))
        if sandbox.level not in LEVELS:
            yield None
            return
        reader = self._readers.pop(scope.session, None) or Reader(
            sandbox, lambda: self.make_policy(project, self.settings_in(scope.session, scope.cwd))
        )
        self._readers[scope.session] = reader  # the most recently used is last
        reader.users += 1
        try:
            idle = [session for session, one in self._readers.items() if not one.users]
            for session in idle[: max(0, len(self._readers) - MAX_OPEN)]:
                await complete(self._readers.pop(session).close())
            yield await reader.host()
        finally:
            reader.users -= 1

    def has(self, session: SessionId) -> bool:
        return session in self._all

    def has_running(self, session: SessionId) -> bool:
        """Whether commands of this or another session run in the project."""
        own = self._all.get(session)
        return own is not None and any(one.has_running for one in (own, *self._find_neighbors(session)))

    def has_background(self, session: SessionId) -> bool:
        """Whether processes of a session run in the background."""
        workspace = self._all.get(session)
        return workspace is not None and any(process.is_running for process in workspace.processes.all)

    def has_news(self, session: SessionId) -> bool:
        return session in self._all and self._all[session].has_news

    def take_news(self, session: SessionId) -> tuple[str, ...]:
        workspace = self._all.get(session)
        return workspace.take_news() if workspace else ()

    async def close(self, session: SessionId) -> None:
        workspace, reader = self._all.pop(session, None), self._readers.pop(session, None)
        if workspace is not None:
            await complete(workspace.close())
        if reader is not None:
            await complete(reader.close())

    async def aclose(self) -> None:
        for session in {*self._all, *self._readers}:
            await self.close(session)
        if (events := self.__dict__.pop("_events", None)) is not None:
            events.close()


class SandboxState(msgspec.Struct, frozen=True, kw_only=True):
    """What the commands of one conversation can do. Paths are true names."""

    level: Level
    about: str
    project: Path
    home: Path
    """The person's; shown as `~`."""
    writes: tuple[Path, ...] = ()
    """In addition to the project: its repository, and what the settings list."""
    opened: tuple[Path, ...] = ()
    """What commands can also write now because a person said yes."""
    reads: tuple[Path, ...] = ()
    """Listed in the settings."""
    toolchains: tuple[Path, ...] = ()
    variables: tuple[str, ...] = ()
    """Names that are listed in `terminal.env`."""
    unset: tuple[str, ...] = ()
    """Those of them that have no value."""
    caches: Mapping[str, int] = {}
    """In bytes, as last measured."""
    cache_limit: int = 0
    hosts: tuple[str, ...] = ()
    """Listed in the settings."""
    ports: tuple[int, ...] = ()
    """Of this machine, reachable by commands."""
    sockets: tuple[Path, ...] = ()
    """Of this machine, reachable by commands."""
    published: Mapping[int, int] = {}
    """Ports of the sandbox, with the ports of this machine at which they can be reached."""
    blocked: tuple[str, ...] = ()
    """Hosts, then ports and sockets, that commands recently failed to reach; the latest last."""
    probably_blocked: tuple[str, ...] = ()
    """Paths, and what else the kernel does not report, guessed from what programs printed."""


def read_sandbox_state(workspaces: Workspaces, home: Path, session: SessionId, project: Path) -> SandboxState:
    """`home` is Talaria's. Not on the loop. Raises `ToolFailed` where no command could run."""
    sandbox, settings = workspaces.sandbox, workspaces.settings_in(session, project)
    view, workspace = workspaces.make_policy(project.resolve(), settings), workspaces.find(session)
    listed = [Path(given).expanduser().resolve() for given in settings.read]
    ports = workspace.ports if workspace is not None else None
    sizes: Mapping[str, int] = {}
    if settings.cache_gb and sandbox.level in _WITH_CACHES:
        from talaria.tools.sandbox.caches import read_sizes  # noqa: PLC0415  (only needed if commands run)

        sizes = read_sizes(project_folder(home.resolve(), view.project))
    return SandboxState(
        level=sandbox.level,
        about=sandbox.about,
        project=view.project,
        home=view.home,
        writes=view.writes,
        opened=workspace.shared if workspace is not None else (),
        reads=tuple(path for path in view.reads if path in listed),
        toolchains=tuple(path for path in view.reads if path not in listed),
        variables=settings.env,
        unset=tuple(name for name in settings.env if name not in os.environ),
        caches=sizes,
        cache_limit=int(settings.cache_gb * (1 << 30)),
        hosts=settings.network,
        ports=tuple(ports.open_inwards) if ports is not None and ports.open_inwards else settings.ports,
        sockets=tuple(ports.open_sockets) if ports is not None else (),
        published=ports.published if ports is not None else {},
        blocked=(*workspace.egress.blocked, *workspace.consent.blocked) if workspace is not None else (),
        probably_blocked=tuple(workspace.consent.probably_blocked) if workspace is not None else (),
    )
