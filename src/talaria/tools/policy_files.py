"""Files in a project that other programs obey unasked, compared after each command.

What a command has created or changed is held: it moves to the quarantine, the previous version is restored, and the
person is asked. It is unknown who changed a file while commands ran, so every change in that time is held; a change
while none ran was the person's own.

Mounts guard some of these files, but only at one level of the sandbox, and only files that exist when it starts.
"""

import errno
import os
import stat
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from talaria.core.trees import Entry, Root
from talaria.tools.git_config import has_new_address, is_harmless
from talaria.tools.protected import POLICY_AT_ANY_DEPTH, policy_place
from talaria.tools.quarantine import Quarantine, find_unexpected
from talaria.tools.repositories import ADDRESSES

if TYPE_CHECKING:
    from talaria.tools.folder_events import Subscription

MAX_SCANNED_FOLDERS = 2_000
"""Folders that are searched, the nearest first."""
MAX_POLICY_FILE_BYTES = 256 << 10
MAX_KEPT_BYTES = 8 << 20
"""Of all files together. Files beyond that cannot be restored."""
_SKIPPED_FOLDERS = frozenset({"node_modules", ".venv", "venv", "__pycache__", "target", ".tox", ".mypy_cache"})
"""Generated, large, and not obeyed by other programs."""
_OF_GIT = frozenset({"hooks", "modules", "worktrees", *ADDRESSES})
_STORES_OF_GIT = frozenset({"objects", "refs", "logs", "info", "lfs", "rr-cache"})
_NAME_REMOTES = tuple(f"/{name}" for name in ADDRESSES)
_BARE = frozenset({"HEAD", "config", "objects", "refs"})
"""A folder with these is a bare repository, with its own settings."""
_NAMES_TO_CHECK = frozenset({".git", *_BARE, *(name.rpartition("/")[2] for name in POLICY_AT_ANY_DEPTH)})
"""Names that may matter in a folder that is not known to be special."""


_NO_STAMP = (0, 0, 0, 0, 0)
"""Equals the stamp of no file."""


class PolicyFile(msgspec.Struct, frozen=True):
    """A file as it was when only the person could have changed it."""

    stamp: tuple[int, int, int, int, int]
    mode: int
    content: bytes | None
    """None: it is not a plain file, or too large to be kept. For a link: where it leads."""


class HeldChange(msgspec.Struct, frozen=True):
    """A change that waits for the person's answer."""

    name: str
    """Below the project: a file, a link, or a new folder as a whole."""
    to: Path | None
    """Where it is now; None: it could not be moved and is still in place."""
    before: PolicyFile | None = None
    """None: there was nothing."""
    fault: str = ""
    """What went wrong."""
    needs_consent: bool = False
    """It makes git or a login shell run something: only a person's own yes keeps it, even if questions are off."""

    def __str__(self) -> str:
        what = "appeared" if self.before is None else "was changed"
        changed = f"{self.name} {what} while commands ran, and other programs obey it"
        if self.to is None:
            return f"{changed}. It could not be moved away ({self.fault}): look at it before you trust it."
        back = "" if self.before is None or self.fault else ", and the previous version was restored"
        return f"{changed}. It was moved to {self.to}{back}.{f' {self.fault}' if self.fault else ''}"


