"""The port of the undo store: what projects hold, what turns changed in them, and the content to
put back.

Content is kept once under its SHA-256, in compressed pieces. All methods block."""

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

PIECE_BYTES = 4 << 20


class PathState(NamedTuple):
    """What is at a path; the mode 0: nothing."""

    mode: int = 0
    """With the type."""
    size: int = 0
    inode: int = 0
    links: int = 0
    content: bytes = b""
    """SHA-256 of a file's content, the target of a link; empty for others, and where it is not
    known."""

    def is_like(self, other: "PathState") -> bool:
        """The same to whoever looks at it by this path."""
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
    """The process in which a call of it runs; empty: none does."""


class ChangeRow(NamedTuple):
    path: str
    """Relative to the project, or absolute."""
    before: PathState
    left_mode: int
    left_content: bytes
    is_sure: bool
    """False: it may have been the person, or a background process."""


class Packed(NamedTuple):
    """The content of a file, ready to be kept."""

    digest: bytes
    pieces: tuple[tuple[int, bytes], ...]
    """Size, and the piece itself: compressed if that is shorter."""


def pack(content: bytes) -> Packed:
    pieces = tuple(pack_piece(content[at : at + PIECE_BYTES]) for at in range(0, max(1, len(content)), PIECE_BYTES))
    return Packed(hashlib.sha256(content).digest(), pieces)


def pack_piece(piece: bytes) -> tuple[int, bytes]:
    packed = zlib.compress(piece, 1) if len(piece) > 100 else piece
    return len(piece), packed if len(packed) < len(piece) else piece


class UndoStore(Protocol):
    """Methods raise errors of ours where the store cannot be used."""

    def transaction(self, *, survives_power_cut: bool = False) -> AbstractContextManager[object]:
        """What was done in it survives a crash of this process. Within another one it is part of
        that."""
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
        """What is not recorded, and why: what is there, or was at some time since then."""
        ...

    def set_excluded(self, project: int, left_out: Mapping[str, str], now: float) -> None: ...

    def add_content(self, packed: Packed) -> None: ...

    def add_piece(self, digest: bytes, number: int, size: int, piece: bytes) -> None: ...

    def has_content(self, digest: bytes) -> bool: ...

    def drop_content(self, digest: bytes) -> None: ...

    def content(self, digest: bytes) -> Iterator[bytes]:
        """Piece by piece. Raises `StoreDamaged` at its end if it is not what was kept."""
        ...

    def checkpoints(self, session: str) -> list[CheckpointRow]:
        """Oldest first."""
        ...

    def open_checkpoints(self, project: int) -> list[CheckpointRow]:
        """Those with a call that runs, or that nobody has seen the end of."""
        ...

    def latest_checkpoint(self, session: str) -> CheckpointRow | None: ...
    def put_checkpoint(self, row: CheckpointRow) -> None: ...

    def set_owner(self, session: str, number: int, owner: str) -> None: ...

    def changes(self, session: str, number: int) -> dict[str, ChangeRow]: ...

    def put_changes(self, session: str, number: int, changes: Iterable[ChangeRow]) -> None:
        """What was there before is kept from the first time."""
        ...

    def has_created(self, session: str, path: str) -> bool:
        """Whether something is at this absolute path that was not there before a turn of this
        session."""
        ...

    def forget(self, sessions: Sequence[str]) -> None: ...

    def drop(self, rows: Iterable[CheckpointRow]) -> None: ...

    def oldest(self) -> list[CheckpointRow]: ...

    def collect(self) -> None:
        """Remove what no checkpoint needs: projects without one, and content without a name."""
        ...

    def size_bytes(self) -> int:
        """Of what is in use."""
        ...
