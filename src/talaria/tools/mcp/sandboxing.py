"""Servers in the sandbox: which servers run there, what each one sees, and which hosts it was refused.

Each server has its own folder in Talaria's home, which is its HOME and lasts between starts.
"""

import hashlib
import threading
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
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
"""A server may start in these folders, but is not shown them for that."""
TOOL_HOMES = {
    "ASDF_DATA_DIR": ".asdf",
    "MISE_DATA_DIR": ".local/share/mise",
    "NVM_DIR": ".nvm",
    "PYENV_ROOT": ".pyenv",
    "RBENV_ROOT": ".rbenv",
    "RUSTUP_HOME": ".rustup",
    "VOLTA_HOME": ".volta",
}
"""Toolchains in the person's home. They look for their files in HOME, which is a different folder for a server."""


class ServerSandboxes:
    """The sandboxes of an application. The kind of sandbox is chosen at the first use."""

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
        """`private`: hosts that may be reached although they are not on the public internet. `configured`: the servers
        of config.yaml; others are a project's. `earlier`: those that an earlier version ran outside the sandbox."""
        self.settings = settings
        self.home = home
        self.clock = clock
        self.private = private
        self._configured = configured
        self._earlier = earlier
        self._choosing = threading.Lock()
        self._sandbox: ProgramSandbox | None = None

    @property
    def sandbox(self) -> ProgramSandbox:
        """Tries sandboxes, so not on the loop. Raises `ToolFailed` if none works."""
        with self._choosing:
            self._sandbox = self._sandbox or for_programs(self.settings)
            return self._sandbox

    def confine(self, name: str, entry: ServerEntry) -> "ConfinedServer | None":
        """None: it runs outside, or elsewhere."""
        is_kept_outside = entry.sandbox is None and name in self._earlier
        if entry.command is None or entry.sandbox is False or is_kept_outside:
            return None
        is_configured = name in self._configured
        setting = f"mcp_servers.{name}.sandbox" if is_configured else f"`sandbox` of {name} in .mcp.json"
        # Servers of different projects may have the same name, but share no folder with each other or the person's.
        is_plain = is_configured and safe_file_name(name) == name
        mark = "" if is_plain else hashlib.sha256(f"{name}\0{'' if is_configured else entry.cwd}".encode()).hexdigest()
        folder = self.home / FOLDER / (f"{safe_file_name(name)}.{mark[:12]}" if mark else name)
        return ConfinedServer(name, entry, self, folder, setting, is_configured=is_configured)


class ConfinedServer:
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
        """Where the person sets what it needs."""
        whose = f"The MCP server {name} does"
        self._proxy = EgressProxy(entry.needs.hosts, sandboxes.private, sandboxes.clock, whose, max_bytes=None)
        self._refused: dict[str, None] = {}
        self._reported: set[str] = set()

    @asynccontextmanager
    async def launch(self, argv: Sequence[str], environment: Mapping[str, str]) -> AsyncGenerator["Launched"]:
        """What to start in place of `argv`. Raises `ToolFailed`."""
        try:
            sandbox = await in_thread(lambda: self._sandboxes.sandbox)
        except ToolFailed as fault:
            raise ToolFailed(
                f"no sandbox works here ({fault}); install bubblewrap, or set {self.setting} to false to run it with "
                "all your permissions"
            ) from fault
        policy, cwd = await in_thread(lambda: self._make_policy(sandbox, Path(argv[0]), environment))
        limits = enforce_limits(policy.limits.processes, policy.limits.memory_bytes, policy.limits.cpu_weight)
        async with in_threads(limits) as held, sandbox.program(policy, argv, cwd) as launch:
            yield Launched(launch, self._proxy, held.join)

    def _make_policy(
        self, sandbox: ProgramSandbox, command: Path, environment: Mapping[str, str]
    ) -> tuple[SandboxPolicy, str]:
        """And the folder that it starts in. Raises `ToolFailed`."""
        home, person, needs = self._sandboxes.home.resolve(), Path.home().resolve(), self._entry.needs
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as fault:
            raise ToolFailed(f"its folder {self._folder} cannot be created: {fault.strerror}") from fault
        folder = self._folder.resolve()
        cwd = Path(self._entry.cwd or ".").expanduser().resolve()
        if not cwd.is_dir():
            raise ToolFailed(f"there is no folder {cwd} to start it in")
        protected = Protected(person, home)
        holds_too_much = cwd in _NO_PLACE or person.is_relative_to(cwd) or home.is_relative_to(cwd)
        is_shown = not holds_too_much and not protected.is_secret(cwd)
        # A program in a virtual environment is readable with all of that, any other one where it is and leads.
        venv = command.parent.parent
        program = venv if (venv / "pyvenv.cfg").is_file() else command
        programs = tuple(dict.fromkeys((*self._entry.programs(), program, program.resolve())))
        given: dict[str, list[Path]] = {"read": [], "write": []}
        for kind, listed in (("read", needs.read), ("write", needs.write)):
            for name in listed:
                path = (cwd / Path(name).expanduser()).resolve()
                if not path.exists():
                    raise ToolFailed(f"{name} does not exist")
                given[kind].append(path)
        asked_for = next(filter(protected.is_secret, (*programs, *given["read"], *given["write"])), None)
        if asked_for is not None and not self._is_configured:
            raise ToolFailed(f"{asked_for} is private; only an entry in your config.yaml can name it")
        policy = program_view(
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
        return policy, str(cwd if is_shown or cwd == person else folder)

    @property
    def refused(self) -> tuple[str, ...]:
        """Hosts that it was refused and that its entry does not list."""
        return tuple(host for host in self._all_refused() if not self._proxy.is_listed(host))

    def _all_refused(self) -> tuple[str, ...]:
        for place, _ in self._proxy.take_refused():
            if len(self._refused) < MAX_REFUSED:
                self._refused.setdefault(place.rpartition(":")[0])
        return tuple(self._refused)

    def hint(self) -> str:
        """What to tell people about refused hosts, or nothing."""
        return self._describe_refused(self._all_refused())

    def take_hint(self) -> str:
        """Like `hint`, but each host is mentioned only once."""
        news = [host for host in self._all_refused() if host not in self._reported]
        self._reported.update(news)
        return self._describe_refused(news)

    def _describe_refused(self, hosts: Sequence[str]) -> str:
        unlisted = [host for host in hosts if not self._proxy.is_listed(host)]
        private = [host for host in hosts if host not in unlisted]
        sentences: list[str] = []
        if unlisted:
            sentences.append(
                f"it tried to reach {_join(unlisted)} from the sandbox, which was refused: add to "
                f"{self.setting}.network what it may reach, or set {self.setting} to false"
            )
        if private:
            sentences.append(f"{_join(private)} is not on the public internet: add it to web.allow_private")
        return "; ".join(sentences)


class Launched(msgspec.Struct, frozen=True):
    launch: ProgramLaunch
    proxy: EgressProxy
    join: Join | None

    @asynccontextmanager
    async def supervise(self, pid: int) -> AsyncGenerator[None]:
        """Runs the proxy and enforces the limits while the started process lives."""
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
        async with self.proxy.serve(listener):
            yield


def _join(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last
