"""The numbered folders of a session's checkpoints: a manifest and blobs each, readable by nobody else.

All functions raise `OSError`; what a crash left without a manifest does not count.
"""

import fcntl
import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import msgspec

from talaria.trees import Root

MAX_MANIFEST_BYTES = 16 << 20
_MANIFEST = "manifest.json"


class Kept(msgspec.Struct, frozen=True):
    """What a file was before it was changed."""

    path: str
    was_there: bool
    blob: str = ""
    """The name of its content; empty: it was not there, or could not be kept."""
    mode: int = 0
    size_bytes: int = 0
    left: str = ""
    """The digest of what the change left there; empty: nothing."""

    @property
    def is_lost(self) -> bool:
        return self.was_there and not self.blob


class Checkpoint(msgspec.Struct, frozen=True):
    number: int
    at: float
    turn: str = ""
    why: str = ""
    """Of one that no turn made."""
    files: tuple[Kept, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(kept.size_bytes for kept in self.files if kept.blob)

    def find(self, path: Path) -> Kept | None:
        return next((kept for kept in self.files if kept.path == str(path)), None)


def digest(content: bytes) -> str:
    return sha256(content).hexdigest()


class Shelf:
    def __init__(self, folder: Path) -> None:
        """`checkpoints/SESSION` of a home."""
        self._sessions = folder.parent
        self._name = folder.name

    @contextmanager
    def locked(self) -> Generator[None]:
        """Against other threads and processes; the folder is there from now on."""
        with (
            Root.make(self._sessions) as sessions,
            sessions.make_folder(self._name, 0o700) as folder,
            folder.append(".lock", 0o600) as lock,
        ):
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def numbers(self) -> list[int]:
        """Oldest first, of all folders."""
        try:
            with self._opened() as folder:
                names = [entry.name for entry in folder.entries()]
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal())

    def all(self) -> Sequence[Checkpoint]:
        """Oldest first."""
        return [found for number in self.numbers() if (found := self.read(number)) is not None]

    def read(self, number: int) -> Checkpoint | None:
        try:
            with self._opened() as folder:
                text = folder.read(f"{number}/{_MANIFEST}", MAX_MANIFEST_BYTES)
            return msgspec.convert(json.loads(text), Checkpoint)  # not of msgspec: names may be no UTF-8
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
            return None

    def write(self, checkpoint: Checkpoint) -> None:
        text = json.dumps(msgspec.to_builtins(checkpoint), indent=1)
        self._put(checkpoint.number, _MANIFEST, text.encode())

    def add(self, number: int, content: bytes) -> str:
        """The name under which `blob` finds it."""
        name = digest(content)
        self._put(number, name, content)
        return name

    def blob(self, number: int, kept: Kept) -> bytes:
        with self._opened() as folder:
            content = folder.read(f"{number}/{kept.blob}", kept.size_bytes + 1)
        if digest(content) != kept.blob:
            raise OSError(0, "what was kept of it is damaged")
        return content

    def drop(self, number: int) -> None:
        with self._opened() as folder:
            folder.remove_tree(str(number))

    def _put(self, number: int, name: str, content: bytes) -> None:
        with self._opened() as folder, folder.make_folder(str(number), 0o700) as made:
            made.replace(name, content, mode=0o600)

    @contextmanager
    def _opened(self) -> Generator[Root]:
        with Root.open(self._sessions) as sessions, sessions.folder(self._name) as folder:
            yield folder
