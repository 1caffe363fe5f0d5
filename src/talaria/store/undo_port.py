"""The port of the undo store: what projects contain, what turns changed in them, and the content to restore.

Content is stored once under its SHA-256, in compressed pieces. All methods block."""

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

PIECE_BYTES = 4 << 20


class PathState(NamedTuple):
    """What is at a path; with mode 0, nothing."""

    mode: int = 0
    """Includes the file type."""
    size: int = 0
    inode: int = 0
    links: int = 0
    content: bytes = b""
    """The SHA-256 of a file's content, or the target of a link; empty for anything else, and if unknown."""

    def is_like(self, other: "PathState") -> bool:
        """Nobody who looks at this path sees a difference."""
        return (self.mode, self.content) == (other.mode, other.content)


ABSENT = PathState()


class KnownFile(NamedTuple):
    stamp: tuple[int, int, int, int, int, int]
    content: bytes


class CheckpointRow(NamedTuple):
    session: str
    number: int
    project: int
    turn: str
    at: float
    why: str
    owner: str
    """The process in which one of its calls runs; empty if none does."""


class ChangeRow(NamedTuple):
    path: str
    """Relative to the project, or absolute."""
    before: PathState
    left_mode: int
    left_content: bytes
    is_sure: bool
    """False: the person or a background process may have made the change."""


class Packed(NamedTuple):
    """The content of a file, ready to be stored."""

    digest: bytes
    pieces: tuple[tuple[int, bytes], ...]
    """The size of each piece, and the piece, compressed if that makes it shorter."""


def pack(content: bytes) -> Packed:
    pieces = tuple(pack_piece(content[at : at + PIECE_BYTES]) for at in range(0, max(1, len(content)), PIECE_BYTES))
    return Packed(hashlib.sha256(content).digest(), pieces)


def pack_piece(piece: bytes) -> tuple[int, bytes]:
    packed = zlib.compress(piece, 1) if len(piece) > 100 else piece
    return len(piece), packed if len(packed) < len(piece) else piece


class UndoStore(Protocol):
    """If the store cannot be used, methods raise our own errors."""

    def transaction(self, *, survives_power_cut: bool = False) -> AbstractContextManager[object]:
        """What is done in it survives a crash of this process. A nested one is part of the outer one."""
        ...

    def close(self) -> None: ...

    def version(self) -> int:
        """Changes when another process has written."""
        ...

    def project(self, path: str) -> int: ...

    def project_path(self, project: int) -> str: ...

    def files(self, project: int) -> dict[str, KnownFile]: ...

    def update_files(self, project: int, found: Mapping[str, KnownFile], gone: Iterable[str]) -> None: ...

    def list_excluded(self, project: int, since: float) -> dict[str, str]:
        """What is or was not recorded at any time since then, and why."""
        ...

    def set_excluded(self, project: int, left_out: Mapping[str, str], now: float) -> None: ...

    def add_content(self, packed: Packed) -> None: ...

    def add_piece(self, digest: bytes, number: int, size: int, piece: bytes) -> None: ...

    def has_content(self, digest: bytes) -> bool: ...

    def drop_content(self, digest: bytes) -> None: ...

    def content(self, digest: bytes) -> Iterator[bytes]:
        """Piece by piece. Raises `StoreDamaged` at the end if it is not what was stored."""
        ...

    def checkpoints(self, session: str) -> list[CheckpointRow]:
        """Oldest first."""
        ...

    def open_checkpoints(self, project: int) -> list[CheckpointRow]:
        """Checkpoints with a call that still runs, or whose end nobody has seen."""
        ...

    def latest_checkpoint(self, session: str) -> CheckpointRow | None: ...
    def put_checkpoint(self, row: CheckpointRow) -> None: ...

    def set_owner(self, session: str, number: int, owner: str) -> None: ...

    def changes(self, session: str, number: int) -> dict[str, ChangeRow]: ...

    def put_changes(self, session: str, number: int, changes: Iterable[ChangeRow]) -> None:
        """`before` of a path stays as it was first recorded."""
        ...

    def has_created(self, session: str, path: str) -> bool:
        """Whether a turn of this session created what is at this absolute path."""
        ...

    def forget(self, sessions: Sequence[str]) -> None: ...

    def drop(self, rows: Iterable[CheckpointRow]) -> None: ...

    def oldest(self) -> list[CheckpointRow]: ...

    def collect(self) -> None:
        """Remove what no checkpoint needs: projects without one, and content without a reference."""
        ...

    def size_bytes(self) -> int:
        """The size of what is in use."""
        ...
