"""What git obeys in the repositories of some folders: settings, hooks, and the files that the settings name.

Git itself is not asked: in a hostile repository it would run what it finds. Everything is looked at through folders
that were opened once; links are followed only to places inside of these.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from talaria.tools import gitconfig
from talaria.trees import Entry, Root

MAX_FOLDERS = 2_000
"""That are looked into below `.git` folders."""
MAX_SETTINGS = 1_000
"""Files with settings that are read, with those that are included."""
MAX_INCLUDES = 10
"""From file to file, as git does it."""
_MAX_POINTER_BYTES = 1 << 13
_MAX_FOLDERS_OF_ONE = 50
"""Where only one file is asked about."""

OBEYED = ("hooks", "config", "commondir")
"""In every repository. `commondir` leads git to another one."""
OF_WORKTREES = ("commondir", "gitdir")
"""In every folder below `worktrees`."""
WORKTREE_SETTINGS = "config.worktree"
_NOT_FOR_MODULES = frozenset({"objects", "refs", "logs", "hooks", "info", "lfs", "rr-cache", "modules", "worktrees"})
"""In a repository: no place for that of a submodule, or looked into by themselves."""
_OF_REPOSITORIES = ("HEAD", "commondir", "objects", "refs")
_HOOKS = (
    *("applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit", "prepare-commit-msg"),
    *("commit-msg", "post-commit", "pre-rebase", "post-checkout", "post-merge", "pre-push", "pre-receive", "update"),
    *("proc-receive", "post-receive", "post-update", "reference-transaction", "push-to-checkout", "pre-auto-gc"),
    *("post-rewrite", "sendemail-validate", "fsmonitor-watchman", "post-index-change"),
)


def is_repository(names: Iterable[str]) -> bool:
    """Whether git would take a folder that holds these for a repository, whatever it is called."""
    found = frozenset(names)
    return "HEAD" in found and ("commondir" in found or found.issuperset(("objects", "refs")))


def leads_to(place: Path, roots: Sequence[Path]) -> Path | None:
    """Where it is by its true name; None: outside of these folders, so no command can write there."""
    try:
        real = place.resolve()
    except (OSError, RuntimeError):  # a loop of links
        return None
    return real if any(real.is_relative_to(root) and real != root for root in roots) else None


def is_obeyed(path: Path, project: Path) -> bool:
    """Whether the repositories around a file obey it, or would if it were there."""
    around = [folder for folder in path.parents if folder.is_relative_to(project)]
    try:
        with Root.open(project) as opened:
            found = Repositories({str(project): opened}, _MAX_FOLDERS_OF_ONE)
            for folder in around:
                found.add(f"{folder}/.git")
                below = str(folder.relative_to(project))
                if is_repository(name for name in _OF_REPOSITORIES if opened.find(f"{below}/{name}") is not None):
                    found.add_folder(str(folder), str(folder))
    except OSError:
        return False
    return any(path.is_relative_to(place) for place in (*found.policy, *found.missing))


class Repositories:
    """Collects; `add` takes one repository after the other. Places are absolute paths, without links on the way to the
    opened folders."""

    def __init__(self, opened: Mapping[str, Root], max_folders: int = MAX_FOLDERS) -> None:
        """`opened`: the folders that commands can write, by their true names."""
        self.policy: dict[str, None] = {}
        """What is there and must not be changed."""
        self.missing: dict[str, None] = {}
        """What is not there, and git would obey it if it were."""
        self._opened = opened
        self._seen: set[tuple[str, str]] = set()
        self._waiting: list[tuple[str, str]] = []
        self._folders_left = max_folders
        self._settings_left = MAX_SETTINGS

    def add(self, place: str) -> None:
        """A `.git`: a folder, or a file that says where the repository is. One that is a link is not followed."""
        found = self._find(place)
        if found is None:
            return
        if stat.S_ISDIR(found.st_mode):
            self.add_folder(place, _parent(place))
        elif stat.S_ISREG(found.st_mode):
            self.policy[place] = None
            if (git := self._pointer(place)) is not None:
                self.add_folder(git, _parent(place))

    def add_folder(self, git: str, work_tree: str) -> None:
        """The repository itself, with those of its submodules and worktrees. `work_tree` of a bare one: itself."""
        self._waiting.append((git, work_tree))
        while self._waiting:
            known = self._waiting.pop()
            if known not in self._seen:
                self._seen.add(known)
                self._look_at(*known)

    def _look_at(self, git: str, work_tree: str) -> None:
        found = {entry.name: entry for entry in self._entries(git)}
        for name in OBEYED:
            self._guard(f"{git}/{name}", found.get(name))
        if "hooks" in found:
            self._add_hooks_that_are_links(f"{git}/hooks")
        has_worktree_settings = self._read_settings(f"{git}/config", git, work_tree)
        if has_worktree_settings or WORKTREE_SETTINGS in found:
            self._guard(f"{git}/{WORKTREE_SETTINGS}")
            self._read_settings(f"{git}/{WORKTREE_SETTINGS}", git, work_tree)
        if (common := self._pointer(f"{git}/commondir") if "commondir" in found else None) is not None:
            self._waiting.append((common, work_tree))
        if any(name in found and not found[name].is_folder for name in ("modules", "worktrees")):
            self.policy[git] = None  # a link
            return
        if "worktrees" in found:
            for entry in self._entries(f"{git}/worktrees"):
                self._add_worktree(f"{git}/worktrees/{entry.name}", has_settings=has_worktree_settings)
        if "modules" in found:
            self._waiting += ((module, module) for module in self._modules(f"{git}/modules"))

    def _add_worktree(self, place: str, *, has_settings: bool) -> None:
        for name in OF_WORKTREES:
            self._guard(f"{place}/{name}")
        if has_settings or self._find(f"{place}/{WORKTREE_SETTINGS}") is not None:
            linked = self._pointer(f"{place}/gitdir")
            self._guard(f"{place}/{WORKTREE_SETTINGS}")
            self._read_settings(f"{place}/{WORKTREE_SETTINGS}", place, _parent(linked or f"{place}/"))

    def _modules(self, folder: str) -> Iterator[str]:
        """Repositories of submodules: their names may have slashes, so they may be anywhere below."""
        waiting = [folder]
        for here in waiting:
            found = self._entries(here)
            names = {entry.name for entry in found}
            is_module = here != folder and not names.isdisjoint(("HEAD", "config"))
            if is_module:
                yield here
            passed_over = _NOT_FOR_MODULES if is_module else frozenset[str]()
            waiting += (f"{here}/{one.name}" for one in found if one.is_folder and one.name not in passed_over)

    def _read_settings(self, file: str, git: str, work_tree: str, depth: int = 0) -> bool:
        """Guards what they name. Returns whether worktrees have settings of their own."""
        has_worktree_settings = False
        for key, value in self._settings(file):
            section, _, rest = key.partition(".")
            if key == "core.hookspath":
                self._add_hooks(value, git, work_tree)
            elif key == "core.worktree":
                self._waiting += ((git, other) for other in (_named(git, value),) if other)
            elif key == "extensions.worktreeconfig":
                has_worktree_settings |= value.lower() not in ("false", "no", "off", "0", "")
            elif section in ("include", "includeif") and rest.rpartition(".")[2] == "path" and depth < MAX_INCLUDES:
                included = _named(_parent(file), value)
                if included is not None and (real := self._guard(included)) is not None:
                    has_worktree_settings |= self._read_settings(real, git, work_tree, depth + 1)
        return has_worktree_settings

    def _settings(self, file: str) -> Iterator[tuple[str, str]]:
        real = self._real(file)
        if real is None or self._settings_left == 0:
            return
        self._settings_left -= 1
        yield from gitconfig.entries(self._read(real, gitconfig.MAX_BYTES))

    def _add_hooks(self, value: str, git: str, work_tree: str) -> None:
        """A relative path begins where the hook runs: in the work tree, or in the repository after a push."""
        for base in dict.fromkeys((work_tree, git)):
            place = _named(base, value)
            if place is None:
                continue
            if place in self._opened or any(f"{one}/".startswith(f"{place}/") for one in (work_tree, git)):
                for name in _HOOKS:  # the folder is too much to be guarded
                    self._guard(f"{place}/{name}")
            elif base == work_tree or self._find(place) is not None:
                self._guard(place)
                self._add_hooks_that_are_links(place)

    def _add_hooks_that_are_links(self, folder: str) -> None:
        for entry in self._entries(folder):
            if not entry.is_folder and not entry.is_plain_file:
                self._guard(f"{folder}/{entry.name}")

    def _guard(self, place: str, entry: Entry | None = None) -> str | None:
        """Where it really is, if it is there and commands can write it. A link is guarded by its folder: else another
        could replace it. `entry`: what is known of it."""
        if self._split(place) is None:
            outside = leads_to(Path(place), [*map(Path, self._opened)])
            if outside is None:
                return None
            place = str(outside)
        if (entry is not None and (entry.is_folder or entry.is_plain_file)) or self._is_there(place):
            self.policy[place] = None
            return place
        real, link = self._real(place), self._first_link(place)
        if link is not None and _parent(link) not in self._opened:
            self.policy[_parent(link)] = None
        if real is not None:
            self.policy[real] = None
        elif link is None:
            self.missing[place] = None
        return real

    def _is_there(self, place: str) -> bool:
        found = self._find(place)
        return found is not None and not stat.S_ISLNK(found.st_mode)

    def _first_link(self, place: str) -> str | None:
        for parent in (*reversed(Path(place).parents), Path(place)):
            found = self._find(str(parent))
            if found is not None and stat.S_ISLNK(found.st_mode):
                return str(parent)
        return None

    def _real(self, place: str) -> str | None:
        """The true name of what is there, whatever links lead to it inside of its folder."""
        reached = self._split(place)
        if reached is None:
            return None
        root, tree, name = reached
        try:
            real = f"{root}/{tree.follow(name)}"
        except (OSError, ValueError):
            return None
        return real if self._is_there(real) else None

    def _pointer(self, file: str) -> str | None:
        """What a file names that consists of one path."""
        real = self._real(file)
        if real is None:
            return None
        text = self._read(real, _MAX_POINTER_BYTES).decode("utf-8", "surrogateescape")
        return _named(_parent(file), text.removeprefix("gitdir:").strip(), has_home=False)

    def _split(self, place: str) -> tuple[str, Root, str] | None:
        """The opened folder that a place is in, and its name there; None: in none of them."""
        for root, tree in self._opened.items():
            if f"{place}/".startswith(f"{root}/"):
                return root, tree, place[len(root) + 1 :]
        return None

    def _find(self, place: str) -> os.stat_result | None:
        reached = self._split(place)
        try:
            return reached[1].find(reached[2]) if reached else None
        except (OSError, ValueError):  # we may not look, or it has a NUL in its name
            return None

    def _read(self, place: str, limit_bytes: int) -> bytes:
        reached = self._split(place)
        try:
            return reached[1].read(reached[2], limit_bytes) if reached else b""
        except (OSError, ValueError):
            return b""

    def _entries(self, folder: str) -> Sequence[Entry]:
        reached = self._split(folder)
        if reached is None or self._folders_left == 0:
            return ()
        try:
            with reached[1].folder(reached[2]) as opened:
                self._folders_left -= 1
                return opened.entries()
        except (OSError, ValueError):
            return ()


def _named(base: str, value: str, *, has_home: bool = True) -> str | None:
    """A path in git's settings."""
    value = value.removeprefix(":(optional)")
    if not value or "\0" in value or value.startswith("%("):
        return None
    try:
        named = str(Path(value).expanduser()) if has_home else value
    except RuntimeError:  # the home of nobody
        return None
    return os.path.normpath(Path(base, named))


def _parent(place: str) -> str:
    return place.rpartition("/")[0]
