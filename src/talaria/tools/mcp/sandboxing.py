"""Servers in the sandbox: which of them run there, what each of them sees, and which hosts it was refused.

A server has a folder of its own in Talaria's home, which is its HOME and stays between two starts.
"""

import hashlib
import threading
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property, partial
from pathlib import Path

import msgspec

from talaria.core.aio import in_thread, in_threads
from talaria.core.clock import Clock
from talaria.core.errors import ToolFailed
from talaria.core.fs import safe_file_name
from talaria.tools.mcp.server_entries import ServerEntry
from talaria.tools.protected import Protected
from talaria.tools.sandbox.base import ProgramLaunch, ProgramSandbox, SandboxPolicy
from talaria.tools.sandbox.chooser import for_programs
from talaria.tools.sandbox.egress_proxy import EgressProxy
from talaria.tools.sandbox.launching import receive_listener
from talaria.tools.sandbox.resource_limits import Join, enforce_limits
from talaria.tools.sandbox.sandbox_policy import program_view
from talaria.tools.sandbox.sandbox_settings import TerminalSettings

FOLDER = "mcp"
MAX_REFUSED = 20
_NO_PLACE = frozenset(map(Path, ("/", "/usr", "/opt", "/var", "/etc", "/bin", "/tmp", "/home", "/root", "/run")))  # noqa: S108
"""Folders in which a server may be started, and which are not shown to it for that."""


TOOL_HOMES = {
    "ASDF_DATA_DIR": ".asdf",
    "MISE_DATA_DIR": ".local/share/mise",
    "NVM_DIR": ".nvm",
    "PYENV_ROOT": ".pyenv",
    "RBENV_ROOT": ".rbenv",
    "RUSTUP_HOME": ".rustup",
    "VOLTA_HOME": ".volta",
}
"""In the person's home: toolchains that would look for themselves in HOME, which is another folder for a server."""


class ServerSandboxes:
    """Those of an application. The sandbox is chosen at the first use."""

    def __init__(
        self,
        settings: TerminalSettings,
        home: Path,
        clock: Clock,
        *,
        private: tuple[str, ...] = (),
        configured: Collection[str] = (),
        earlier: Collection[str] = (),
    ) -> None:
        """`private`: what may be reached although it is not on the public internet. `configured`: the servers of
        config.yaml; others are a project's. `earlier`: those that an earlier version ran outside of the sandbox."""
        self.settings = settings
        self.home = home
        self.clock = clock
        self.private = private
        self._configured = configured
        self._earlier = earlier
        self._choosing = threading.Lock()

    @property
    def sandbox(self) -> ProgramSandbox:
        """Not on the loop: it is tried. Raises `ToolFailed` where none works."""
        with self._choosing:
            return self._sandbox

    @cached_property
    def _sandbox(self) -> ProgramSandbox:
        return for_programs(self.settings)

    def confine(self, name: str, entry: ServerEntry) -> "ConfinedServer | None":
        """None: it runs outside, or elsewhere."""
        is_kept_outside = entry.sandbox is None and name in self._earlier
        if entry.command is None or entry.sandbox is False or is_kept_outside:
            return None
        is_configured = name in self._configured
        setting = f"mcp_servers.{name}.sandbox" if is_configured else f"`sandbox` of {name} in .mcp.json"
        folder = self._folder(name, entry, is_configured=is_configured)
        return ConfinedServer(name, entry, self, folder, setting, is_configured=is_configured)

    def _folder(self, name: str, entry: ServerEntry, *, is_configured: bool) -> Path:
        """Projects may use one name for different servers: these share no folder, nor with one of the person's."""
        is_plain = is_configured and safe_file_name(name) == name
        mark = "" if is_plain else hashlib.sha256(f"{name}\0{'' if is_configured else entry.cwd}".encode()).hexdigest()
        return self.home / FOLDER / (f"{safe_file_name(name)}.{mark[:12]}" if mark else name)


