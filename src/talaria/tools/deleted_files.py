"""Finds which files of a project a command would delete: how many, and which git could not restore.

Git is not run and no link is followed. Generated files (caches, installed packages) and files that this conversation
has created do not count.
"""

import fnmatch
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from talaria.core.trees import Entry, Root
from talaria.tools.git_index import IndexEntry, Repository, find_repository_around, open_repository
from talaria.tools.repositories import is_repository
from talaria.tools.shell_expansion import UNKNOWN, is_plain, name_matches, unescape
from talaria.tools.undo.scan import REGENERABLE

MAX_DELETED_UNASKED = 20
"""This many files that git has may be deleted without a question."""
MAX_FILES = 5_000
"""Looked at; a command that deletes more is always asked about."""
MAX_FOLDERS = 20_000
MAX_COMPARED = 200
"""Files whose content is compared with git's because they look modified."""
MAX_COMPARED_BYTES = 16 << 20
MAX_SHOWN = 6

_GENERATED = REGENERABLE | {"htmlcov"}
_GENERATED_FILES = re.compile(r".*\.py[co]|\.coverage|\.DS_Store", re.DOTALL)
_BUILT = frozenset({"build", "dist", "out", "target", "coverage", "_build", "bin", "obj"})
"""Folders that a build generates, if git ignores them and a build file is next to them."""
_DESCRIBES_BUILD = (
    *("package.json", "pyproject.toml", "setup.py", "Cargo.toml", "pom.xml", "build.gradle", "build.gradle.kts"),
    *("Makefile", "CMakeLists.txt", "meson.build", "go.mod", "conf.py"),
)
_CACHE_TAG = b"Signature: 8a477f597d28d172789f06886806bc55"
_GIT_REPLACES = frozenset({"COMMIT_EDITMSG", "MERGE_MSG", "gc.log", "gc.pid", "FETCH_HEAD", "ORIG_HEAD"})
_WRITTEN_BY_HAND = frozenset({"hooks", "info", "config", "config.worktree", "description"})
"""In a repository: writing these is not damage. The sandbox guards hooks and settings."""

Status = Literal["kept", "untracked", "changed"]
"""What git has of a file: the same content, nothing, or different content."""


class Losses:
    """What a command would destroy, for the person."""

    def __init__(self) -> None:
        self.files: dict[str, Status] = {}
        self.has_more_files = False
        """More than were looked at."""
        self.has_more_folders = False
        """More than were entered."""
        self.damaged: dict[str, None] = {}
        """Parts of repositories."""
        self.unknown: dict[str, None] = {}
        """Words whose meaning is only known at run time."""
        self.other_reasons: dict[str, None] = {}
        """Each a sentence without its full stop."""

    def reason(self) -> str | None:
        """Why a person is asked; None: no need to ask."""
        lost = [name for name, status in self.files.items() if status != "kept"]
        reasons: list[str] = []
        if len(self.files) > MAX_DELETED_UNASKED or self.has_more_files:
            count = f"more than {MAX_FILES:,}" if self.has_more_files else f"{len(self.files):,}"
            reasons.append(f"it deletes {count} files: {_list_names(list(self.files))}")
            if lost:
                reasons.append(f"git cannot bring back {len(lost):,} of them: {_list_names([*map(self._about, lost)])}")
        elif len(lost) == 1:
            how = "is not in git" if self.files[lost[0]] == "untracked" else "has changes that are not in git"
            reasons.append(f"it deletes {_list_names(lost)}, which {how}")
        elif lost and len({self.files[name] for name in lost}) == 1:
            how = "that are not in git" if self.files[lost[0]] == "untracked" else "with changes that are not in git"
            reasons.append(f"it deletes {len(lost)} files {how}: {_list_names(lost)}")
        elif lost:
            names = _list_names([*map(self._about, lost)])
            reasons.append(f"it deletes {len(lost)} files that git cannot bring back: {names}")
        if self.has_more_folders:
            reasons.append(f"it goes through more than {MAX_FOLDERS:,} folders, too many to tell what it deletes")
        if self.damaged:
            reasons.append(f"it damages the git repository: {_list_names([*self.damaged])}")
        if self.unknown:
            reasons.append(f"what it deletes is only known when it runs: {_list_names([*self.unknown])}")
        return "; ".join((*reasons, *self.other_reasons)) or None

    def _about(self, name: str) -> str:
        return f"{_shorten_name(name)} ({'not in git' if self.files[name] == 'untracked' else 'changed'})"


