"""A workspace: the shell and the background processes of one session, in its sandbox.

It outlives the live session that made it; closing the session ends it, and nothing of it is left running.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from talaria.core.aio import complete, in_thread, in_threads
from talaria.core.errors import ToolFailed
from talaria.tools.git_settings import GIT_LOGIN, PROGRAM_HOST, GitSettings
from talaria.tools.processes import BackgroundProcesses
from talaria.tools.project_guard import ProjectGuard
from talaria.tools.quarantine import Quarantine
from talaria.tools.sandbox.base import Level, Sandbox, SandboxPolicy, ToolHost
from talaria.tools.sandbox.egress_proxy import EgressProxy
from talaria.tools.sandbox.running_command import ExitStatus, OutputSink, RunningCommand, SandboxCommand
from talaria.tools.sandbox.sandbox_settings import TerminalSettings
from talaria.tools.sandbox_consent import SessionConsent
from talaria.tools.sandbox_permissions import Permission

if TYPE_CHECKING:
    from talaria.net.egress import Serve
    from talaria.net.proxy_requests import ProxyRequest
    from talaria.tools.broker.broker import CredentialBroker
    from talaria.tools.folder_events import FolderEvents
    from talaria.tools.sandbox.ports import Ports

MAX_NEWS = 20
MAX_HELD = 50
"""After this many changes to policy files everything that runs is stopped: something keeps making them."""
_STOPPED = (
    "Commands kept creating files that other programs obey. All processes of this session were stopped; the next "
    "command starts a new shell."
)

NO_PORTS = "Ports and sockets can be opened only at the strict level"

log = logging.getLogger(__name__)


class Workspace:
    def __init__(
        self,
        sandbox: Sandbox,
        project: Path,
        make_policy: Callable[[Sequence[Path]], SandboxPolicy],
        egress: EgressProxy,
        quarantine: Quarantine,
        open_events: Callable[[], "FolderEvents | None"] = lambda: None,
        find_neighbors: Callable[[], Sequence["Workspace"]] = tuple,
        git: GitSettings | None = None,
        use_caches: Callable[[], AbstractContextManager[None]] = nullcontext,
        settings: TerminalSettings | None = None,
        can_be_opened: Callable[[Path], bool] = lambda _: True,
        is_secret: Callable[[Path], bool] = lambda _: False,
    ) -> None:
        """`make_policy`: what commands see at that moment, if they may also write to some places. `open_events`: the
        source of events about new files. `use_caches`: entered while commands may use the project's package caches.
        None of these is called on the loop. `find_neighbors`: workspaces of other sessions in the same project or
        repository. `git`: None where commands use git's real settings. `can_be_opened`: whether a person can open a
        folder. `is_secret`: whether commands must not learn what is there."""
        self._sandbox = sandbox
        self._use_caches = use_caches
        self._make_policy = make_policy
        self._git = git
        self.can_be_opened = can_be_opened
        self.is_secret = is_secret
        self.egress = egress
        self.consent = SessionConsent()
        egress.consent = self.consent.allow_host
        self._broker: CredentialBroker | None = None
        self._news: deque[str] = deque(maxlen=MAX_NEWS)
        self.opening = asyncio.Lock()
        """Held from looking up what is allowed until exactly that is open, and to close what is revoked."""
        self._lock = asyncio.Lock()
        self._resources = AsyncExitStack()
        self._host: ToolHost | None = None
        self._is_closed = False
        self._writes: tuple[Path, ...] = ()
        self._shared: tuple[Path, ...] = ()
        """What the person has opened: writable in addition to the project."""
        self._unguardable: set[Path] = set()
        """What was allowed but cannot be opened here."""
        self._has_new_files = False
        self._has_ports = False
        self._watching: asyncio.Task[None] | None = None
        self.guard = ProjectGuard(
            project,
            quarantine,
            git,
            lambda: self._live_host,
            lambda: [one.guard for one in find_neighbors()],
            open_events,
            self._on_new_file,
        )
        self.project = project
        self.top = project
        """The repository around the project if it is known, otherwise the project itself."""
        self.settings = settings or TerminalSettings()
        self.cwd = str(project)
        """Where the next command starts, as the tool host reported it."""
        self.processes = BackgroundProcesses(self._news.append)

    async def start(self, command: SandboxCommand, sink: OutputSink) -> RunningCommand:
        """Raises `ToolFailed` where nothing can run."""
        async with self._lock:
            if self._is_closed:
                raise ToolFailed("This session is closed.")
            host = self._live_host
            if host is not None and not self.has_running:
                is_guarded = await self.guard.refresh(host, lambda: self._make_policy(self._shared).guarded)
                host = host if is_guarded else None
            host = host or await self._start_host()
            started = host.start(command, sink)
            self.guard.note_start(started)

        def note_end(end: ExitStatus) -> None:
            self.guard.running.discard(started)
            self.cwd = end.cwd or self.cwd

        started.when_ended(note_end)
        return started

    async def share(self, places: Sequence[Path]) -> None:
        """From now on, commands may write exactly these places outside the project. Raises `ToolFailed`."""
        async with self._lock:
            others = (self.project, self.top, *self._writes, *places)
            wanted = tuple(place for place in places if not any(_is_below(place, other) for other in others))
            if self.level == "landlock":
                wanted = await self._without_guarded(wanted)
            added = [place for place in wanted if place not in self._shared]
            dropped = [place for place in self._shared if place not in wanted]
            if not added and not dropped:
                return
            host = self._live_host
            if host is not None:
                faults: list[str] = []
                for place in dropped:
                    is_around = self._is_around_others(place)
                    faults.append("it contains what stays open" if is_around else await host.withdraw(place))
                faults += [await self._share_now(host, place, wanted) for place in added]
                if any(faults):
                    await self._restart(added or dropped)
            self.guard.guarded = tuple(one for one in self.guard.guarded if not any(map(one.is_relative_to, dropped)))
            self._shared = wanted

    async def _without_guarded(self, places: tuple[Path, ...]) -> tuple[Path, ...]:
        """Without mounts, nothing in a folder can be guarded, so none with files that other programs obey is opened."""
        kept = tuple(place for place in places if place in self._shared)
        for place in (place for place in places if place not in kept):
            view = await in_thread(partial(self._make_policy, (place,)))
            obeyed = next((one for one in view.guarded if one.is_relative_to(place)), None)
            if obeyed is None:
                kept = (*kept, place)
            elif place not in self._unguardable:
                self._unguardable.add(place)
                self.guard.warn(
                    f"{place} stays closed: other programs obey {obeyed}, and the sandbox that works here (Landlock) "
                    "cannot guard it. Name a folder that holds nothing of that kind, or install bubblewrap."
                )
        return kept

    async def _share_now(self, host: ToolHost, place: Path, wanted: tuple[Path, ...]) -> str:
        """Returns why it cannot be done while the sandbox runs; empty: it is done."""
        if self._is_around_others(place):
            return "it holds what is open already, and its guards"
        view = await in_thread(lambda: self._make_policy(wanted))
        if any(hidden.is_relative_to(place) for hidden in view.hidden):
            return "it contains something that must be hidden"
        if any(own.is_relative_to(place) or place.is_relative_to(own) for own in view.own):
            return "it contains Talaria's own code"
        guarded = [one for one in view.guarded if one.is_relative_to(place)]
        fault = await host.share(place, guarded)
        if not fault:
            self.guard.guarded = (*self.guard.guarded, *guarded)
        return fault

    def _is_around_others(self, place: Path) -> bool:
        return any(_is_below(one, place) for one in self.roots)

    async def _restart(self, places: Sequence[Path]) -> None:
        names = ", ".join(map(str, places))
        if self.has_running:
            raise ToolFailed(
                f"{names} cannot be opened or closed while commands run in the background: end them first."
            )
        await self._close_host()
        self.guard.warn(
            f"The shell was restarted, because {names} was opened or closed: variables, functions "
            "and temporary files are gone."
        )

    async def revoke(self, permission: Permission) -> str:
        """Close at once what the person has revoked. Returns what keeps it open for now; empty: nothing."""
        async with self.opening:
            return await self._close(permission)

    async def _close(self, permission: Permission) -> str:
        what = permission.what[0]
        ports = self.ports
        if permission.kind == "publish" and ports is not None:
            await ports.withdraw(int(what))
        elif permission.kind == "port" and ports is not None and int(what) not in self.settings.ports:
            await ports.shut(int(what))
        elif permission.kind == "socket" and ports is not None:
            await ports.shut_socket(Path(what))
        elif permission.kind == "write" and Path(what) in self._shared:
            async with self._lock:
                left = tuple(place for place in self._shared if place != Path(what))
                host = self._live_host
                if host is not None and await host.withdraw(Path(what)):
                    if self.has_running:
                        return f"Commands that are running can still change {what} until they end."
                    await self._restart([Path(what)])
                self._shared = left
        return ""

    @property
    def ports(self) -> "Ports | None":
        """The open ports, if a sandbox with its own network is running."""
        host = self._live_host
        return host.ports if host is not None else None

    @property
    def shared(self) -> tuple[Path, ...]:
        """What the person has opened and commands can write now."""
        return self._shared

    @property
    def roots(self) -> tuple[Path, ...]:
        """What its commands can write, apart from scratch."""
        return (self.project, *self._writes, *self._shared)

    @property
    def level(self) -> Level:
        return self._sandbox.level

    @property
    def is_confined(self) -> bool:
        return self.level not in ("none", "remote", "container")

    async def open_ports(
        self, ports: Sequence[int], sockets: Sequence[Path] = (), published: Sequence[int] = ()
    ) -> None:
        """Open exactly these ports and sockets of this machine for commands, and close all published ports but
        `published`. Raises `ToolFailed`."""
        if not (ports or sockets or self._has_ports) or self.level == "none":  # without a sandbox all are reachable
            return
        async with self._lock:
            known = (self._live_host or await self._start_host()).ports
            if known is None:
                listed = (
                    "Commands do not run: terminal.ports lists ports of this machine, and only at the strict level can "
                    f"one be opened (this is {self.level}). Install bubblewrap, or unset it: `talaria config unset "
                    "terminal.ports`, with --project if it is set for this project."
                )
                raise ToolFailed(listed if self.settings.ports else f"{NO_PORTS} (this is {self.level}).")
            self._has_ports = True
            for port in [port for port in known.open_inwards if port not in ports]:
                await known.shut(port)
            for port in [port for port in known.published if port not in published]:
                await known.withdraw(port)
            for path in [path for path in known.open_sockets if path not in sockets]:
                await known.shut_socket(path)
            for port in ports:
                await known.let_in(port)
            for path in sockets:
                await known.let_in_socket(path)

    async def publish(self, port: int) -> str:
        """The link at which the person sees what commands serve on a port. Raises `ToolFailed`."""
        host = self._live_host
        if host is None:
            raise ToolFailed("Nothing runs here that could be shown.")
        if host.ports is None:
            raise ToolFailed(f"{NO_PORTS} (this is {self._sandbox.level}).")
        self._has_ports = True
        async with self._lock:
            return f"http://127.0.0.1:{await host.ports.publish(port)}/"

    @asynccontextmanager
    async def leave_sandbox(
        self, environment: Mapping[str, str], *, is_by_grant: bool
    ) -> AsyncGenerator[Callable[[SandboxCommand, OutputSink], Awaitable[RunningCommand]]]:
        """To run one command that a person has allowed outside the sandbox. Changes by sandboxed commands are compared
        first, so that they do not pass for the person's own. `is_by_grant`: the person was not asked about the exact
        words."""
        await self.quarantine_changes()
        from talaria.tools.sandbox.local import open_outside  # noqa: PLC0415  (rarely)

        async with open_outside(self.project, self.roots, environment, is_by_grant=is_by_grant) as host:

            async def start(command: SandboxCommand, sink: OutputSink) -> RunningCommand:
                return host.start(command, sink)

            yield start

    @property
    def has_running(self) -> bool:
        return bool(self.guard.running)

    async def quarantine_changes(self) -> None:
        """After a command: what it has changed and other programs obey moves to quarantine, until `take_held`."""
        await complete(self.guard.compare())
        if self.guard.held_count > MAX_HELD:
            async with self._lock:
                await self._close_host()
            self._news.append(f"[{_STOPPED}]")

    def intercept(
        self,
        git: GitSettings,
        reading: Callable[[], AbstractAsyncContextManager[ToolHost | None]],
        request: "ProxyRequest",
    ) -> "Serve | None":
        """Requests that the credential broker answers instead of the named host; None: not for the broker."""
        if request.url.host != PROGRAM_HOST and request.credential != GIT_LOGIN:
            return None
        if self._broker is None:
            from talaria.tools.broker.broker import CredentialBroker  # noqa: PLC0415  (few sessions reach a remote)

            self._broker = CredentialBroker(
                self.consent, git, self.egress, lambda: self.top, lambda: self.roots, reading
            )
        return self._broker.intercept(request)

    def _on_new_file(self) -> None:
        """A file that matters was created."""
        if not self.has_running:
            return
        self._has_new_files = True
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._check_new_files(), name="policy files")

    async def _check_new_files(self) -> None:
        """Restores guards at once. The rest is compared when its command ends, but not if only background processes
        run: nobody waits for their end."""
        try:
            while self._has_new_files and self._host is not None:
                self._has_new_files = False
                if not await self.guard.guard_again(self._host):
                    async with self._lock:
                        await self._close_host()
                    self._news.extend(f"[{one}]" for one in self.guard.take_warnings())
                in_background = {process.started for process in self.processes.all}
                if self.has_running and self.guard.running <= in_background:
                    before = len(self.guard.held)
                    await self.quarantine_changes()
                    self._news.extend(f"[{one}]" for one in self.guard.held[before:])
        except Exception:  # what was left undone is done when the next command starts or ends
            log.exception("new files in %s could not be checked", self.cwd)

    @property
    def _live_host(self) -> ToolHost | None:
        return self._host if self._host is not None and self._host.is_alive else None

    async def _start_host(self) -> ToolHost:
        """Replaces a sandbox that has ended."""
        await self._close_host()
        try:
            await self._resources.enter_async_context(in_threads(self._use_caches()))
        except OSError as fault:
            self.guard.warn(f"Package caches cannot be kept: {fault.strerror or fault} ({fault.filename}).")
        view = await in_thread(lambda: self._make_policy(self._shared))
        self.top = view.top
        await self.guard.open_folders(view)
        git = self._git
        if git is not None and await in_thread(lambda: git.prepare(view.top)):
            view = git.add_to_policy(view)
        self.cwd = str(view.project)
        self.guard.guarded = view.guarded
        self._shared = tuple(place for place in self._shared if place in view.shared)
        self._writes = tuple(place for place in view.writes if place not in self._shared)
        learning: asyncio.Future[None] | None = None
        if self._sandbox.level not in ("none", "remote"):  # there each command is asked about
            learning = self.guard.begin(view)  # while the sandbox starts
        try:
            host = await self._resources.enter_async_context(self._sandbox.open(view))
        finally:
            if learning is not None:
                await complete(learning)
        links = await in_thread(lambda: git.link_copies(view.guarded)) if git is not None else {}
        if links:
            await host.guard((), links)
        if host.listener is not None:
            await self._resources.enter_async_context(self.egress.serve(host.listener))
        self._host = host
        return host

    async def _close_host(self) -> None:
        is_compared = self.guard.is_compared  # read now: while the host closes, a process may still write
        self._host = None
        await self._resources.aclose()
        self._news.extend(f"[{one}]" for one in await self.guard.end(is_compared=is_compared))

    @property
    def has_news(self) -> bool:
        return bool(self._news)

    def take_news(self) -> tuple[str, ...]:
        """What has happened in the background since the last call."""
        news = tuple(self._news)
        self._news.clear()
        return news

    async def close(self) -> None:
        self.processes.close()
        self._is_closed = True
        if self._watching is not None:
            self._watching.cancel()
        async with self._lock:
            await self._close_host()
            self.guard.close()


def _is_below(place: Path, other: Path) -> bool:
    return place != other and place.is_relative_to(other)
