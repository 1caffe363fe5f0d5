"""What files held before a turn changed them, and how to get it back.

A checkpoint is made with the first change of a turn. Restoring one puts every file that was changed since back as it
was before that turn, and makes a checkpoint of what it replaces.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from talaria.files import harmless
from talaria.model.errors import BadInput
from talaria.model.ids import SessionId
from talaria.tools import places
from talaria.tools.diffs import unified, visible
from talaria.tools.places import Found
from talaria.tools.shelf import Checkpoint, Kept, Shelf, digest

MAX_FILE_BYTES = 32 << 20
MAX_SESSION_BYTES = 100 << 20
MAX_CHECKPOINTS = 200


def checkpoint_folder(home: Path, session: SessionId) -> Path:
    """As `Scope.checkpoints` says."""
    return home / "checkpoints" / harmless(session)


class Outcome(msgspec.Struct, frozen=True):
    """What became of one file."""

    path: Path
    what: Literal["restored", "removed", "same", "failed"]
    was_changed: bool = False
    """By somebody else, after our last change."""
    reason: str = ""


class Restored(msgspec.Struct, frozen=True):
    number: int
    outcomes: tuple[Outcome, ...]
    kept_as: int | None
    """The checkpoint of what was replaced; None: nothing was."""


class _Target(msgspec.Struct, frozen=True):
    """A file on its way back."""

    path: Path
    number: int
    kept: Kept
    left: str


class Checkpoints:
    """All methods block, and raise `OSError` when the disk does not let them."""

    def __init__(
        self,
        folder: Path,
        *,
        now: Callable[[], float] = time.time,
        max_bytes: int = MAX_SESSION_BYTES,
        max_count: int = MAX_CHECKPOINTS,
    ) -> None:
        self._shelf = Shelf(folder)
        self._now = now
        self._max_bytes = max_bytes
        self._max_count = max_count

    def list(self) -> Sequence[Checkpoint]:
        """Newest first."""
        return [found for found in reversed(self._shelf.all()) if found.files]

    def keep(self, path: Path, before: Found | None, becomes: bytes, turn: str) -> str:
        """Called before a file is changed. What the model should know about it; mostly nothing."""
        with self._shelf.locked():
            current = self._current(turn)
            known = current.find(path)
            kept = known or self._kept(current, path, before)
            self._shelf.write(_with(current, msgspec.structs.replace(kept, left=digest(becomes))))
            return "" if known else _notes(kept, self._trim())

    def diff(self, number: int) -> str:
        """What restoring would change, file by file."""
        return "\n".join(filter(None, (self._difference(target) for target in self._targets(number))))

    def restore(self, number: int) -> Restored:
        """Raises `BadInput` for a number that is not there."""
        with self._shelf.locked():
            targets = self._targets(number)
            current = Checkpoint(self._next(), self._now(), why=f"before going back to {number}")
            found = [self._looked_at(target) for target in targets]
            for target, state in zip(targets, found, strict=True):
                if not isinstance(state, Outcome):
                    kept = self._kept(current, target.path, state)
                    current = _with(current, msgspec.structs.replace(kept, left=target.kept.blob))
            if current.files:
                self._shelf.write(current)
            outcomes = tuple(
                state if isinstance(state, Outcome) else self._put_back(target, state, current)
                for target, state in zip(targets, found, strict=True)
            )
            self._trim()
        return Restored(number, outcomes, current.number if current.files else None)

    def _current(self, turn: str) -> Checkpoint:
        """That of the turn; where no turn is known, every call has one of its own."""
        numbers = self._shelf.numbers()
        latest = self._shelf.read(numbers[-1]) if numbers and turn else None
        return latest if latest and latest.turn == turn else Checkpoint(self._next(), self._now(), turn)

    def _next(self) -> int:
        return max(self._shelf.numbers(), default=0) + 1

    def _kept(self, current: Checkpoint, path: Path, before: Found | None) -> Kept:
        if before is None:
            return Kept(str(path), was_there=False)
        size = len(before.content)
        kept = Kept(str(path), was_there=True, mode=before.mode, size_bytes=size)
        if not before.is_whole or current.size_bytes + size > self._max_bytes:
            return kept
        return msgspec.structs.replace(kept, blob=self._shelf.add(current.number, before.content))

    def _trim(self) -> int:
        """How many of the oldest had to go. The newest always stays."""
        known = self._shelf.all()
        size, dropped = sum(one.size_bytes for one in known), 0
        for oldest in known[:-1]:
            if size <= self._max_bytes and len(known) - dropped <= self._max_count:
                break
            self._shelf.drop(oldest.number)
            size -= oldest.size_bytes
            dropped += 1
        return dropped

    def _targets(self, number: int) -> Sequence[_Target]:
        """Each file as it was at first, since then."""
        since = [one for one in self._shelf.all() if one.number >= number]
        if not since or since[0].number != number:
            raise BadInput(f"There is no checkpoint {number}.")
        found: dict[str, _Target] = {}
        for one in since:
            for kept in one.files:
                target = found.get(kept.path) or _Target(Path(kept.path), one.number, kept, "")
                found[kept.path] = msgspec.structs.replace(target, left=kept.left)
        return tuple(found.values())

    def _looked_at(self, target: _Target) -> Found | Outcome | None:
        """What is to be replaced; or at once the outcome, if nothing is."""
        try:
            state = places.read(target.path, MAX_FILE_BYTES)
        except OSError as fault:
            return Outcome(target.path, "failed", reason=_why(fault))
        if target.kept.is_lost:
            return Outcome(target.path, "failed", reason="what it held before was too large to keep")
        if state is not None and not state.is_whole:
            return Outcome(target.path, "failed", reason="what it holds now is too large to keep")
        return Outcome(target.path, "same") if _is_as_kept(state, target.kept) else state

    def _put_back(self, target: _Target, state: Found | None, current: Checkpoint) -> Outcome:
        replaced = current.find(target.path)
        if replaced is None or replaced.is_lost:
            return Outcome(target.path, "failed", reason="there is no room to keep what it holds now")
        was_changed = (digest(state.content) if state else "") != target.left
        try:
            if target.kept.was_there:
                content = self._shelf.blob(target.number, target.kept)
                places.write(target.path, content, state, mode=target.kept.mode)
                return Outcome(target.path, "restored", was_changed)
            places.remove(target.path)
            return Outcome(target.path, "removed", was_changed)
        except OSError as fault:
            return Outcome(target.path, "failed", was_changed, _why(fault))

    def _difference(self, target: _Target) -> str:
        name = visible(str(target.path))
        try:
            state = places.read(target.path, MAX_FILE_BYTES)
            then = self._shelf.blob(target.number, target.kept) if target.kept.blob else b""
        except OSError as fault:
            return f"[{name}: {_why(fault)}]"
        now = state.content if state else b""
        if b"\0" in now + then or target.kept.is_lost:
            return f"[{name}: {len(now):,} bytes now, {target.kept.size_bytes:,} then]"
        return unified(_text(now), _text(then), name)


def _with(current: Checkpoint, kept: Kept) -> Checkpoint:
    others = (one for one in current.files if one.path != kept.path)
    return msgspec.structs.replace(current, files=(*others, kept))


def _is_as_kept(state: Found | None, kept: Kept) -> bool:
    if state is None:
        return not kept.was_there
    return kept.was_there and (digest(state.content), state.mode) == (kept.blob, kept.mode)


def _why(fault: OSError) -> str:
    return fault.strerror or str(fault)


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _notes(kept: Kept, dropped: int) -> str:
    lost = "[what it held before was too large to keep: it cannot be rolled back]" if kept.is_lost else ""
    gone = f"[{dropped} of the oldest checkpoints were dropped to make room]" if dropped else ""
    return "\n".join(filter(None, (lost, gone)))