class ConfinedServer:
    """One server in the sandbox."""

    def __init__(
        self,
        name: str,
        entry: ServerEntry,
        sandboxes: ServerSandboxes,
        folder: Path,
        setting: str,
        *,
        is_configured: bool,
    ) -> None:
        self._entry = entry
        self._is_configured = is_configured
        self._sandboxes = sandboxes
        self._folder = folder
        self.setting = setting
        """Where the person says what it needs."""
        hosts = entry.needs.hosts
        whose = f"The MCP server {name} does"
        self._way_out = EgressProxy(hosts, sandboxes.private, sandboxes.clock, whose, max_bytes=None)
        self._refused: dict[str, None] = {}
        self._told: set[str] = set()

    @asynccontextmanager
    async def launch(self, argv: Sequence[str], environment: Mapping[str, str]) -> AsyncGenerator["Launched"]:
        """What to start in place of `argv`. Raises `ToolFailed`."""
        try:
            sandbox = await in_thread(lambda: self._sandboxes.sandbox)
        except ToolFailed as fault:
            raise ToolFailed(
                f"none works here ({fault}); install bubblewrap, or set {self.setting} to false to run it with all "
                "your rights"
            ) from fault
        view, cwd = await in_thread(lambda: self._view(sandbox, argv[0], environment))
        limits = enforce_limits(view.limits.processes, view.limits.memory_bytes, view.limits.cpu_weight)
        async with in_threads(limits) as held, sandbox.program(view, argv, cwd) as launch:
            yield Launched(launch, self._way_out, held.join)

    def _view(self, sandbox: ProgramSandbox, command: str, environment: Mapping[str, str]) -> tuple[SandboxPolicy, str]:
        """And the folder in which it starts."""
        home, person, needs = self._sandboxes.home.resolve(), Path.home().resolve(), self._entry.needs
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as fault:
            raise ToolFailed(f"its folder {self._folder} cannot be made: {fault.strerror}") from fault
        folder = self._folder.resolve()
        cwd = Path(self._entry.cwd or ".").expanduser().resolve()
        if not cwd.is_dir():
            raise ToolFailed(f"there is no folder {cwd} to start it in")
        protected = Protected(person, home)
        holds_too_much = cwd in _NO_PLACE or person.is_relative_to(cwd) or home.is_relative_to(cwd)
        is_shown = not holds_too_much and not protected.is_secret(cwd)
        programs = tuple(dict.fromkeys((*self._entry.programs(), *_around(Path(command)))))
        given = {kind: tuple(_existing(getattr(needs, kind), cwd)) for kind in ("read", "write")}
        asked_for = next(filter(protected.is_secret, (*programs, *given["read"], *given["write"])), None)
        if asked_for is not None and not self._is_configured:
            raise ToolFailed(f"{asked_for} is private; only an entry in your config.yaml can name it")
        view = program_view(
            folder,
            home,
            protected,
            programs=tuple(path for path in programs if not (is_shown and path.is_relative_to(cwd))),
            reads=tuple(dict.fromkeys((*((cwd,) if is_shown else ()), *given["read"]))),
            writes=given["write"],
            environment={
                **environment,
                **{name: f"{person}/{place}" for name, place in TOOL_HOMES.items() if (person / place).is_dir()},
                "HOME": str(folder),
                **{name: value.reveal() for name, value in self._entry.env.items()},
            },
            has_egress=bool(needs.hosts) or sandbox.level != "landlock",
            limits=self._sandboxes.settings.sandbox_limits,
        )
        return view, str(cwd if is_shown or cwd == person else folder)

    @property
    def refused(self) -> tuple[str, ...]:
        """Hosts that it asked for in vain, and that its entry does not list."""
        return tuple(host for host in self._all_refused() if not self._way_out.is_listed(host))

    def _all_refused(self) -> tuple[str, ...]:
        for place, _ in self._way_out.take_refused():
            if len(self._refused) < MAX_REFUSED:
                self._refused.setdefault(place.rpartition(":")[0])
        return tuple(self._refused)

    def hint(self) -> str:
        """What to tell people about hosts that were refused; or nothing."""
        return self._hint(self._all_refused())

    def take_hint(self) -> str:
        """The same, of each host once."""
        news = [host for host in self._all_refused() if host not in self._told]
        self._told.update(news)
        return self._hint(news)

    def _hint(self, hosts: Sequence[str]) -> str:
        unlisted = [host for host in hosts if not self._way_out.is_listed(host)]
        private = [host for host in hosts if host not in unlisted]
        refused = (
            f"it tried to reach {_join(unlisted)} from the sandbox, which was refused: add to {self.setting}.network "
            f"what it may reach, or set {self.setting} to false"
        )
        unreachable = f"{_join(private)} is not on the public internet: add it to web.allow_private"
        return "; ".join((*((refused,) if unlisted else ()), *((unreachable,) if private else ())))


class Launched(msgspec.Struct, frozen=True):
    launch: ProgramLaunch
    way_out: EgressProxy
    join: Join | None

    @asynccontextmanager
    async def supervise(self, pid: int) -> AsyncGenerator[None]:
        """Around the life of the process, once it was started: its proxy, and the limits of what it may use."""
        if self.launch.other_end is not None:
            self.launch.other_end.close()
        listener = self.launch.listener
        if listener is None and self.launch.channel is not None:
            listener = await receive_listener(self.launch.channel)
        if self.join is not None:
            await in_thread(partial(self.join, pid))
        if listener is None:
            yield
            return
        async with self.way_out.serve(listener):
            yield


def _around(command: Path) -> Iterator[Path]:
    """A program is read where it is and where it leads; one of a virtual environment with all of that."""
    venv = command.parent.parent
    place = venv if (venv / "pyvenv.cfg").is_file() else command
    yield place
    yield place.resolve()


def _existing(paths: Sequence[str], cwd: Path) -> Iterator[Path]:
    for given in paths:
        path = (cwd / Path(given).expanduser()).resolve()
        if not path.exists():
            raise ToolFailed(f"{given} is not there")
        yield path


def _join(words: Sequence[str]) -> str:
    *others, last = words or ("",)
    return f"{', '.join(others)} and {last}" if others else last