class _Ignore(NamedTuple):
    patterns: tuple[str, ...]
    has_exceptions: bool


class ProjectFiles:
    def __init__(self, root: Root | None, project: str, created_here: Callable[[Path], bool]) -> None:
        """`root` None: the project does not exist, so nothing in it can be deleted."""
        self.losses = Losses()
        self.project = project
        self._root = root
        self._created_here = created_here
        self._repositories: dict[str, Repository | None] = {}
        self._generated: dict[str, bool] = {}
        self._ignores: dict[str, _Ignore] = {}
        self._tracked_folders: dict[str, bool] = {}
        self._compared = 0
        self._folders = 0

    def locate(self, pattern: Sequence[str]) -> list[str]:
        """The names below the project that an absolute pattern matches; `""`: the project itself or a folder around
        it."""
        project = [part for part in self.project.split("/") if part]
        for at, part in enumerate(project):
            if at == len(pattern):
                return [""]
            if not name_matches(part, pattern[at]):
                return []
        found = [""]
        for at, part in enumerate(pattern[len(project) :], len(project) + 1):
            if part.strip(UNKNOWN) == "":  # anything in there, or all of it
                return found
            if is_plain(part):
                found = [_join(folder, unescape(part)) for folder in found]
                continue
            found = [
                _join(folder, entry.name)
                for folder in found
                for entry in self._entries(folder)
                if (entry.is_folder or at == len(pattern))
                and name_matches(entry.name, part)
                and (part[0] == "." or entry.name[0] != ".")
            ]
            del found[MAX_FILES:]
        return found

    def is_inside(self, pattern: Sequence[str]) -> bool:
        project = [part for part in self.project.split("/") if part]
        return len(pattern) >= len(project) and all(map(name_matches, project, pattern))

    def is_folder(self, name: str) -> bool:
        found = self._stat(name)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def is_there(self, name: str) -> bool:
        return self._stat(name) is not None

    def delete(self, name: str, *, is_deep: bool, is_tracked: bool = False) -> None:
        """`is_tracked`: only files that git tracks."""
        real = self._resolve(name)
        found = None if real is None else self._stat(real)
        if real is None or found is None or self._note_damage(real, is_writing=False):
            return
        parts = real.split("/") if real else []
        if any(self._is_generated("/".join(parts[: at + 1]), frozenset()) for at in range(len(parts))):
            return
        if not stat.S_ISDIR(found.st_mode):
            self._add(real, is_tracked=is_tracked)
        elif is_deep:
            for file in self._files_below(real, spots_damage=True):
                self._add(file, is_tracked=is_tracked)

    def overwrite(self, name: str) -> None:
        """Matters only in a repository."""
        real = self._resolve(name)
        if real is not None and self.is_there(real):
            self._note_damage(real, is_writing=True)

    def move_away(self, name: str) -> None:
        """To another place in the project: matters only in a repository."""
        real = self._resolve(name)
        if real is not None and self.is_there(real):
            self._note_damage(real, is_writing=False)

    def discard(self, command: str, folders_or_files: Sequence[str], *, is_all: bool = False) -> None:
        """Discards changes to files that git tracks. `is_all`: anywhere in the repository, and staged ones, too."""
        changed: list[str] = []
        has_staged = False
        for name in folders_or_files:
            real = self._resolve(name)
            folder = real if real is not None and self.is_folder(real) else (real or "").rpartition("/")[0]
            repository = None if real is None else self._find_repository(folder)
            if real is None or repository is None:
                continue
            has_staged |= is_all and repository.index.has_staged_changes
            meant = [
                (file, entry)
                for named, entry in repository.index.entries.items()
                if (file := repository.project_name(named)) is not None
                and (is_all or real in ("", file) or file.startswith(f"{real}/"))
            ]
            if len(meant) > MAX_FOLDERS:
                self.losses.other_reasons[f"`{command}` discards changes that are not committed"] = None
                return
            changed += [file for file, entry in meant if self._compare_with_git(file, entry, repository) == "changed"]
        if changed or has_staged:
            names = _list_names(changed) if changed else "what was staged"
            self.losses.other_reasons[f"`{command}` discards changes that are not committed: {names}"] = None

    def clean(self, name: str, *, is_deep: bool, has_ignored: bool) -> None:
        """Deletes what `git clean` would."""
        real = self._resolve(name)
        for file in () if real is None or not self.is_folder(real) else self._files_below(real, spots_damage=False):
            folder, _, _ = file.rpartition("/")
            is_near = is_deep or folder == real or self._has_tracked(folder)
            if is_near and self._find_index_entry(file) is None and (has_ignored or not self._is_ignored(file)):
                self._add(file)

    def search(self, name: str, is_wanted: Callable[[str, Entry], bool], max_depth: int) -> Iterator[str]:
        """Finds what `find` would."""
        real = self._resolve(name)
        if real is None or not self.is_folder(real):
            return
        waiting = [(real, 1)]
        for folder, depth in waiting:
            for entry in self._entries(folder):
                child = _join(folder, entry.name)
                if is_wanted(child, entry):
                    yield child
                if entry.is_folder and depth < max_depth and not self._is_generated(child, frozenset()):
                    waiting.append((child, depth + 1))

    def _files_below(self, folder: str, *, spots_damage: bool) -> Iterator[str]:
        """Files, except generated ones. Repositories are not entered."""
        waiting = [folder]
        for here in waiting:
            entries = self._entries(here)
            names = frozenset(entry.name for entry in entries)
            if here and self._is_generated(here, names):
                continue
            if here and is_repository(names):
                if spots_damage:
                    self._add_damage(here)
                continue
            for entry in entries:
                child = _join(here, entry.name)
                if entry.name == ".git":
                    if entry.is_folder and spots_damage:
                        self._add_damage(child)
                elif entry.is_folder:
                    waiting.append(child)
                else:
                    yield child
                if self.losses.has_more_files:
                    return

    def _add(self, file: str, *, is_tracked: bool = False) -> None:
        if file in self.losses.files or _GENERATED_FILES.fullmatch(file.rpartition("/")[2]):
            return
        entry = self._find_index_entry(file)
        if (entry is None and is_tracked) or self._created_here(Path(self.project, file)):
            return
        if len(self.losses.files) == MAX_FILES:
            self.losses.has_more_files = True
            return
        repository = self._find_repository(file.rpartition("/")[0])
        if entry is None or repository is None:
            self.losses.files[file] = "untracked"
        else:
            self.losses.files[file] = self._compare_with_git(file, entry, repository)

    def _note_damage(self, name: str, *, is_writing: bool) -> bool:
        """Whether it is in a repository; if that would be damaged, notes it."""
        parts = name.split("/")
        if ".git" in parts:
            at = parts.index(".git")
        else:
            bare = ("HEAD", "objects", "refs")
            folders = ["/".join(parts[: at + 1]) for at in range(len(parts))]
            found = (folders.index(one) for one in folders if all(self.is_there(f"{one}/{part}") for part in bare))
            at = next(found, None)
        if at is None:
            return False
        inner = parts[at + 1 :]
        is_harmless = inner and (
            inner[-1].endswith((".lock", ".sample")) or inner[0] in _GIT_REPLACES or inner[0] in _WRITTEN_BY_HAND
        )
        if not is_harmless or (inner[0] in _WRITTEN_BY_HAND and not is_writing and not inner[-1].endswith(".sample")):
            git = "/".join(parts[: at + 1])
            if inner or self.is_folder(git):
                self._add_damage(name, git)
        return True

    def _add_damage(self, name: str, git: str | None = None) -> None:
        if not self._created_here(Path(self.project, git or name, "HEAD")):
            self.losses.damaged[name] = None

    def _compare_with_git(self, file: str, entry: IndexEntry, repository: Repository) -> Status:
        found = self._stat(file)
        if found is None or self._root is None:
            return "kept"
        if entry.matches_times(found, repository.written_at_ns):
            return "kept"
        self._compared += 1
        if self._compared > MAX_COMPARED or found.st_size > MAX_COMPARED_BYTES:
            return "changed"
        try:
            is_link = stat.S_ISLNK(found.st_mode)
            content = os.fsencode(self._root.read_link(file)) if is_link else self._root.read(file, MAX_COMPARED_BYTES)
        except OSError:
            return "changed"
        return "kept" if entry.matches_content(content) else "changed"

    def _find_index_entry(self, file: str) -> IndexEntry | None:
        repository = self._find_repository(file.rpartition("/")[0])
        name = None if repository is None else repository.index_name(file)
        return None if repository is None or name is None else repository.index.entries.get(name)

    def _has_tracked(self, folder: str) -> bool:
        if folder not in self._tracked_folders:
            repository = self._find_repository(folder)
            below = None if repository is None else repository.index_name(f"{folder}/")
            names = () if repository is None else repository.index.entries
            self._tracked_folders[folder] = any(name.startswith(below or "") for name in names)
        return self._tracked_folders[folder]

    def _find_repository(self, folder: str) -> Repository | None:
        """The nearest repository around a folder."""
        if folder not in self._repositories:
            if self._root is not None and (found := self._stat(_join(folder, ".git"))) is not None:
                self._repositories[folder] = open_repository(self._root, self.project, folder, found)
            elif folder:
                self._repositories[folder] = self._find_repository(folder.rpartition("/")[0])
            else:
                self._repositories[folder] = None if self._root is None else find_repository_around(self.project)
        return self._repositories[folder]

    def _is_generated(self, folder: str, names: frozenset[str]) -> bool:
        """Whether programs generate it. `names`: what is in it; empty: not known."""
        if folder not in self._generated:
            self._generated[folder] = self._can_be_regenerated(folder, names)
        return self._generated[folder]

    def _can_be_regenerated(self, folder: str, names: frozenset[str]) -> bool:
        around, _, name = folder.rpartition("/")
        if name in _GENERATED or name.endswith(".egg-info"):
            return self.is_folder(folder)
        for mark in ("pyvenv.cfg", "CMakeCache.txt"):
            if mark in names if names else self.is_there(f"{folder}/{mark}"):
                return True
        if "CACHEDIR.TAG" in names if names else self.is_there(f"{folder}/CACHEDIR.TAG"):
            return self._read(f"{folder}/CACHEDIR.TAG", len(_CACHE_TAG)) == _CACHE_TAG
        if name not in _BUILT:
            return False
        if name == "target" and self.is_there(_join(around, "Cargo.toml")):
            return not self._has_tracked(folder)
        is_described = any(self.is_there(_join(around, one)) for one in _DESCRIBES_BUILD)
        return is_described and self._is_ignored(folder) and not self._has_tracked(folder)

    def _is_ignored(self, name: str) -> bool:
        """By a `.gitignore` of the project. One with exceptions does not count: they may include this name."""
        parts = name.split("/")
        for at in range(len(parts)):
            folder = "/".join(parts[:at])
            if folder not in self._ignores:
                content = self._read(_join(folder, ".gitignore"), 1 << 16) or b""
                lines = [line.strip() for line in content.decode("utf-8", "surrogateescape").splitlines()]
                patterns = tuple(line.rstrip("/") for line in lines if line and not line.startswith("#"))
                self._ignores[folder] = _Ignore(patterns, any(one.startswith("!") for one in patterns))
            ignore = self._ignores[folder]
            inner = parts[at:]
            names = ["/".join(inner[: end + 1]) for end in range(len(inner))]
            for pattern in () if ignore.has_exceptions else ignore.patterns:
                pattern = pattern.removeprefix("**/")  # noqa: PLW2901
                is_path = "/" in pattern
                tried = names if is_path else [name.rpartition("/")[2] for name in names]
                if any(fnmatch.fnmatchcase(name, pattern.lstrip("/")) for name in tried):
                    return True
        return False

    def _resolve(self, name: str) -> str | None:
        """Follows links on the way, as long as they stay in the project; None: it is elsewhere."""
        folder, _, last = name.rpartition("/")
        try:
            return _join(self._root.follow(folder), last) if self._root is not None else None
        except (OSError, ValueError):
            return None

    def _stat(self, name: str) -> os.stat_result | None:
        try:
            return self._root.find(name) if self._root is not None else None
        except (OSError, ValueError):
            return None

    def _read(self, name: str, limit_bytes: int) -> bytes | None:
        try:
            return self._root.read(name, limit_bytes) if self._root is not None else None
        except (OSError, ValueError):
            return None

    def _entries(self, folder: str) -> Sequence[Entry]:
        if self._root is None:
            return ()
        if self._folders >= MAX_FOLDERS:
            self.losses.has_more_folders = True
            return ()
        self._folders += 1
        try:
            with self._root.folder(folder) as opened:
                return sorted(opened.entries())
        except (OSError, ValueError):
            return ()


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _shorten_name(name: str) -> str:
    shown = name if name.isprintable() else ascii(name)
    return shown if len(shown) <= 100 else f"{shown[:60]}…{shown[-38:]}"


def _list_names(names: Sequence[str]) -> str:
    more = len(names) - MAX_SHOWN
    shown = ", ".join(map(_shorten_name, names[:MAX_SHOWN]))
    return f"{shown} and {more:,} more" if more > 0 else shown
