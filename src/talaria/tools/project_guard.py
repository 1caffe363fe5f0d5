"""Guards the files in a project that other programs obey, while commands of one session can change the project.

The sandbox guards them by mounts, and those that somebody outside replaces are guarded again. What commands have
changed anyway moves to the quarantine after each command, until the person has been asked about it.
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from talaria.core.aio import complete, in_thread
from talaria.core.trees import Root
from talaria.tools.git_config import AddressChange
from talaria.tools.git_settings import GitSettings
from talaria.tools.policy_files import HeldChange, PolicyFiles
from talaria.tools.quarantine import Quarantine
from talaria.tools.sandbox.base import SandboxPolicy, ToolHost
from talaria.tools.sandbox.running_command import RunningCommand

if TYPE_CHECKING:
    from talaria.tools.folder_events import FolderEvents

log = logging.getLogger(__name__)


class ProjectGuard:
    """For one session; active from `begin`, when its sandbox starts, to `end`."""

    def __init__(
        self,
        project: Path,
        quarantine: Quarantine,
        git: GitSettings | None,
        find_host: Callable[[], ToolHost | None],
        find_neighbors: Callable[[], Sequence["ProjectGuard"]],
        open_events: Callable[[], "FolderEvents | None"],
        on_new_file: Callable[[], None],
    ) -> None:
        """`find_host`: the sandbox, if it runs. `find_neighbors`: the guards of other sessions in the same project or
        repository. `open_events`: the source of events about new files; not on the loop. `on_new_file`: called from
        the loop."""
        self._place = project
        self._quarantine = quarantine
        self._git = git
        self._find_host = find_host
        self._find_neighbors = find_neighbors
        self._open_events = open_events
        self._on_new_file = on_new_file
        self._project: Root | None = None
        """Opened when commands first got access: what they put in its place later is not the project."""
        self._git_folders: list[Root] = []
        self.policy: PolicyFiles | None = None
        """What is known about policy files; None: nothing runs here."""
        self.is_compared = True
        """Nothing has run since policy files were last compared."""
        self._comparing = asyncio.Lock()
        self.held: tuple[HeldChange, ...] = ()
        """Changes that nobody has been asked about yet."""
        self._addresses: list[AddressChange] = []
        self._warnings: list[str] = []
        self.held_count = 0
        """Changes that were held since the sandbox started."""
        self.guarded: tuple[Path, ...] = ()
        """What the sandbox guards by mounts."""
        self.running: set[RunningCommand] = set()

    async def open_folders(self, view: SandboxPolicy) -> None:
        """Open the project and git's folders outside it, unless they are open."""
        if self._project is not None and self._project.path == str(view.top):
            return

        def open_anew() -> None:
            self._close_folders()
            self._project = Root.open(view.top)
            self._git_folders = [Root.open(folder) for folder in view.git_folders]

        await in_thread(open_anew)

    def begin(self, view: SandboxPolicy) -> "asyncio.Future[None]":
        """Learns which files exist; to be awaited after the sandbox has started."""
        project = self._project
        assert project is not None  # noqa: S101
        compared = (view.top, *view.git_folders)
        below = [path for path in view.guarded if any(path.is_relative_to(folder) for folder in compared)]
        guarded, missing = ([_policy_name(path, view.top) for path in paths] for paths in (below, view.unwanted))
        self.policy = policy = PolicyFiles(
            project,
            self._quarantine,
            guarded,
            missing,
            first=_policy_name(view.project, view.top) if view.root is not None else "",
            outside=self._git_folders,
        )
        running = next((one.policy for one in self._find_neighbors() if one.may_have_changed_files), None)
        self.held_count = 0

        def learn() -> None:
            events = self._open_events()
            if events is not None:
                policy.watch(events.subscribe(policy.is_wanted, self._on_new_file))
            # Commands of another session may have changed something by now: the state before them counts.
            policy.learn(running.list_known() if running is not None else None)

        return asyncio.ensure_future(in_thread(learn))

    async def end(self, *, is_compared: bool) -> list[str]:
        """After the sandbox has ended. Returns notices of what nobody has been asked about.

        `is_compared`: nothing had changed before the sandbox began to close."""
        self.running.clear()
        if not is_compared:  # otherwise, changes since then are the person's own
            await self.compare()
            self.is_compared = True
        notices = [str(one) for one in self.take_held()]
        notices += [f"git: not done, because nobody could be asked: {one.effect}" for one in self.take_addresses()]
        if self._git is not None:
            await in_thread(self._git.remove)
        if self.policy is not None:
            self.policy.watch(None)
            self.policy = None
        return notices

    def close(self) -> None:
        self._close_folders()
        self._project = None
        self._git_folders = []

    def _close_folders(self) -> None:
        for folder in (self._project, *self._git_folders):
            if folder is not None:
                folder.close()

    def note_start(self, command: RunningCommand) -> None:
        self.is_compared = False
        self.running.add(command)

    @property
    def may_have_changed_files(self) -> bool:
        """Whether its commands may have made changes that were not compared yet."""
        return bool(self.running) or not self.is_compared

    async def refresh(self, host: ToolHost, find_guarded: Callable[[], tuple[Path, ...]]) -> bool:
        """Before a command, when none runs in the project: changes since the last command are the person's own, and are
        guarded from now on. False: they cannot be guarded. `find_guarded` is not called on the loop."""
        policy = self.policy
        if policy is None:
            return True
        if not self.is_compared:
            await self.compare()
        if any(one.may_have_changed_files for one in self._find_neighbors()):
            return await self.guard_again(host)
        if await in_thread(lambda: policy.accept() | bool(host.find_unguarded(self.guarded))):
            self.guarded = await in_thread(find_guarded)
            return await self.guard_again(host)
        return True

    async def guard_again(self, host: ToolHost) -> bool:
        """Guard again what somebody outside has replaced. False: that is impossible while the sandbox runs."""
        lost = await in_thread(lambda: host.find_unguarded(self.guarded))
        if not lost:
            return True
        git = self._git
        links = await in_thread(lambda: git.link_copies(lost)) if git is not None else {}
        guarded = await host.guard(lost, links)
        if guarded.stopped:
            names = ", ".join(map(str, lost))
            self.warn(
                f"{names} was replaced from outside and is guarded again. Stopped, because they had it open: "
                f"{'; '.join(guarded.stopped)}."
            )
        for path in guarded.linked:
            self.warn(f"{path} has a second name, by which commands can change it: look at it before you trust it.")
        for path, reason in guarded.failed:
            self.warn(
                f"{path} was replaced from outside and cannot be guarded again ({reason}). The shell and all processes "
                "of this session were ended; the next command starts a new shell."
            )
        return not guarded.failed

    async def compare(self) -> None:
        """Move what commands have changed to the quarantine, and save harmless settings of git."""
        policy = self.policy
        if policy is None:
            return
        async with self._comparing:
            is_idle = not self.running
            held = await complete(in_thread(policy.hold))
            # commands of a tool host that ends count as lost before they are killed
            self.is_compared = is_idle and not self.running and self._find_host() is not None
            is_saved = await complete(self._sync_git())
        for one in held:
            log.warning("in %s: %s", self._place, one)
        self.held += held
        self.held_count += len(held)
        if (held or is_saved) and (host := self._find_host()) is not None:
            await self.guard_again(host)  # a restored file is a new one, without a guard

    async def _sync_git(self) -> bool:
        """Whether files were replaced, and so lost their guards."""
        git = self._git
        if git is None or not await in_thread(lambda: git.may_have_changed):
            return False
        synced = await in_thread(lambda: git.sync(self._allow_change_everywhere))
        self._warnings += synced.messages
        self._addresses += synced.to_ask
        return bool(synced.saved)

    def warn(self, sentence: str) -> None:
        log.warning("in %s: %s", self._place, sentence)
        self._warnings.append(sentence)

    def take_warnings(self) -> tuple[str, ...]:
        """What the person and the model should know about guarded files."""
        warnings, self._warnings = tuple(self._warnings), []
        return warnings

    def take_held(self) -> tuple[HeldChange, ...]:
        held, self.held = self.held, ()
        return held

    def take_addresses(self) -> tuple[AddressChange, ...]:
        """New addresses in git's settings that nobody has been asked about yet."""
        addresses, self._addresses = tuple(self._addresses), []
        return addresses

    async def release(self, held: HeldChange) -> str:
        """Put back a change that the person allowed. Returns a sentence about the result."""
        policy, others = self.policy, [one.policy for one in self._find_neighbors()]
        if policy is None:
            return f"{held.name} was allowed, but the shell of this session is gone. It is in {held.to}."
        try:
            await complete(in_thread(lambda: policy.release(held)))
        except OSError as fault:
            return f"{held.name} was allowed, but cannot be put back: {fault.strerror}. It is in {held.to}."
        for other in filter(None, others):
            await in_thread(partial(other.adopt, policy.list_known(held.name)))
        return f"The person allowed the change to {held.name}."

    async def save_address(self, change: AddressChange) -> tuple[str, ...]:
        """Save an address that the person allowed. Returns what went wrong."""
        git = self._git
        if git is None:
            return ()
        async with self._comparing:
            fault = await complete(
                in_thread(lambda: git.save(change.file, change.changes, self._allow_change_everywhere))
            )
        if (host := self._find_host()) is not None:
            await self.guard_again(host)
        return (fault,) if fault else ()

    def allow_change(self, path: Path, content: bytes) -> AbstractContextManager[None]:
        """Entered while a tool writes a file with the person's consent. Not on the loop."""
        project, policy = self._project, self.policy
        if policy is not None and any(path.is_relative_to(folder.path) for folder in self._git_folders):
            return policy.allow_change(str(path), content)
        if project is None or policy is None or not path.is_relative_to(project.path):
            return nullcontext()
        return policy.allow_change(str(path.relative_to(project.path)), content)

    @contextmanager
    def _allow_change_everywhere(self, path: Path, content: bytes) -> Generator[None]:
        with ExitStack() as held:
            for guard in sorted((self, *self._find_neighbors()), key=id):  # they take locks: always in the same order
                held.enter_context(guard.allow_change(path, content))
            yield


def _policy_name(path: Path, top: Path) -> str:
    """The name that `PolicyFiles` uses."""
    return str(path.relative_to(top)) if path.is_relative_to(top) else str(path)
