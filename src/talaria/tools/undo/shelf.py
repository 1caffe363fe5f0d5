"""The checkpoints of earlier versions, to be read: a numbered folder each, with a manifest and blobs.

What a crash left without a manifest does not count.
"""

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import msgspec

from talaria.core.trees import Root

MAX_MANIFEST_BYTES = 16 << 20
_MANIFEST = "manifest.json"


class SavedFile(msgspec.Struct, frozen=True):
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


class OldCheckpoint(msgspec.Struct, frozen=True):
    number: int
    at: float
    turn: str = ""
    why: str = ""
    files: tuple[SavedFile, ...] = ()


def digest(content: bytes) -> str:
    return sha256(content).hexdigest()


class OldCheckpoints:
    def __init__(self, folder: Path) -> None:
        """`checkpoints/SESSION` of a home."""
        self._sessions = folder.parent
        self._name = folder.name

    def numbers(self) -> list[int]:
        """Oldest first, of all folders. Raises `OSError`."""
        try:
            with self._opened() as folder:
                names = [entry.name for entry in folder.entries()]
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal())

    def all(self) -> Sequence[OldCheckpoint]:
        """Oldest first."""
        return [found for number in self.numbers() if (found := self._read(number)) is not None]

    def _read(self, number: int) -> OldCheckpoint | None:
        try:
            with self._opened() as folder:
                text = folder.read(f"{number}/{_MANIFEST}", MAX_MANIFEST_BYTES)
            return msgspec.convert(json.loads(text), OldCheckpoint)  # not of msgspec: names may not be UTF-8
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
            return None

    def blob(self, number: int, kept: SavedFile) -> bytes:
        """Raises `OSError`, also if it is not what was kept."""
        with self._opened() as folder:
            content = folder.read(f"{number}/{kept.blob}", kept.size_bytes + 1)
        if digest(content) != kept.blob:
            raise OSError(0, "what was kept of it is damaged")
        return content

    @contextmanager
    def _opened(self) -> Generator[Root]:
        with Root.open(self._sessions) as sessions, sessions.folder(self._name) as folder:
            yield folder
