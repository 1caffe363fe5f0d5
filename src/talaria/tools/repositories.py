"""Finds what git obeys in the repositories below some folders: settings, hooks, and files that the settings name.

Git is not run: in a hostile repository it would run what it finds. Everything is read through folders that were opened
once; links are followed only to places inside them.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from talaria.core.trees import Entry, Root, read_file
from talaria.tools import git_config

MAX_FOLDERS = 2_000
"""Folders that are looked into below `.git`."""
MAX_SETTINGS = 1_000
"""Settings files that are read."""
MAX_INCLUDES = 20
"""Files that the settings of one repository include."""
MAX_WORK_TREES = 4
"""Of one repository: the one that it is in, the one that its settings name, that of a submodule."""
_MAX_POINTER_BYTES = 1 << 13
_MAX_FOLDERS_OF_ONE = 50
"""For a question about a single file."""

OBEYED = ("hooks", "config", "commondir")
"""In every repository. `commondir` leads git to another repository."""
ADDRESSES = ("remotes", "branches")
"""Folders in a repository whose files name remotes, as the settings do. They have long been out of use, but git still
obeys them."""
OF_WORKTREES = ("commondir", "gitdir")
"""In every folder below `worktrees`."""
WORKTREE_SETTINGS = "config.worktree"
OF_ALL = ("/etc/gitconfig", "~/.config/git/config", "~/.gitconfig")
"""Settings that apply to every repository: they may name hooks in its work tree."""
_NOT_FOR_MODULES = frozenset({"objects", "refs", "logs", "hooks", "info", "lfs", "rr-cache", "modules", "worktrees"})
"""Folders of a repository that hold no submodules, or are searched separately."""
_OF_REPOSITORIES = ("HEAD", "commondir", "objects", "refs")
HOOKS = (
    *("applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit", "prepare-commit-msg"),
    *("commit-msg", "post-commit", "pre-rebase", "post-checkout", "post-merge", "pre-push", "pre-receive", "update"),
    *("proc-receive", "post-receive", "post-update", "reference-transaction", "push-to-checkout", "pre-auto-gc"),
    *("post-rewrite", "sendemail-validate", "fsmonitor-watchman", "post-index-change"),
)


def is_repository(names: Iterable[str]) -> bool:
    """Whether git would treat a folder with these entries as a repository, whatever the folder is called."""
    found = frozenset(names)
    return "HEAD" in found and ("commondir" in found or found.issuperset(("objects", "refs")))


def resolve_inside(place: Path, roots: Sequence[Path]) -> Path | None:
    """The true name; None: it is outside these folders, so no command can write there."""
    try:
        real = place.resolve()
    except (OSError, RuntimeError):  # a loop of links
        return None
    return real if any(real.is_relative_to(root) and real != root for root in roots) else None


class EnclosingRepository(NamedTuple):
    """The repository that a project is in."""

    root: Path
    """Of the work tree."""
    folders: tuple[Path, ...] = ()
    """Folders outside the root that git writes to, for a linked worktree or a submodule."""


def find_enclosing_repository(project: Path, is_allowed: Callable[[Path], bool]) -> EnclosingRepository | None:
    """The nearest repository, found as git does but without running git; None: there is none that commands may use.
    `is_allowed` is asked about each folder that commands would get besides the project.

    A command may have written a `.git` file to get access to another repository. Such a file counts only if that
    repository names this work tree as its own.
    """
    for root in (project, *project.parents):
        if root != project and (not is_allowed(root) or root.stat().st_uid != os.geteuid()):
            return None
        try:
            found = (root / ".git").lstat()
            if stat.S_ISDIR(found.st_mode) and (root / ".git/HEAD").is_file():
                return EnclosingRepository(root)
            if not stat.S_ISREG(found.st_mode):
                continue
            git = _read_path_file(root / ".git")
            if git is None or not (git / "HEAD").is_file():
                return None
            common = git
            if git.parent.name == "worktrees" and _read_path_file(git / "commondir") == git.parent.parent:
                common = git.parent.parent
                is_mutual = _read_path_file(git / "gitdir") == root / ".git"
            else:
                is_mutual = any(_read_work_tree(git, name) == root for name in ("config", WORKTREE_SETTINGS))
        except (OSError, RuntimeError, ValueError):
            continue
        if not is_mutual:
            return None
        if common.is_relative_to(root):
            return EnclosingRepository(root)
        return EnclosingRepository(root, (common,)) if is_allowed(common) else None
    return None


def _read_path_file(file: Path) -> Path | None:
    """The path that is the whole content of a file."""
    text = os.fsdecode(read_file(file, _MAX_POINTER_BYTES)).removeprefix("gitdir:").strip()
    named = _resolve_setting(str(file.parent), text, has_home=False)
    return Path(named).resolve() if named is not None else None


def _read_work_tree(git: Path, name: str) -> Path | None:
    try:
        content = read_file(git / name, git_config.MAX_CONFIG_BYTES)
    except OSError:
        return None
    named = _resolve_setting(str(git), dict(git_config.parse_config(content)).get("core.worktree", ""))
    return Path(named).resolve() if named is not None else None


def is_obeyed(path: Path, project: Path) -> bool:
    """Whether git obeys a file in the repositories around it, or would if the file existed."""
    around = [folder for folder in path.parents if folder.is_relative_to(project)]
    try:
        with Root.open(project) as opened:
            found = RepositoryScan({str(project): opened}, _MAX_FOLDERS_OF_ONE)
            for folder in around:
                found.add(f"{folder}/.git")
                below = str(folder.relative_to(project))
                if is_repository(name for name in _OF_REPOSITORIES if opened.find(f"{below}/{name}") is not None):
                    found.add_folder(str(folder), str(folder))
    except OSError:
        return False
    return any(path.is_relative_to(place) for place in (*found.policy, *found.missing))


class _Settings(NamedTuple):
    """The relevant settings of one file. If a setting occurs several times, git takes the last."""

    hooks: str | None
    work_tree: str | None
    has_worktree_settings: bool
    includes: tuple[str, ...]
    """By their true names."""


class RepositoryScan:
    """Collects what git obeys; call `add` for each repository. Places are absolute paths, without links on the way to
    the opened folders."""

    def __init__(self, opened: Mapping[str, Root], max_folders: int = MAX_FOLDERS) -> None:
        """`opened`: the folders that commands can write, by their true names."""
        self.policy: dict[str, None] = {}
        """What exists and must not be changed."""
        self.missing: dict[str, None] = {}
        """What does not exist, but git would obey."""
        self._opened = opened
        self._seen: dict[str, set[str]] = {}
        """Repositories, with their work trees."""
        self._guarded: dict[str, str | None] = {}
        self._found: dict[str, dict[str, Entry]] = {}
        """The entries of each repository."""
        self._waiting: list[tuple[str, str]] = []
        self._folders_left = max_folders
        self._settings: dict[str, _Settings] = {}
        """By their files."""
        home = str(Path.home())
        self._of_all = tuple(file.replace("~", home, 1) for file in OF_ALL)

    def add(self, place: str) -> None:
        """`place` is a `.git`: a folder, or a file that names the repository. A link is not followed."""
        found = self._stat(place)
        if found is None:
            return
        if stat.S_ISDIR(found.st_mode):
            self.add_folder(place, _parent(place))
        elif stat.S_ISREG(found.st_mode):
            self.policy[place] = None
            if (git := self._read_pointer(place)) is not None:
                self.add_folder(git, _parent(place))

    def add_folder(self, git: str, work_tree: str) -> None:
        """A repository with those of its submodules and worktrees. A bare one is its own `work_tree`."""
        self._waiting.append((git, work_tree))
        while self._waiting:
            git, work_tree = self._waiting.pop()
            known = self._seen.setdefault(git, set())
            if work_tree in known or len(known) == MAX_WORK_TREES:
                continue
            known.add(work_tree)
            is_new = git not in self._found
            if is_new:
                found = self._found[git] = {entry.name: entry for entry in self._entries(git)}
                for name in OBEYED:
                    self._guard(f"{git}/{name}", found.get(name))
                if "hooks" in found:
                    self._add_hooks_that_are_links(f"{git}/hooks")
            has_worktree_settings = self._read_all_settings(git, work_tree)
            if "commondir" in self._found[git] or self._are_outside(git):
                common = self._read_pointer(f"{git}/commondir")
                if common is not None:  # only its settings count: git does not follow a second `commondir`
                    self._read_all_settings(common, work_tree)
                    self._waiting.append((common, common))
            if is_new:
                self._inspect_children(git, has_worktree_settings=has_worktree_settings)

    def _read_all_settings(self, git: str, work_tree: str) -> bool:
        for file in self._of_all:
            self._read_settings(file, git, work_tree)
        has_worktree_settings = self._read_settings(f"{git}/config", git, work_tree)
        own = f"{git}/{WORKTREE_SETTINGS}"
        if has_worktree_settings or WORKTREE_SETTINGS in self._found.get(git, ()):
            self._guard(own)
            self._read_settings(own, git, work_tree)
        return has_worktree_settings

    def _inspect_children(self, git: str, *, has_worktree_settings: bool) -> None:
        found = self._found[git]
        if any(name in found and not found[name].is_folder for name in ("modules", "worktrees")):
            self.policy[git] = None  # a link
            return
        for entry in self._entries(f"{git}/worktrees") if "worktrees" in found else ():
            place = f"{git}/worktrees/{entry.name}"
            for name in OF_WORKTREES:
                self._guard(f"{place}/{name}")
            if has_worktree_settings or self._stat(f"{place}/{WORKTREE_SETTINGS}") is not None:
                linked = self._read_pointer(f"{place}/gitdir")
                self._guard(f"{place}/{WORKTREE_SETTINGS}")
                self._read_settings(f"{place}/{WORKTREE_SETTINGS}", place, _parent(linked or f"{place}/"))
        if "modules" in found:
            self._waiting += ((module, module) for module in self._find_modules(f"{git}/modules"))

    def _find_modules(self, folder: str) -> Iterator[str]:
        """Repositories of submodules: their names may contain slashes, so they may be at any depth."""
        waiting = [folder]
        for here in waiting:
            found = self._entries(here)
            names = {entry.name for entry in found}
            is_module = here != folder and not names.isdisjoint(("HEAD", "config"))
            if is_module:
                yield here
            skipped = _NOT_FOR_MODULES if is_module else frozenset[str]()
            waiting += (f"{here}/{one.name}" for one in found if one.is_folder and one.name not in skipped)

    def _read_settings(self, file: str, git: str, work_tree: str) -> bool:
        """Guards what the settings name. Returns whether worktrees have their own settings."""
        has_worktree_settings = False
        files = {file: None}
        waiting = [file]
        for here in waiting:
            settings = self._summarize(here)
            has_worktree_settings |= settings.has_worktree_settings
            if settings.hooks is not None:
                self._add_hooks(settings.hooks, git, work_tree)
            if settings.work_tree is not None and (other := _resolve_setting(git, settings.work_tree)) is not None:
                self._waiting.append((git, other))
            waiting += (included for included in settings.includes if included not in files)
            del waiting[MAX_INCLUDES:]
            files.update(dict.fromkeys(waiting))
        return has_worktree_settings

    def _summarize(self, file: str) -> _Settings:
        """Guards the files that are included."""
        if file in self._settings:
            return self._settings[file]
        content = self._read(file, git_config.MAX_CONFIG_BYTES) if len(self._settings) < MAX_SETTINGS else None
        found: dict[str, str] = {}
        includes: dict[str, None] = {}
        for key, value in git_config.parse_config(content or b""):
            section, _, rest = key.partition(".")
            if section in ("include", "includeif") and rest.rpartition(".")[2] == "path":
                includes[value] = None
            found[key] = value
        included: dict[str, None] = {}
        for value in list(includes)[:MAX_INCLUDES]:
            named = _resolve_setting(_parent(file), value)
            if named is not None and (real := self._guard(named)) is not None:
                included[real] = None
            elif named is not None and self._are_outside(file, named):
                included[named] = None
        off = ("false", "no", "off", "0", "")
        self._settings[file] = _Settings(
            found.get("core.hookspath"),
            found.get("core.worktree"),
            found.get("extensions.worktreeconfig", "").lower() not in off,
            tuple(included),
        )
        return self._settings[file]

    def _add_hooks(self, value: str, git: str, work_tree: str) -> None:
        """A relative path starts where the hook runs: in the work tree, or in the repository after a push."""
        for base in dict.fromkeys((work_tree, git)):
            place = _resolve_setting(base, value)
            if place is None or place in self._guarded:
                continue
            if place in self._opened or any(f"{one}/".startswith(f"{place}/") for one in (work_tree, git)):
                for name in HOOKS:  # the folder holds too much to be guarded
                    self._guard(f"{place}/{name}")
            elif base == work_tree or self._stat(place) is not None:
                self._guard(place)
                self._add_hooks_that_are_links(place)

    def _add_hooks_that_are_links(self, folder: str) -> None:
        for entry in self._entries(folder):
            if not entry.is_folder and not entry.is_plain_file:
                self._guard(f"{folder}/{entry.name}")

    def _guard(self, place: str, entry: Entry | None = None) -> str | None:
        """The true name, if it exists and commands can write it. A link is guarded through its folder, because it could
        be replaced. `entry`: what is known about it."""
        if place in self._guarded:
            return self._guarded[place]
        named = place
        if self._split(place) is None:
            outside = resolve_inside(Path(place), [*map(Path, self._opened)])
            if outside is None:
                self._guarded[named] = None
                return None
            place = str(outside)
        if (entry is not None and (entry.is_folder or entry.is_plain_file)) or self._is_there(place):
            self.policy[place] = None
            self._guarded[named] = place
            return place
        real, link = self._resolve(place), None
        for parent in map(str, (*reversed(Path(place).parents), Path(place))):
            if (found := self._stat(parent)) is not None and stat.S_ISLNK(found.st_mode):
                link = parent
                break
        if link is not None and _parent(link) not in self._opened:
            self.policy[_parent(link)] = None
        if real is not None:
            self.policy[real] = None
        elif link is None:
            self.missing[place] = None
        self._guarded[named] = real
        return real

    def _is_there(self, place: str) -> bool:
        found = self._stat(place)
        return found is not None and not stat.S_ISLNK(found.st_mode)

    def _resolve(self, place: str) -> str | None:
        """The true name of what exists, following links inside its opened folder."""
        reached = self._split(place)
        if reached is None:
            return None
        root, tree, name = reached
        try:
            real = f"{root}/{tree.follow(name)}"
        except (OSError, ValueError):
            return None
        return real if self._is_there(real) else None

    def _read_pointer(self, file: str) -> str | None:
        """The path that is the whole content of a file."""
        content = self._read(file, _MAX_POINTER_BYTES)
        if content is None:
            return None
        text = content.decode("utf-8", "surrogateescape").removeprefix("gitdir:").strip()
        return _resolve_setting(_parent(file), text, has_home=False)

    def _read(self, file: str, limit_bytes: int) -> bytes | None:
        """None: it does not exist. Commands cannot change what is outside, so that is simply read."""
        reached = self._split(real) if (real := self._resolve(file)) is not None else None
        try:
            if reached is not None:
                return reached[1].read(reached[2], limit_bytes)
            return read_file(file, limit_bytes) if self._split(file) is None else None
        except (OSError, ValueError):
            return None

    def _are_outside(self, *places: str) -> bool:
        return all(self._split(place) is None for place in places)

    def _split(self, place: str) -> tuple[str, Root, str] | None:
        """The opened folder that a place is in, and its name there; None: it is in none."""
        for root, tree in self._opened.items():
            if f"{place}/".startswith(f"{root}/"):
                return root, tree, place[len(root) + 1 :]
        return None

    def _stat(self, place: str) -> os.stat_result | None:
        reached = self._split(place)
        try:
            return reached[1].find(reached[2]) if reached else None
        except (OSError, ValueError):  # we may not look, or it has a NUL in its name
            return None

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


def _resolve_setting(base: str, value: str, *, has_home: bool = True) -> str | None:
    """A path in git's settings."""
    value = value.removeprefix(":(optional)")
    if not value or "\0" in value or value.startswith("%("):
        return None
    if has_home and value.startswith("~"):
        try:
            value = str(Path(value).expanduser())
        except RuntimeError:  # the home of an unknown user
            return None
    return os.path.normpath(value if value.startswith("/") else f"{base}/{value}")


def _parent(place: str) -> str:
    return place.rpartition("/")[0]
