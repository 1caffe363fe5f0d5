"""Files as they were before a turn changed them, and how that is told."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from talaria.model.errors import StoreUnavailable
from talaria.tools.checkpoints import Checkpoints, Outcome, Restored
from talaria.tools.diffs import visible
from talaria.tools.shelf import Checkpoint

T = TypeVar("T")
LISTED = 20
_NAMED = 3
_CHANGED = "; somebody had changed it since"


def rolled_back(folder: Path, number: int | None) -> str:
    """What `/rollback` says. Blocks."""
    kept = Checkpoints(folder)
    if number is not None:
        restored = on_disk(lambda: kept.restore(number))
        return "\n".join(told(restored, "/rollback"))
    found = on_disk(kept.list)
    if not found:
        return "No file was changed in this conversation yet."
    return "\n".join([*listing(found), "/rollback N puts files back as they were before N."])


def on_disk(work: Callable[[], T]) -> T:
    try:
        return work()
    except OSError as fault:
        raise StoreUnavailable(f"The checkpoints cannot be used: {fault.strerror or fault}.") from fault


def listing(found: Sequence[Checkpoint]) -> Iterator[str]:
    for one in found[:LISTED]:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.at))
        names = ", ".join(visible(kept.path) for kept in one.files[:_NAMED])
        more = f" and {len(one.files) - _NAMED} more" if len(one.files) > _NAMED else ""
        yield f"{one.number:>4}  {when}  {names}{more}{f'  ({one.why})' if one.why else ''}"
    if len(found) > LISTED:
        yield f"[{len(found) - LISTED} older ones are there, too]"
    if found and found[-1].number > 1:
        yield f"[those before {found[-1].number} were dropped to make room]"


def told(restored: Restored, again: str) -> Iterator[str]:
    yield f"Back to before checkpoint {restored.number}:"
    yield from (f"  {_sentence(one)}" for one in restored.outcomes)
    if restored.kept_as is not None:
        yield f"What was replaced is kept: {again} {restored.kept_as} undoes this."


def _sentence(one: Outcome) -> str:
    path = visible(str(one.path))
    changed = _CHANGED if one.was_changed else ""
    match one.what:
        case "restored":
            return f"{path} restored{changed}"
        case "removed":
            return f"{path} removed: it was not there{changed}"
        case "same":
            return f"{path} is as it was"
        case "failed":
            return f"{path} NOT restored: {one.reason}{changed}"
