"""What is in a project but not for its commands: hooks of its repositories, sockets of processes elsewhere.

Commands of earlier sessions may have put links anywhere, even to our own code. So only what is really below the project
is guarded, and it is inspected through open folders.
"""

import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from talaria.core.trees import Entry, Root
from talaria.tools.repositories import RepositoryScan, is_repository, resolve_inside

MAX_FOLDERS = 2_000
"""That are searched, the nearest first, so that the first command in a large project does not wait long."""
MAX_MOUNTS = 200
"""For what is guarded. They take about 80 ms, and twice as many take three times as long."""
_PASSED_OVER = frozenset({"node_modules", ".venv", "venv", "__pycache__", "target", ".tox", ".mypy_cache", ".git"})
"""Made by programs, large, and not a place for repositories."""
_OF_BARE = frozenset({"objects", "refs", "logs", "hooks", "info"})
"""In a repository without a `.git`: large, and not a place for another repository."""
_LISTENING = Path("/proc/net/unix")


class Inside(msgspec.Struct, frozen=True):
    policy: tuple[Path, ...] = ()
    """Must not be changed."""
    sockets: tuple[Path, ...] = ()
    """Must not be reached: a process outside listens."""
    missing: tuple[Path, ...] = ()
    """Does not exist, and git would obey it if it did."""
    folders: tuple[str, ...] = ()
    """All folders of the project that were searched, relative to it: the first is the project itself, ""."""


def scan_project(project: Path, writes: Sequence[Path] = ()) -> Inside:
    """`writes`: other folders that commands can write, whose repositories and sockets count, too. The project comes
    first, however large it is."""
    with ExitStack() as held:
        opened = {str(project): held.enter_context(Root.open(project))}
        for root in writes:
            with suppress(OSError):  # a file, or gone by now
                opened.setdefault(str(root), held.enter_context(Root.open(root)))
        repositories = RepositoryScan(opened)
        folders: list[str] = []
        sockets: list[str] = []
        for root, tree in opened.items():
            for folder, entries in _walk(tree):
                here = f"{root}/{folder}" if folder else root
                names = {entry.name for entry in entries}
                if ".git" in names:
                    repositories.add(f"{here}/.git")
                if is_repository(names):
                    repositories.add_folder(here, here)
                if root == str(project):
                    folders.append(folder)
                others = (one.name for one in entries if not one.is_plain_file and not one.is_folder)
                for name in others:
                    found = tree.find(f"{folder}/{name}".lstrip("/"))
                    if found is not None and stat.S_ISSOCK(found.st_mode):
                        sockets.append(f"{here}/{name}")
    listening: set[str] = set()
    with suppress(OSError):  # sockets in our network: one that a sandbox made is in another, and may be made again
        for line in _LISTENING.read_text(encoding="utf-8", errors="replace").splitlines()[1:] if sockets else ():
            listening.update(path.rpartition("/")[2] for path in line.split(maxsplit=7)[7:])
    return Inside(
        policy=tuple(map(Path, repositories.policy)),
        # by name alone, because a socket may have been bound from any folder
        sockets=tuple(Path(name) for name in dict.fromkeys(sockets) if name.rpartition("/")[2] in listening),
        missing=tuple(map(Path, repositories.missing)),
        folders=tuple(folders),
    )


def find_guardable(roots: Sequence[Path], places: Iterator[Path]) -> Iterator[Path]:
    """Those places that can be guarded where they really are: in one of the folders that can be written."""
    for place in places:
        root = next((root for root in roots if place.is_relative_to(root)), None)
        if root is None:
            continue
        if place == root:  # it may be a file
            yield place
            continue
        with Root.open(root) as opened:
            found = opened.find(str(place.relative_to(root)))
        if found is not None and not stat.S_ISLNK(found.st_mode):
            yield place
            continue
        if found is not None:
            yield place.parent  # a link is guarded with its folder: otherwise another could replace it
        target = resolve_inside(place, roots)
        if target is not None:
            yield target


def outermost(places: Sequence[Path]) -> tuple[Path, ...]:
    """Without places inside others: a folder is hidden or guarded with all that is in it."""
    known = frozenset(places)
    return tuple(place for place in dict.fromkeys(places) if known.isdisjoint(place.parents))


def folders_between(roots: Sequence[Path], places: Sequence[Path]) -> tuple[Path, ...]:
    """Folders between what can be written and what is guarded in it, outermost first. They are mounted, too, because
    what is mounted cannot be moved away and replaced."""
    kept, outer = frozenset(places), frozenset(roots)
    found: dict[Path, None] = {}
    for place in places:
        parents = [*place.parents]
        while parents and parents[-1] not in outer:
            parents.pop()
        for parent in reversed(parents):
            if parent in kept:
                break
            if parent not in outer:
                found[parent] = None
    return tuple(found)


def fit_mounts(roots: Sequence[Path], places: Sequence[Path], max_mounts: int = MAX_MOUNTS) -> tuple[Path, ...]:
    """No more than a sandbox can mount, with nothing left open: if there are too many, folders around some of them are
    guarded as a whole. These are repositories, the deepest first, if that is enough; otherwise the deepest folder that
    contains enough of them."""
    kept = outermost(places)
    while (excess := len(mounts := (*folders_between(roots, kept), *kept)) - max_mounts) > 0:
        inner = frozenset(mounts)
        saved = Counter(parent for place in mounts for parent in place.parents if parent in inner)
        if not saved:
            return tuple(root for root in roots if any(place.is_relative_to(root) for place in kept))
        in_git = [folder for folder in saved if ".git" in folder.parts]
        enough = [folder for folder in saved if saved[folder] >= excess]
        if enough and sum(saved[folder] for folder in in_git if folder.name == ".git") < excess:
            chosen = _deepest(enough)[-1:]
        else:
            chosen = list[Path]()
            for folder in reversed(_deepest(in_git or [*saved])):
                chosen.append(folder)
                excess -= saved[folder]
                if excess <= 0:
                    break
        kept = outermost((*kept, *chosen))
    return kept


def _deepest(folders: Sequence[Path]) -> list[Path]:
    depth = max(len(folder.parts) for folder in folders)
    return [folder for folder in folders if len(folder.parts) == depth]


def _walk(tree: Root) -> Iterator[tuple[str, list[Entry]]]:
    """The entries of each folder, the nearest first; folders that cannot be listed are left out."""
    waiting = [""]
    for folder in waiting:
        try:
            with tree.folder(folder) as opened:
                entries = opened.entries()
        except OSError:
            continue
        yield folder, entries
        if len(waiting) >= MAX_FOLDERS:
            continue
        passed_over = _PASSED_OVER | _OF_BARE if is_repository(one.name for one in entries) else _PASSED_OVER
        inner = (one.name for one in entries if one.is_folder and one.name not in passed_over)
        waiting += (f"{folder}/{name}" if folder else name for name in inner)
        del waiting[MAX_FOLDERS:]
