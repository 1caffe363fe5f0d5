"""What lies in a project and is not for its commands: hooks of repositories in it, sockets of processes elsewhere."""

import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

MAX_FOLDERS = 2_000
"""That are looked into, the nearest first: so nobody waits long for the first command in a large project."""
MAX_REPOSITORIES = 50
_PASSED_OVER = frozenset({"node_modules", ".venv", "venv", "__pycache__", "target", ".tox", ".mypy_cache"})
"""Made by programs, large, and no place for a repository."""
_LISTENING = Path("/proc/net/unix")


class Inside(msgspec.Struct, frozen=True):
    policy: tuple[Path, ...] = ()
    """Not to be changed."""
    sockets: tuple[Path, ...] = ()
    """Not to be reached: somebody outside listens."""


def look(project: Path) -> Inside:
    repositories: list[Path] = []
    sockets: list[Path] = []
    for entry in _entries(project):
        with suppress(OSError):
            if entry.name == ".git" and len(repositories) < MAX_REPOSITORIES:
                repositories.append(Path(entry.path))
            elif _is_neither_file_nor_folder(entry) and Path(entry.path).is_socket():
                sockets.append(Path(entry.path))
    names = _listening() if sockets else frozenset[str]()
    return Inside(
        tuple(place for git in repositories for place in _of(git)),
        tuple(socket for socket in sockets if socket.name in names),
    )


def _is_neither_file_nor_folder(entry: "os.DirEntry[str]") -> bool:
    """Known without another look at the disk."""
    return not entry.is_file(follow_symlinks=False) and not entry.is_dir(follow_symlinks=False)


def _entries(project: Path) -> Iterator["os.DirEntry[str]"]:
    waiting = deque([str(project)])
    for _ in range(MAX_FOLDERS):
        if not waiting:
            return
        with suppress(OSError), os.scandir(waiting.popleft()) as entries:
            for entry in entries:
                yield entry
                if entry.is_dir(follow_symlinks=False) and entry.name not in (".git", *_PASSED_OVER):
                    waiting.append(entry.path)


def _of(git: Path) -> Iterator[Path]:
    """A `.git` that is a file leads to a repository elsewhere."""
    if git.is_file():
        yield git
    yield from (place for name in ("hooks", "config") if (place := git / name).exists())


def _listening() -> frozenset[str]:
    """The names of sockets in our network: what a sandbox made is in another, and may be made anew. Folders do not
    count, because a socket may have been bound from anywhere."""
    try:
        lines = _LISTENING.read_text(encoding="utf-8", errors="replace").splitlines()[1:]
    except OSError:
        return frozenset()
    paths = (line.split(maxsplit=7)[7:] for line in lines)
    return frozenset(path.rpartition("/")[2] for (path,) in filter(None, paths))
