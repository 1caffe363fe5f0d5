"""What lies in a project and is not for its commands: hooks of repositories in it, sockets of processes elsewhere.

Commands of earlier sessions may have put links anywhere, also to our own code: what is guarded is really there, below
the project, and is looked at through open folders.
"""

import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from talaria.trees import Entry, Root

MAX_FOLDERS = 2_000
"""That are looked into, the nearest first: so nobody waits long for the first command in a large project."""
MAX_REPOSITORIES = 50
_PASSED_OVER = frozenset({"node_modules", ".venv", "venv", "__pycache__", "target", ".tox", ".mypy_cache", ".git"})
"""Made by programs, large, and no place for a repository."""
_LISTENING = Path("/proc/net/unix")


class Inside(msgspec.Struct, frozen=True):
    policy: tuple[Path, ...] = ()
    """Not to be changed."""
    sockets: tuple[Path, ...] = ()
    """Not to be reached: somebody outside listens."""


def look(project: Path) -> Inside:
    repositories: list[str] = []
    sockets: list[str] = []
    with Root.open(project) as root:
        for folder, entry in root.descend(_is_entered, MAX_FOLDERS):
            name = f"{folder}/{entry.name}".lstrip("/")
            if entry.name == ".git" and len(repositories) < MAX_REPOSITORIES:
                repositories.append(name)
            elif not entry.is_plain_file and not entry.is_folder and _is_socket(root, name):
                sockets.append(name)
        policy = tuple(project / place for git in repositories for place in _of(root, git))
    names = _listening() if sockets else frozenset[str]()
    return Inside(policy, tuple(project / name for name in sockets if name.rpartition("/")[2] in names))


def guarded(roots: Sequence[Path], places: Iterator[Path]) -> Iterator[Path]:
    """Those of some places that can be guarded where they really are: in one of the folders that can be written."""
    for place in places:
        root = next((root for root in roots if place.is_relative_to(root)), None)
        if root is None:
            continue
        with Root.open(root) as opened:
            found = opened.find(str(place.relative_to(root)))
        if found is not None and not stat.S_ISLNK(found.st_mode):
            yield place
            continue
        if found is not None:
            yield place.parent  # a link is guarded by its folder: else another could replace it
        target = leads_to(place, roots)
        if target is not None:
            yield target


def leads_to(place: Path, roots: Sequence[Path]) -> Path | None:
    """Where it is by its true name; None: outside of these folders, so no command can write there."""
    try:
        real = place.resolve()
    except (OSError, RuntimeError):  # a loop of links
        return None
    return real if any(real.is_relative_to(root) and real != root for root in roots) else None


def _is_entered(entry: Entry) -> bool:
    return entry.name not in _PASSED_OVER


def _is_socket(root: Root, name: str) -> bool:
    found = root.find(name)
    return found is not None and stat.S_ISSOCK(found.st_mode)


def _of(root: Root, git: str) -> Iterator[str]:
    """A `.git` that is a file leads to a repository elsewhere; one that is a link is not followed."""
    found = root.find(git)
    if found is None or stat.S_ISLNK(found.st_mode):
        return
    if stat.S_ISREG(found.st_mode):
        yield git
        return
    inner = {name: root.find(f"{git}/{name}") for name in ("hooks", "config")}
    if any(one is not None and stat.S_ISLNK(one.st_mode) for one in inner.values()):
        yield git
    else:
        yield from (f"{git}/{name}" for name, one in inner.items() if one is not None)


def _listening() -> frozenset[str]:
    """The names of sockets in our network: what a sandbox made is in another, and may be made anew. Folders do not
    count, because a socket may have been bound from anywhere."""
    try:
        lines = _LISTENING.read_text(encoding="utf-8", errors="replace").splitlines()[1:]
    except OSError:
        return frozenset()
    paths = (line.split(maxsplit=7)[7:] for line in lines)
    return frozenset(path.rpartition("/")[2] for (path,) in filter(None, paths))
