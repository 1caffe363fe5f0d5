"""A workspace: the shell and the background processes of one session, in its sandbox.

It outlives the live session that made it; closing the session ends it, and nothing of it is left running.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from talaria.core.aio import completed, in_thread
from talaria.core.errors import ToolFailed
from talaria.core.trees import Root
from talaria.tools.blocking import in_threads
from talaria.tools.git_settings import GIT_LOGIN, PROGRAM_HOST, AddressChange, GitSettings
from talaria.tools.policy_files import HeldChange, PolicyFiles
from talaria.tools.processes import Processes
from talaria.tools.quarantine import Quarantine
from talaria.tools.sandbox.base import Level, Sandbox, SandboxPolicy, ToolHost
from talaria.tools.sandbox.egress_proxy import EgressProxy
from talaria.tools.sandbox.running_command import ExitStatus, OutputSink, RunningCommand, SandboxCommand
from talaria.tools.sandbox.sandbox_settings import TerminalSettings
from talaria.tools.sandbox_grants import RunningConsent
from talaria.tools.sandbox_permissions import Permission

if TYPE_CHECKING:
    from talaria.net.egress import Serve
    from talaria.net.proxy_requests import ProxyRequest
    from talaria.tools.broker.broker import CredentialBroker
    from talaria.tools.folder_events import FolderEvents
    from talaria.tools.sandbox.ports import Ports

MAX_NEWS = 20
MAX_HELD = 50
"""Changes to policy files, until everything that runs is stopped: something makes them again and again."""
_STOPPED = (
    "Commands made files again and again that other programs obey. All processes of this session were stopped; the "
    "next command begins anew."
)

NO_PORTS = "Only at the strict level do commands have a network of their own, in which a port can be opened"

log = logging.getLogger(__name__)


class Workspace:
    def __init__(
        self,
        sandbox: Sandbox,
        project: Path,
        look: Callable[[Sequence[Path]], SandboxPolicy],
        way_out: EgressProxy,
        quarantine: Quarantine,
        events: Callable[[], "FolderEvents | None"] = lambda: None,
        others: Callable[[], Sequence["Workspace"]] = tuple,
        git: GitSettings | None = None,
        caches: Callable[[], AbstractContextManager[None]] = nullcontext,
        settings: TerminalSettings | None = None,
        can_be_opened: Callable[[Path], bool] = lambda _: True,
    ) -> None:
        """`look`: what commands see, as it is then, if they may also write to some places. `events`: who tells what is
        made in folders. `caches`: entered while commands may use the project's package caches. All not on the loop.
        `others`: those of other sessions in the same project or repository. `git`: None, where commands have git's
        settings as they are. `can_be_opened`: whether a person can open a folder."""
        self._sandbox = sandbox
        self._caches = caches
        self._quarantine = quarantine
        self._look = look
        self._events = events
        self._others = others
        self._git = git
        self.can_be_opened = can_be_opened
        self._addresses: list[AddressChange] = []
        self.way_out = way_out
        self.consent = RunningConsent()
        self._broker: CredentialBroker | None = None
        way_out.consent = self.consent.allow_host
        self._news: deque[str] = deque(maxlen=MAX_NEWS)
        self._opening = asyncio.Lock()
        self._open = AsyncExitStack()
        self._host: ToolHost | None = None
        self._is_closed = False
        self._project: Root | None = None
        """Opened when its commands were first let in: whatever they put in its place later is not the project."""
        self._policy: PolicyFiles | None = None
        self._running: set[RunningCommand] = set()
        self._is_settled = True
        """Nothing has run since policy files were last compared."""
        self._held: list[HeldChange] = []
        self._held_count = 0
        self._comparing = asyncio.Lock()
        self._warnings: list[str] = []
        self._guarded: tuple[Path, ...] = ()
        self._writes: tuple[Path, ...] = ()
        self._shared: tuple[Path, ...] = ()
        """What the person has opened: writable besides the project."""
        self._unguardable: set[Path] = set()
        """Of what was allowed, what cannot be opened here."""
        self._has_new_files = False
        self._has_ports = False
        self._watching: asyncio.Task[None] | None = None
        self.project = project
        self.top = project
        """The repository around the project, as far as it is known, or the project itself."""
        self._git_folders: list[Root] = []
        self.settings = settings or TerminalSettings()
        self.cwd = str(project)
        """Where the next command begins, as the tool host has told it."""
        self.processes = Processes(self._news.append)

    async def start(self, command: SandboxCommand, sink: OutputSink) -> RunningCommand:
        """Raises `ToolFailed` where nothing can run."""
        async with self._opening:
            if self._is_closed:
                raise ToolFailed("This session is closed.")
            host = self._living_host
            if host is not None and not self._running and not await self._refresh_guards(host):
                host = None
            host = host or await self._begin()
            started = host.start(command, sink)
            self._is_settled = False
            self._running.add(started)
        started.when_ended(lambda end: self._note(started, end))
        return started

    def _note(self, started: RunningCommand, end: ExitStatus) -> None:
        self._running.discard(started)
        self.cwd = end.cwd or self.cwd

    async def _refresh_guards(self, host: ToolHost) -> bool:
        """Before a command, when none runs in the project: what has changed in the meantime is the person's own doing,
        and is guarded from now on. False: it cannot be."""
        policy = self._policy
        if policy is None:
            return True
        if not self._is_settled:
            await self._compare()
        if any(one.may_have_changed_files for one in self._others()):
            return await self._guard_again(host)
        if await in_thread(lambda: policy.accept() | bool(host.unguarded(self._guarded))):
            self._guarded = (await in_thread(lambda: self._look(self._shared))).guarded
            return await self._guard_again(host)
        return True

    async def share(self, places: Sequence[Path]) -> None:
        """Of what is outside the project, commands write just this from now on. Raises `ToolFailed`."""
        async with self._opening:
            others = (self.project, self.top, *self._writes, *places)
            wanted = tuple(place for place in places if not any(_is_below(place, other) for other in others))
            if self.level == "landlock":
                wanted = await self._without_guarded(wanted)
            added = [place for place in wanted if place not in self._shared]
            dropped = [place for place in self._shared if place not in wanted]
            if not added and not dropped:
                return
            host = self._living_host
            if host is not None:
                faults = [await self._withdraw_now(host, place) for place in dropped]
                faults += [await self._share_now(host, place, wanted) for place in added]
                if any(faults):
                    await self._begin_anew(added or dropped)
            self._guarded = tuple(one for one in self._guarded if not any(map(one.is_relative_to, dropped)))
            self._shared = wanted

    async def _without_guarded(self, places: tuple[Path, ...]) -> tuple[Path, ...]:
        """Where nothing can be mounted, what other programs obey could be changed there."""
        kept = tuple(place for place in places if place in self._shared)
        for place in (place for place in places if place not in kept):
            view = await in_thread(partial(self._look, (place,)))
            obeyed = next((one for one in view.guarded if one.is_relative_to(place)), None)
            if obeyed is None:
                kept = (*kept, place)
            elif place not in self._unguardable:
                self._unguardable.add(place)
                self._warn(
                    f"{place} stays closed: other programs obey {obeyed}, and the sandbox that works here (Landlock) "
                    "cannot guard it. Name a folder that holds nothing of that kind, or install bubblewrap."
                )
        return kept

    async def _share_now(self, host: ToolHost, place: Path, wanted: tuple[Path, ...]) -> str:
        """Returns why it cannot be done while the sandbox runs."""
        if self._is_around_others(place):
            return "it holds what is open already, and its guards"
        view = await in_thread(lambda: self._look(wanted))
        if any(hidden.is_relative_to(place) for hidden in view.hidden):
            return "there is something in it that must be hidden"
        if any(own.is_relative_to(place) or place.is_relative_to(own) for own in view.own):
            return "there is code of Talaria's own in it"
        guarded = [one for one in view.guarded if one.is_relative_to(place)]
        fault = await host.share(place, guarded)
        if not fault:
            self._guarded = (*self._guarded, *guarded)
        return fault

    async def _withdraw_now(self, host: ToolHost, place: Path) -> str:
        return "it is around what stays open" if self._is_around_others(place) else await host.withdraw(place)

    def _is_around_others(self, place: Path) -> bool:
        return any(_is_below(one, place) for one in self.roots)

    async def _begin_anew(self, places: Sequence[Path]) -> None:
        names = ", ".join(map(str, places))
        if self._running:
            raise ToolFailed(
                f"{names} cannot be opened or closed while commands run in the background: end them first."
            )
        await self._leave()
        self._warn(
            f"The shell began anew, because {names} was opened or closed: variables, functions and temporary files are "
            "gone."
        )

    async def close_again(self, permission: Permission) -> str:
        """What the person has taken back, at once. Returns what keeps it for now; empty: nothing does."""
        what = permission.what[0]
        ports = self.ports
        if permission.kind == "publish" and ports is not None:
            await ports.withdraw(int(what))
        elif permission.kind == "port" and ports is not None and int(what) not in self.settings.ports:
            await ports.shut(int(what))
        elif permission.kind == "write" and Path(what) in self._shared:
            async with self._opening:
                left = tuple(place for place in self._shared if place != Path(what))
                host = self._living_host
                if host is not None and await host.withdraw(Path(what)):
                    if self._running:
                        return f"Commands that run now can still change {what}, until they end."
                    await self._begin_anew([Path(what)])
                self._shared = left
        return ""

    @property
    def ports(self) -> "Ports | None":
        """Those that are open now, if a sandbox with a network of its own runs."""
        host = self._living_host
        return host.ports if host is not None else None

    @property
    def shared(self) -> tuple[Path, ...]:
        """What the person has opened, as far as commands can write there now."""
        return self._shared

    @property
    def roots(self) -> tuple[Path, ...]:
        """What its commands can write, besides scratch."""
        return (self.project, *self._writes, *self._shared)

    @property
    def level(self) -> Level:
        return self._sandbox.level

    @property
    def is_confined(self) -> bool:
        return self.level not in ("none", "remote", "container")

    async def open_ports(self, ports: Sequence[int], published: Sequence[int] = ()) -> None:
        """Of this machine, for commands. Others are closed, and those that the person sees, but for `published`. Raises
        `ToolFailed`."""
        if (not ports and not self._has_ports) or self.level == "none":  # there commands reach every port
            return
        async with self._opening:
            known = (self._living_host or await self._begin()).ports
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
            for port in ports:
                await known.let_in(port)

    async def publish(self, port: int) -> str:
        """The link under which the person sees what commands serve there. Raises `ToolFailed`."""
        host = self._living_host
        if host is None:
            raise ToolFailed("Nothing runs here that could be shown.")
        if host.ports is None:
            raise ToolFailed(f"{NO_PORTS} (this is {self._sandbox.level}).")
        self._has_ports = True
        async with self._opening:
            return f"http://127.0.0.1:{await host.ports.publish(port)}/"

    @asynccontextmanager
    async def leave_sandbox(
        self, environment: Mapping[str, str], *, is_by_grant: bool
    ) -> AsyncGenerator[Callable[[SandboxCommand, OutputSink], Awaitable[RunningCommand]]]:
        """To run one command that a person has allowed to leave. What sandboxed commands have changed is looked at
        before, so that it does not pass for the person's own doing. `is_by_grant`: they were not asked about these
        very words."""
        await self.tidy()
        from talaria.tools.sandbox.local import opened_outside  # noqa: PLC0415  (rarely)

        async with opened_outside(self.project, self.roots, environment, is_by_grant=is_by_grant) as host:

            async def start(command: SandboxCommand, sink: OutputSink) -> RunningCommand:
                return host.start(command, sink)

            yield start

    @property
    def has_running(self) -> bool:
        return bool(self._running)

    @property
    def may_have_changed_files(self) -> bool:
        """That nobody has compared yet."""
        return bool(self._running) or not self._is_settled

    async def _guard_again(self, host: ToolHost) -> bool:
        """What somebody outside has replaced has lost its guard. False: it cannot be guarded while the sandbox runs."""
        lost = await in_thread(lambda: host.unguarded(self._guarded))
        if not lost:
            return True
        git = self._git
        links = await in_thread(lambda: git.redirect(lost)) if git is not None else {}
        guarded = await host.guard(lost, links)
        if guarded.stopped:
            names = ", ".join(map(str, lost))
            self._warn(
                f"{names} was replaced from outside, and is guarded again. Stopped, because they had it open: "
                f"{'; '.join(guarded.stopped)}."
            )
        for path in guarded.linked:
            self._warn(f"{path} has a second name, by which commands can change it: look at it before you trust it.")
        for path, reason in guarded.failed:
            self._warn(
                f"{path} was replaced from outside and cannot be guarded again ({reason}). The shell and all processes "
                "of this session were ended; the next command begins anew."
            )
        return not guarded.failed

    def _warn(self, sentence: str) -> None:
        log.warning("in %s: %s", self.cwd, sentence)
        self._warnings.append(sentence)

    def take_warnings(self) -> tuple[str, ...]:
        """What the person and the model should know of guarded files."""
        warnings, self._warnings = tuple(self._warnings), []
        return warnings

    async def tidy(self) -> None:
        """After a command: what it has changed and other programs obey moves to quarantine, until `take_held`."""
        await completed(self._compare())
        if self._held_count > MAX_HELD:
            async with self._opening:
                await self._leave()
            self._news.append(f"[{_STOPPED}]")

    async def _compare(self) -> None:
        policy = self._policy
        if policy is None:
            return
        async with self._comparing:
            is_idle = not self._running
            held = await completed(in_thread(policy.hold))
            # a tool host that ends has not killed its commands yet when they count as lost
            self._is_settled = is_idle and not self._running and self._living_host is not None
            is_saved = await completed(self._sync_git())
        for one in held:
            log.warning("in %s: %s", self.cwd, one)
        self._held += held
        self._held_count += len(held)
        if (held or is_saved) and self._host is not None and self._host.is_alive:
            await self._guard_again(self._host)  # what was put back is another file

    async def _sync_git(self) -> bool:
        """Whether files were replaced: they have lost their guards then."""
        git = self._git
        if git is None or not await in_thread(lambda: git.may_have_changed):
            return False
        synced = await in_thread(lambda: git.sync(self._changing_everywhere))
        self._warnings += synced.told
        self._addresses += synced.asked
        return bool(synced.saved)

    def intercept(
        self,
        git: GitSettings,
        reading: Callable[[], AbstractAsyncContextManager[ToolHost | None]],
        request: "ProxyRequest",
    ) -> "Serve | None":
        """What the credential broker answers in place of the host that commands name."""
        if request.url.host != PROGRAM_HOST and request.credential != GIT_LOGIN:
            return None
        if self._broker is None:
            from talaria.tools.broker.session_broker import make_broker  # noqa: PLC0415  (few sessions reach a remote)

            self._broker = make_broker(self.consent, git, self.way_out, lambda: self.top, lambda: self.roots, reading)
        return self._broker.intercept(request)

    def take_addresses(self) -> tuple[AddressChange, ...]:
        """New addresses in settings of git that nobody has been asked about yet."""
        addresses, self._addresses = tuple(self._addresses), []
        return addresses

    async def save_address(self, change: AddressChange) -> tuple[str, ...]:
        """The person wants it. What went wrong."""
        git = self._git
        if git is None:
            return ()
        async with self._comparing:
            fault = await completed(in_thread(lambda: git.save(change.file, change.changes, self._changing_everywhere)))
        if self._host is not None and self._host.is_alive:
            await self._guard_again(self._host)
        return (fault,) if fault else ()

    @contextmanager
    def _changing_everywhere(self, path: Path, content: bytes) -> Generator[None]:
        with ExitStack() as held:
            for workspace in sorted((self, *self._others()), key=id):  # always in the same order: they take locks
                held.enter_context(workspace.changing(path, content))
            yield

    def take_held(self) -> tuple[HeldChange, ...]:
        """What nobody has been asked about yet."""
        held, self._held = tuple(self._held), []
        return held

    async def keep(self, held: HeldChange) -> str:
        """The person wants it. What came of it."""
        policy, others = self._policy, [one.policy for one in self._others()]
        if policy is None:
            return f"{held.name} was allowed, but the shell of this session is gone. It is in {held.to}."
        try:
            await completed(in_thread(lambda: policy.keep(held)))
        except OSError as fault:
            return f"{held.name} was allowed, but cannot be put back: {fault.strerror}. It is in {held.to}."
        for other in filter(None, others):
            await in_thread(partial(other.adopt, policy.known(held.name)))
        return f"The person allowed the change to {held.name}."

    def changing(self, path: Path, content: bytes) -> AbstractContextManager[None]:
        """While a tool writes a file with the person's consent. Not on the loop."""
        project, policy = self._project, self._policy
        if policy is not None and any(path.is_relative_to(folder.path) for folder in self._git_folders):
            return policy.changing(str(path), content)
        if project is None or policy is None or not path.is_relative_to(project.path):
            return nullcontext()
        return policy.changing(str(path.relative_to(project.path)), content)

    def _on_new_file(self) -> None:
        """Something was made that matters, and commands run."""
        if not self._running:
            return
        self._has_new_files = True
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._handle_new_files(), name="policy files")

    async def _handle_new_files(self) -> None:
        try:
            await self._check_new_files()
        except Exception:  # what it did not do is done when the next command begins or ends
            log.exception("what was made in %s could not be looked at", self.cwd)

    async def _check_new_files(self) -> None:
        """Guards are put back at once. The rest is compared when its command ends, but nobody waits for the end of a
        background process."""
        while self._has_new_files and self._host is not None:
            self._has_new_files = False
            if not await self._guard_again(self._host):
                async with self._opening:
                    await self._leave()
                self._news.extend(f"[{one}]" for one in self.take_warnings())
            in_background = {process.started for process in self.processes.all}
            if self._running and self._running <= in_background:
                before = len(self._held)
                await self.tidy()
                self._news.extend(f"[{one}]" for one in self._held[before:])

    @property
    def _living_host(self) -> ToolHost | None:
        return self._host if self._host is not None and self._host.is_alive else None

    async def _begin(self) -> ToolHost:
        """A new sandbox in place of one that has ended."""
        await self._leave()
        self._host = host = await self._enter()
        return host

    async def _enter(self) -> ToolHost:
        try:
            await self._open.enter_async_context(in_threads(self._caches()))
        except OSError as fault:
            self._warn(f"Package caches cannot be kept: {fault.strerror or fault} ({fault.filename}).")
        view = await in_thread(lambda: self._look(self._shared))
        self.top = view.top
        if self._project is None or self._project.path != str(view.top):
            await in_thread(lambda: self._open_folders(view))
        project = self._project
        assert project is not None  # noqa: S101
        git = self._git
        if git is not None and await in_thread(lambda: git.prepare(view.top)):
            view = git.let_see(view)
        self.cwd = str(view.project)
        self._guarded = view.guarded
        self._shared = tuple(place for place in self._shared if place in view.shared)
        self._writes = tuple(place for place in view.writes if place not in self._shared)
        compared = (view.top, *view.git_folders)
        below = [path for path in view.guarded if any(path.is_relative_to(folder) for folder in compared)]
        guarded, missing = ([_name(path, view.top) for path in paths] for paths in (below, view.unwanted))
        learning: asyncio.Future[None] | None = None
        if self._sandbox.level not in ("none", "remote"):  # there each command is asked about
            self._policy = policy = PolicyFiles(
                project,
                self._quarantine,
                guarded,
                missing,
                first=_name(view.project, view.top) if view.root is not None else "",
                outside=self._git_folders,
            )
            running = next((one.policy for one in self._others() if one.may_have_changed_files), None)
            learn = partial(self._learn, policy, running)
            learning = asyncio.ensure_future(in_thread(learn))  # while the sandbox starts
            self._held_count = 0
        try:
            host = await self._open.enter_async_context(self._sandbox.opened(view))
        finally:
            if learning is not None:
                await completed(learning)
        links = await in_thread(lambda: git.redirect(view.guarded)) if git is not None else {}
        if links:
            await host.guard((), links)
        if host.listener is not None:
            await self._open.enter_async_context(self.way_out.served(host.listener))
        return host

    def _open_folders(self, view: SandboxPolicy) -> None:
        for folder in (self._project, *self._git_folders):
            if folder is not None:
                folder.close()
        self._project = Root.open(view.top)
        self._git_folders = [Root.open(folder) for folder in view.git_folders]

    @property
    def policy(self) -> PolicyFiles | None:
        """What is known of policy files; None: nothing runs here."""
        return self._policy

    def _learn(self, policy: PolicyFiles, running: PolicyFiles | None) -> None:
        """`running`: of another session, whose commands may have changed something by now. What was there before
        counts."""
        events = self._events()
        if events is not None:
            subscription = events.subscribe(policy.is_wanted, self._on_new_file)
            policy.watch(subscription)
        policy.learn(running.known() if running is not None else None)

    async def _leave(self) -> None:
        self._host = None
        await self._open.aclose()
        self._running.clear()
        if not self._is_settled:  # else what has changed since is the person's own doing
            await self._compare()
            self._is_settled = True
        self._news.extend(f"[{one}]" for one in self.take_held())
        self._news.extend(
            f"[git: not done, because nobody could be asked: {one.effect}]" for one in self.take_addresses()
        )
        if self._git is not None:
            await in_thread(self._git.remove)
        if self._policy is not None:
            self._policy.watch(None)
            self._policy = None

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
        if self._watching is not None:
            self._watching.cancel()
        async with self._opening:
            await self._leave()
            if self._project is not None:
                self._project.close()
                self._project = None
            while self._git_folders:
                self._git_folders.pop().close()


def _is_below(place: Path, other: Path) -> bool:
    return place != other and place.is_relative_to(other)


def _name(path: Path, top: Path) -> str:
    """As `PolicyFiles` names it."""
    return str(path.relative_to(top)) if path.is_relative_to(top) else str(path)
