"""Asks the person about files that commands have changed and other programs obey."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from talaria.core.aio import in_thread
from talaria.core.errors import Denied, ToolFailed
from talaria.core.ids import CallId
from talaria.core.messages import FileChange, ToolCall
from talaria.core.redaction import Redactor
from talaria.core.trees import Root, read_file
from talaria.tools.base import EXCLUSIVE, Claim, Effect, Run
from talaria.tools.diffs import compare
from talaria.tools.person import Proposal
from talaria.tools.policy_files import MAX_FILE_BYTES, HeldChange
from talaria.tools.sandbox_grants import ask_to_open
from talaria.tools.sandbox_permissions import Permission
from talaria.tools.workspace import Workspace

MAX_FILES = 100


class _Keep(msgspec.Struct, frozen=True):
    """As if the model had asked to write these files."""

    claim: Claim
    question: Proposal
    effect: Effect = EXCLUSIVE

    async def run(self, run: Run) -> str:  # noqa: ARG002
        return ""


async def ask_about_held(workspace: Workspace, run: Run) -> str:
    """What the model is told behind the output of a command; empty: nothing was held."""
    held, warnings = workspace.take_held(), (*workspace.take_warnings(), *await _ask_about_addresses(workspace, run))
    moved = [one for one in held if one.to is not None]
    if run.tools is None or not moved:
        return _told((*warnings, *map(str, held)))
    try:
        redactor = run.scope.redactor
        changes = await in_thread(lambda: tuple(change for one in moved for change in _changes(one, redactor)))
        shown = "\n".join(map(_written_out, changes))
        paths = tuple(run.scope.cwd / one.name for one in moved)
        question = Proposal(
            "Commands have changed files that other programs obey. Keep these changes?",
            shown,
            "changes",
            changes=changes,
        )
        arguments = {
            "paths": [*map(str, paths)],
            "sha256": hashlib.sha256(shown.encode("utf-8", "replace")).hexdigest(),
        }
        call = ToolCall(CallId(f"{run.call}-held"), "write_file", msgspec.json.encode(arguments).decode())
        doubt = "it makes git or a log-in run something" if any(one.needs_a_yes for one in moved) else ""
        await run.tools.consent(call, _Keep(Claim(writes=paths), question), doubt)
    except (Denied, ToolFailed) as refusal:
        return _told((*warnings, *map(str, held), str(refusal)))
    kept = [await workspace.keep(one) for one in moved]
    return _told((*warnings, *kept, *(str(one) for one in held if one.to is None)))


async def _ask_about_addresses(workspace: Workspace, run: Run) -> tuple[str, ...]:
    """That commands have put into settings of git."""
    told: list[str] = []
    for change in workspace.take_addresses():
        try:
            permission = Permission("git-url", (change.effect,))
            await ask_to_open(run, permission, change.text, workspace.cwd, noun="settings")
        except Denied as refusal:
            told.append(f"git: not done: {change.effect}. {refusal}")
            continue
        told += await workspace.save_address(change)
    return tuple(told)


def _told(sentences: Sequence[str]) -> str:
    return "".join(f"\n[{sentence}]" for sentence in sentences)


def _changes(held: HeldChange, redactor: Redactor) -> Iterator[FileChange]:
    """All of it. Raises `ToolFailed` if it cannot be shown."""
    assert held.to is not None  # noqa: S101  (what could not be moved is not asked about)
    before = held.before
    if before is not None and before.content is not None and held.to.is_file():
        modes = (before.mode & 0o777, held.to.stat().st_mode & 0o777)
        yield _compared(held.name, before.content, _content(held.to), redactor, modes)
        return
    for place in _files(held.to):
        name = held.name if place == held.to else f"{held.name}/{place.relative_to(held.to)}"
        if place.is_symlink():
            yield FileChange(name, "created", note=f"a link to {place.readlink()}")
        elif place.is_file():
            content = _content(place)
            change = _compared(name, None, content, redactor)
            mode = "executable, " if place.stat().st_mode & 0o111 else ""
            notes = f"{mode}{len(content):,} bytes", change.note
            yield msgspec.structs.replace(change, note="; ".join(filter(None, notes)))
        else:
            yield FileChange(name, "created", note="neither a file nor a folder")


def _compared(
    name: str,
    before: bytes | None,
    content: bytes,
    redactor: Redactor,
    modes: tuple[int | None, int | None] = (None, None),
) -> FileChange:
    """What is not text can at least be told from anything else."""
    change = compare(name, before, content, redactor, modes=modes, is_whole=True)
    if b"\0" not in content + (before or b""):
        return change
    return msgspec.structs.replace(change, note=f"{change.note}; SHA-256 {hashlib.sha256(content).hexdigest()}")


def _written_out(change: FileChange) -> str:
    """The whole change, set in: no line of it can pass for ours."""
    head = f"{change.path} ({change.note})" if change.note else change.path
    return "\n".join([head.replace("\n", "\\n"), *(f"  {line}" for line in change.diff.split("\n") if change.diff)])


def _files(place: Path) -> list[Path]:
    if place.is_symlink() or not place.is_dir():
        return [place]
    with Root.open(place) as root:
        found = [f"{folder}/{one.name}".lstrip("/") for folder, one in root.descend() if not one.is_folder]
    if len(found) > MAX_FILES:
        raise ToolFailed(f"{len(found):,} new files are too many to be shown to a person, so nobody was asked.")
    return [place / name for name in sorted(found)]


def _content(place: Path) -> bytes:
    if place.stat().st_size > MAX_FILE_BYTES:
        raise ToolFailed(f"{place} is too large to be shown to a person, so nobody was asked.")
    return read_file(place, MAX_FILE_BYTES)
