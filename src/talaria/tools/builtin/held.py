"""Asks the person about files that commands have changed and other programs obey."""

import hashlib
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from pathlib import Path

import msgspec

from talaria.model.errors import Denied, ToolFailed
from talaria.model.ids import CallId
from talaria.model.messages import ToolCall
from talaria.tools.base import EXCLUSIVE, Claim, Effect, Run
from talaria.tools.person import Proposal
from talaria.tools.policy_files import MAX_FILE_BYTES, Held
from talaria.tools.workspace import Workspace
from talaria.trees import Root, read_file
from talaria.waiting import in_thread

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
    held, warnings = workspace.take_held(), workspace.take_warnings()
    moved = [one for one in held if one.to is not None]
    if run.tools is None or not moved:
        return _told((*warnings, *map(str, held)))
    try:
        shown = await in_thread(lambda: "\n".join(map(_shown, moved)))
        paths = tuple(run.scope.cwd / one.name for one in moved)
        question = Proposal(
            "Commands have changed files that other programs obey. Keep these changes?", shown, "changes"
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


def _told(sentences: Sequence[str]) -> str:
    return "".join(f"\n[{sentence}]" for sentence in sentences)


def _shown(held: Held) -> str:
    """The whole change, set in: no line of it can pass for ours. Raises `ToolFailed` if it cannot be shown."""
    assert held.to is not None  # noqa: S101  (what could not be moved is not asked about)
    if held.before is not None and held.before.content is not None and held.to.is_file():
        old, new = (_text(content).splitlines() for content in (held.before.content, _content(held.to)))
        lines: Iterator[str] = unified_diff(old, new, held.name, held.name, lineterm="")
    else:
        lines = (line for place in _files(held.to) for line in _new(place, held.to))
    return f"{held.name}\n" + "\n".join(f"  {line}" for line in lines)


def _files(place: Path) -> list[Path]:
    if place.is_symlink() or not place.is_dir():
        return [place]
    with Root.open(place) as root:
        found = [f"{folder}/{one.name}".lstrip("/") for folder, one in root.descend() if not one.is_folder]
    if len(found) > MAX_FILES:
        raise ToolFailed(f"{len(found):,} new files are too many to be shown to a person, so nobody was asked.")
    return [place / name for name in sorted(found)]


def _new(place: Path, held: Path) -> Iterator[str]:
    if place != held:
        yield f"{place.relative_to(held)}:"
    if place.is_symlink():
        yield f"a link to {place.readlink()}"
    elif place.is_file():
        mode = "executable, " if place.stat().st_mode & 0o111 else ""
        content = _content(place)
        yield f"({mode}{len(content):,} bytes)"
        yield from (f"+{line}" for line in _text(content).splitlines())
    else:
        yield "neither a file nor a folder"


def _content(place: Path) -> bytes:
    if place.stat().st_size > MAX_FILE_BYTES:
        raise ToolFailed(f"{place} is too large to be shown to a person, so nobody was asked.")
    return read_file(place, MAX_FILE_BYTES)


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return f"not text; SHA-256 {hashlib.sha256(content).hexdigest()}"