class PolicyFiles:
    """Of one project, for one session. All methods block, and may be called from any thread."""

    def __init__(
        self,
        project: Root,
        quarantine: Quarantine,
        places: Sequence[str] = (),
        missing: Sequence[str] = (),
        *,
        first: str = "",
        outside: Sequence[Root] = (),
    ) -> None:
        """In addition to well-known names: `places` below the project that are obeyed, too, and `missing` ones that
        must not be created. `first`: a folder that is searched before the others. `outside`: folders of git that belong
        to the project; names in them are absolute."""
        self._project = project
        self._outside = {one.path: one for one in outside}
        self._starts = tuple(dict.fromkeys((first, "", *self._outside)))
        self._quarantine = quarantine
        self._places = frozenset(place for place in places if place not in ("", "."))
        self._missing = tuple(missing)
        self._events: Subscription | None = None
        self._known: dict[str, PolicyFile] = {}
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def watch(self, events: "Subscription | None") -> None:
        """None: there are no events, so everything is searched each time."""
        if self._events is not None:
            self._events.close()
        self._events = events

    def is_wanted(self, folder: str, name: str) -> bool:
        """Whether a new file with this name would matter."""
        path = f"{folder}/{name}" if folder else name
        return self._find_policy_place(path) is not None or name in _BARE or path in self._missing

    def _locate(self, name: str) -> tuple[Root, str]:
        """The opened folder that a name is in, and the name below it."""
        for path, root in self._outside.items():
            if f"{name}/".startswith(f"{path}/"):
                return root, name[len(path) + 1 :]
        return self._project, name

    def _find_policy_place(self, name: str) -> str | None:
        """The policy file or folder that a name belongs to."""
        named = (place for place in self._places if name == place or name.startswith(f"{place}/"))
        return policy_place(name) or next(named, None)

    def learn(self, known: Mapping[str, PolicyFile] | None = None) -> None:
        """Take the present state as correct; or what another session knows to be correct."""
        with self._lock:
            self._known.clear()
            self._kept_bytes = 0
            found = [name for start in self._starts for name in self._scan(start)]
            if known is None:
                self._accept(found)
            else:
                for name, file in known.items():
                    self._remember(name, file)

    def list_known(self, name: str = "") -> Mapping[str, PolicyFile]:
        """In the whole project, or in `name`."""
        with self._lock:
            return {one: file for one, file in self._known.items() if f"{one}/".startswith(f"{name}/" if name else "")}

    def adopt(self, known: Mapping[str, PolicyFile]) -> None:
        """Take over what the person has allowed in another session."""
        with self._lock:
            for name, file in known.items():
                self._remember(name, file)

    def accept(self) -> bool:
        """Accept all changes as the person's own. False: nothing has changed."""
        with self._lock:
            changed = list(self._find_changed())
            self._accept(changed)
            return bool(changed)

    @contextmanager
    def allow_change(self, name: str, content: bytes) -> Generator[None]:
        """Entered while a tool of ours writes this content with the person's consent."""
        with self._lock:
            yield
            if self._find_policy_place(name) is not None:
                self._accept_only(name, content)

    def hold(self) -> tuple[HeldChange, ...]:
        """Move changes that could do harm to the quarantine."""
        with self._lock:
            seen = {name: self._read(name) for name in self._find_changed()}  # once: it may change at any moment
            harmless = [name for name, file in seen.items() if self._is_harmless(name, file)]
            for name in harmless:
                self._remember(name, seen[name])
            places: dict[str, None] = {}
            for name in seen:
                if name not in harmless:
                    place = self._find_policy_place(name) or name
                    is_old = any(f"{known}/".startswith(f"{place}/") for known in self._known)
                    places[name if is_old else place] = None  # a new policy folder is held as a whole
            return tuple(self._hold_one(place) for place in places if place)

    def release(self, held: HeldChange) -> None:
        """Put a change back that the person wants. Raises `OSError`."""
        with self._lock:
            now = self._read(held.name)
            if now is not None and (held.before is None or now.content != held.before.content):
                raise OSError(errno.EEXIST, "something else is there now")
            assert held.to is not None  # noqa: S101  (what could not be moved is not asked about)
            shown = self._quarantine.read_contents(held.to.name)
            self._quarantine.release(held.to.name, *self._locate(held.name))
            for name, content in shown.items():
                self._accept_only(f"{held.name}/{name}".rstrip("/"), content)

    def _hold_one(self, name: str) -> HeldChange:
        before, needs = self._known.get(name), ".git" in name.split("/") or name in self._missing
        root, inner = self._locate(name)
        needs = needs or root is not self._project
        moved = next(iter(self._quarantine.move(root, [inner])), None)
        if moved is None or moved.to is None:
            return HeldChange(name, None, before, moved.reason if moved else "it is gone by now")
        if before is None:
            link = moved.name != inner
            named = moved.name if root is self._project else f"{root.path}/{moved.name}"
            return HeldChange(named, moved.to, needs_consent=needs or link)
        if before.content is None:
            return HeldChange(name, moved.to, before, "The previous version was too large to keep.")
        try:
            if stat.S_ISLNK(before.mode):
                root.make_link(inner, os.fsdecode(before.content))
            else:
                root.replace(inner, before.content, mode=stat.S_IMODE(before.mode))
        except OSError as fault:
            return HeldChange(name, moved.to, before, f"The previous version could not be restored: {fault.strerror}.")
        self._accept_only(name, before.content)
        return HeldChange(name, moved.to, before, needs_consent=needs)

    def _accept(self, names: Iterable[str]) -> None:
        for name in names:
            self._remember(name, self._read(name))

    def _accept_only(self, name: str, content: bytes) -> None:
        """Accept a file with this content. If a command has changed it again by now, it counts as changed."""
        now = self._read(name)
        if now is None or now.content == content or len(content) > MAX_POLICY_FILE_BYTES:
            self._remember(name, now)
        else:
            self._remember(name, PolicyFile(_NO_STAMP, now.mode, content))

    def _remember(self, name: str, known: PolicyFile | None) -> None:
        before = self._known.pop(name, None)
        self._kept_bytes -= len(before.content or b"") if before else 0
        if known is None:
            return
        if known.content is not None and self._kept_bytes + len(known.content) > MAX_KEPT_BYTES:
            known = PolicyFile(known.stamp, known.mode, None)
        self._kept_bytes += len(known.content or b"")
        self._known[name] = known

    def _find_changed(self) -> Iterator[str]:
        """The names of files and links that are new or changed; deleted ones are forgotten."""
        for name in list(self._known):
            found = self._stat(name)
            if found is None:
                self._remember(name, None)
            elif _make_stamp(found) != self._known[name].stamp:
                now, known = self._read(name), self._known[name]
                if now and now.content is not None and (now.content, now.mode) == (known.content, known.mode):
                    self._known[name] = now
                else:
                    yield name
        for name in self._find_new():
            if name not in self._known and self._stat(name) is not None:
                yield name

    def _find_new(self) -> Iterator[str]:
        """Files that may be new, including those in new folders."""
        with suppress(OSError):
            for name in self._missing:
                root, inner = self._locate(name)
                if (strange := find_unexpected(root, inner)) is not None:
                    yield strange if root is self._project else f"{root.path}/{strange}"
        events = self._events
        if events is None or not events.is_complete:
            if events is not None:
                events.is_complete = True
                events.take_names()
            for start in self._starts:
                yield from self._scan(start)
            return
        for name in events.take_names():
            found = self._stat(name)
            if found is None:
                continue
            if stat.S_ISDIR(found.st_mode):
                yield from self._scan(name)
            yield from self._find_policy_files(name, is_folder=stat.S_ISDIR(found.st_mode))

    def _scan(self, start: str) -> Iterator[str]:
        """The policy files below a folder. It and the folders in it are watched from now on."""
        waiting = [start]
        for count, folder in enumerate(waiting):
            if count == MAX_SCANNED_FOLDERS:
                return
            try:
                root, inner = self._locate(folder)
                with root.folder(inner) as here:
                    if self._events is not None:  # before listing, so that nothing new is missed
                        try:
                            self._events.watch(here, folder)
                        except OSError:  # the person has no more watches
                            self.watch(None)
                    found = here.entries()
            except OSError:
                continue
            is_policy = ".git" in folder.split("/") or (folder != "" and self._find_policy_place(folder) is not None)
            for entry in found:
                name = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_folder and name not in self._starts and _is_entered(folder, entry):
                    waiting.append(name)
                if is_policy or entry.name in _NAMES_TO_CHECK or name in self._places:  # cheap: most names are not
                    yield from self._find_policy_files(name, is_folder=entry.is_folder)

    def _find_policy_files(self, name: str, *, is_folder: bool) -> Iterator[str]:
        folder, _, last = name.rpartition("/")
        if not is_folder and self._find_policy_place(name) is not None:
            yield name
        elif last in _BARE and ".git" not in folder.split("/"):
            inside = f"{folder}/" if folder else ""
            if all(self._stat(f"{inside}{one}") is not None for one in _BARE):
                yield f"{inside}config"

    def _is_harmless(self, name: str, now: PolicyFile | None) -> bool:
        """Whether git itself writes this for a new repository, branch or worktree, and it runs nothing and leads
        nowhere else."""
        *above, last = name.split("/")
        if now is None:
            return True
        if now.content is None or not stat.S_ISREG(now.mode):
            return False
        before = self._known.get(name)
        if before is not None and before.content is not None and has_new_address(before.content, now.content):
            return False
        if ".git" not in above:
            if last == ".git":
                return self._leads_inside("/".join(above), now.content)
            return last == "config" and policy_place(name) is None and is_harmless(now.content)
        if (policy_place(name) or "").endswith(_NAME_REMOTES):
            return False
        if above[-1] == "hooks":
            return last.endswith(".sample")
        if last == "commondir":
            return above[-2:-1] == ["worktrees"] and now.content == b"../..\n"
        return last in ("config", "config.worktree") and is_harmless(now.content)

    def _leads_inside(self, folder: str, content: bytes) -> bool:
        """Whether a `.git` file leads to a repository in this project, which is compared as well."""
        word, _, target = content.decode("utf-8", "surrogateescape").strip().partition(": ")
        if word != "gitdir" or "\n" in target:
            return False
        root = self._project.path
        path = os.path.normpath(os.path.join(root, folder, target))  # noqa: PTH118  (looks at no file)
        parts = Path(path).parts
        return path.startswith(f"{root}/") and ".git" in parts and not {"worktrees", "modules"}.isdisjoint(parts)

    def _stat(self, name: str) -> os.stat_result | None:
        with suppress(OSError):  # a folder that we may not read is closed to others as well
            root, inner = self._locate(name)
            return root.find(inner)
        return None

    def _read(self, name: str) -> PolicyFile | None:
        """None: nothing is there. A change during the call is noticed the next time."""
        found = self._stat(name)
        if found is None:
            return None
        content = None
        root, inner = self._locate(name)
        try:
            if stat.S_ISLNK(found.st_mode):
                content = os.fsencode(root.read_link(inner))
            elif stat.S_ISREG(found.st_mode) and found.st_size <= MAX_POLICY_FILE_BYTES:
                content = root.read(inner, MAX_POLICY_FILE_BYTES)
        except OSError:
            content = None
        return PolicyFile(_make_stamp(found), found.st_mode, content)


def _make_stamp(found: os.stat_result) -> tuple[int, int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _is_entered(folder: str, entry: Entry) -> bool:
    """In a repository, only folders with something that git obeys."""
    if entry.name in _SKIPPED_FOLDERS:
        return False
    parts = folder.split("/")
    if ".git" not in parts:
        return not (folder.startswith("/") and entry.name in _STORES_OF_GIT)  # a bare repository outside
    inner = parts[parts.index(".git") + 1 :]
    return entry.name in _OF_GIT if not inner else entry.name not in _STORES_OF_GIT
