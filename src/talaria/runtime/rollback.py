"""The texts of `/rollback`, `/diff` and `/undo`: what turns changed in files, and how to put that back."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from talaria.core.errors import BadInput, StoreUnavailable
from talaria.core.messages import FileChange
from talaria.core.redaction import Redactor
from talaria.core.text import show_time
from talaria.tools.diffs import replace_surrogates
from talaria.tools.undo.checkpoints import Checkpoint, Checkpoints, RestoreReport, RestoreResult

T = TypeVar("T")
LISTED = 20
LISTED_FILES = 40
_NAMED = 3
_NOTHING = "No file was changed in this conversation yet."


def roll_back(kept: Checkpoints, number: int | None, *, everything: bool = False) -> str:
    """What `/rollback` says. Blocks."""
    if number is not None:
        restored = read_checkpoints(lambda: kept.restore(number, everything=everything))
        return "\n".join(describe_restored(restored, "/rollback"))
    found = read_checkpoints(kept.list)
    if not found:
        return _NOTHING
    return "\n".join([*list_checkpoints(found), "/rollback N puts files back as they were before N."])


def describe_differences(kept: Checkpoints, number: int | None, redactor: Redactor) -> str:
    """What `/diff` says: the changes since a checkpoint, or since the latest. Blocks."""
    if number is None:
        found = read_checkpoints(kept.list)
        if not found:
            return _NOTHING
        number = found[0].number
    changes = read_checkpoints(lambda: list(kept.changes_since(number, redactor)))
    if not changes:
        return f"Nothing has changed since checkpoint {number}."
    return "\n".join([f"Changed since checkpoint {number}:", *describe_changes(changes)])


def describe_changes(changes: Sequence[FileChange]) -> Iterator[str]:
    """As plain text. Git's internal files are only counted."""
    for change in changes:
        if is_git_internal(change.path):
            continue
        counts = f"  +{change.added} -{change.removed}" if change.added or change.removed else ""
        how = "" if change.kind == "changed" else f" ({change.kind})"
        note = f"  {change.note}" if change.note else ""
        yield f"{replace_surrogates(change.path)}{how}{counts}{note}"
        if change.diff:
            yield change.diff
    counted = Counter(change.kind for change in changes if is_git_internal(change.path))
    if counted:
        yield f".git: {', '.join(f'{count:,} files {kind}' for kind, count in counted.items())}"


def is_git_internal(path: str | Path) -> bool:
    return ".git" in Path(path).parts[:-1]


def describe_undone(kept: Checkpoints, turn: str) -> str:
    """What `/undo` adds: it does not undo changes to files. Blocks."""
    try:
        made = kept.of_turn(turn)
    except (OSError, StoreUnavailable):
        return ""
    if made is None:
        return ""
    return f"It changed {_names(made, short=True)}: /rollback {made.number} puts that back."


def _names(one: Checkpoint, *, short: bool = False) -> str:
    """The first few files; folders and git's internal files only if there is nothing else."""
    files = sorted(one.files, key=lambda kept: (kept.is_folder, is_git_internal(kept.path)))
    telling = [kept for kept in files if not kept.is_folder and not is_git_internal(kept.path)] or files
    names = ", ".join(replace_surrogates(kept.path.name if short else str(kept.path)) for kept in telling[:_NAMED])
    return f"{names} and {len(telling) - _NAMED} more" if len(telling) > _NAMED else names


def read_checkpoints(work: Callable[[], T]) -> T:
    try:
        return work()
    except OSError as fault:
        raise StoreUnavailable(f"The checkpoints cannot be used: {fault.strerror or fault}.") from fault


def list_checkpoints(found: Sequence[Checkpoint]) -> Iterator[str]:
    for one in found[:LISTED]:
        yield f"{one.number:>4}  {show_time(one.at)}  {_names(one)}{f'  ({one.why})' if one.why else ''}"
    if len(found) > LISTED:
        yield f"[and {len(found) - LISTED} older ones]"


def describe_restored(restored: RestoreReport, again: str, everything: str = "all") -> Iterator[str]:
    yield f"Back to before checkpoint {restored.number}:"
    needing = ("failed", "left")
    shown = [
        one
        for one in restored.outcomes
        if one.what == "failed" or not (one.is_folder or (is_git_internal(one.path) and one.what not in needing))
    ]
    first = sorted(shown, key=lambda one: one.what not in needing)
    yield from (f"  {_describe_result(one)}" for one in first[:LISTED_FILES])
    if len(shown) > LISTED_FILES:
        counts = Counter(one.what for one in first[LISTED_FILES:])
        yield "  … and " + ", ".join(f"{count:,} more {_COUNTED[what]}" for what, count in counts.items())
    internal = sum(is_git_internal(one.path) and one.what in ("restored", "removed") for one in restored.outcomes)
    if internal:
        yield f"  .git restored ({internal:,} files)"
    left = sum(one.what == "left" for one in restored.outcomes)
    if left:
        files = "file was" if left == 1 else "files were"
        yield f"{left:,} {files} left alone. To put everything back: {again} {restored.number} {everything}"
    yield from _describe_unrecorded(restored)
    if restored.saved_as is not None:
        yield f"What was replaced is kept: {again} {restored.saved_as} undoes this."


_COUNTED = {"restored": "restored", "removed": "removed", "same": "as they were", "left": "left", "failed": "failed"}


def _describe_unrecorded(restored: RestoreReport) -> Iterator[str]:
    """What cannot be restored because it was never recorded."""
    if restored.unrecorded:
        yield f"What commands changed here was not recorded: {restored.unrecorded}."
    by_reason: dict[str, Counter[str]] = {}
    for path, reason in restored.left_out.items():
        by_reason.setdefault(reason, Counter())[path.rpartition("/")[2]] += 1
    for reason, names in by_reason.items():
        shown = [
            f"{replace_surrogates(name)} ({count})" if count > 1 else replace_surrogates(name)
            for name, count in names.most_common(5)
        ]
        more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
        yield f"Not recorded, so not restored ({reason}): {', '.join(shown)}{more}"


def _describe_result(one: RestoreResult) -> str:
    path = replace_surrogates(str(one.path))
    changed = "; somebody had changed it since" if one.was_changed else ""
    match one.what:
        case "restored":
            return f"{path} restored{changed}"
        case "removed":
            return f"{path} removed: it was not there{changed}"
        case "same":
            return f"{path} is as it was"
        case "left":
            return f"{path} left alone: you or somebody else changed it since"
        case "failed":
            return f"{path} NOT restored: {one.reason}{changed}"


def parse_number(word: str) -> int | None:
    """The number of a checkpoint; None: none was given. Raises `BadInput`."""
    number = word.removeprefix("#")
    if number and not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise BadInput(f"{word[:40]!r} is not the number of a checkpoint; /rollback lists them.")
    return int(number) if number else None
