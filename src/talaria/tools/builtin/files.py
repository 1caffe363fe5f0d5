"""Reading and changing files. A change is whole or not at all."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

from talaria.model.errors import BadArguments, ToolFailed
from talaria.tools import places
from talaria.tools.base import Run, Tool
from talaria.tools.builtin.edits import Edit, Edited, edited
from talaria.tools.builtin.located import located
from talaria.tools.builtin.pages import read_page, too_large
from talaria.tools.builtin.seen import Seen, Sight
from talaria.tools.builtin.texts import Text, decoded, is_binary
from talaria.tools.diffs import unified
from talaria.tools.function import tool
from talaria.tools.places import Found
from talaria.tools.undo.shelf import digest

MAX_CHANGED_BYTES = 10 << 20
MAX_REPLACED_BYTES = 32 << 20
USUAL_LINES = 1_000


Changing = Callable[[Path, bytes], AbstractContextManager[None]]


def _unwatched(_: Path, __: bytes) -> AbstractContextManager[None]:
    return nullcontext()


def file_tools(seen: Seen, changing: Changing = _unwatched) -> tuple[Tool, ...]:
    """`seen` is what the model knows of files, for all sessions that share these tools. `changing`: entered around each
    change of a file."""

    @located("reads", "Read")
    @tool(after_crash="repeat")
    def read_file(
        path: Annotated[str, "File to read; relative to the working directory, or absolute."],
        run: Run,
        offset: Annotated[int, "First line to show, counted from 1."] = 1,
        limit: Annotated[int, "How many lines at most."] = USUAL_LINES,
    ) -> str:
        """Read a text file. Each line is shown behind its number."""
        target = Path(path)
        try:
            with places.opened(target) as file:
                page, sight = read_page(file, target, offset, limit, run.scope.redactor)
        except OSError as fault:
            raise ToolFailed(f"Cannot read {target}: {fault.strerror}.") from fault
        seen.note(run.scope.session, target, sight)
        return page

    @located("writes", "Write", lambda arguments: (arguments.content, "new content"))
    @tool
    def write_file(
        path: Annotated[str, "File to write; folders on the way are made."],
        content: Annotated[str, "The whole new content."],
        run: Run,
    ) -> str:
        """Write a file, replacing what it held. Its byte order mark and CRLF line ends are kept."""
        target = Path(path)
        before = _found(target, MAX_REPLACED_BYTES, "write")
        sight = seen.find(run.scope.session, target)
        if before is not None and sight is not None and not sight.is_of(before):
            raise ToolFailed(f"{target} was changed since you last read or wrote it; read it again first.")
        becomes = decoded(content.encode())
        if before is not None and not is_binary(before.content):
            becomes = becomes.like(decoded(before.content))
        _change(target, before, becomes, run, seen, changing)
        return f"Wrote {len(becomes.encode()):,} bytes to {target}."

    @located("writes", "Change", _shown_edits)
    @tool
    def patch(
        path: Annotated[str, "File to change; read it first."],
        run: Run,
        edits: Annotated[tuple[Edit, ...], "What to replace, one after the other: all of it, or nothing."] = (),
        old: Annotated[str | None, "For a single edit instead of `edits`: the text to replace."] = None,
        new: Annotated[str | None, "For a single edit: what stands there afterwards."] = None,
        replace_all: Annotated[bool, "For a single edit: replace every occurrence."] = False,
    ) -> str:
        """Replace pieces of text in a file and show the change.

        Each piece must occur exactly once unless all are meant. If it does not occur, whole lines are also found
        without regard to white space, and the new text is indented as they are.
        """
        target = Path(path)
        wanted = _wanted(edits, old, new, is_for_all=replace_all)
        before = _known(target, run, seen)
        text = decoded(before.content)
        aside = run.scope.redactor.set_aside(text.body)  # so that nobody can find out a secret piece by piece
        try:
            done = edited(aside.text, wanted, str(target), flag="all" if edits else "replace_all")
        except ToolFailed as failure:
            raise ToolFailed(aside.hide(str(failure))) from None
        body = aside.put_back(done.text)
        if body == text.body:
            return f"[{target} stays as it is: the new text is the old one]"
        _change(target, before, Text(body, text.has_bom, text.has_crlf), run, seen, changing)
        return f"{_told(done, target)}\n{unified(aside.hide(aside.text), aside.hide(done.text), target.name)}"

    return read_file, write_file, patch


def _wanted(edits: tuple[Edit, ...], old: str | None, new: str | None, *, is_for_all: bool) -> tuple[Edit, ...]:
    is_single = old is not None and new is not None
    if bool(edits) == is_single or (edits and (old is not None or new is not None)):
        raise BadArguments("patch needs either `edits`, or `old` and `new`.")
    return edits or (Edit(old or "", new or "", is_for_all),)


def _shown_edits(arguments: Any) -> tuple[str, str]:
    """As a diff. Every line of a text has its mark before it: whatever it says, it cannot pass for another."""
    single = Edit(arguments.old or "", arguments.new or "", arguments.replace_all)
    wanted: tuple[Edit, ...] = arguments.edits or (single,)  # if both are given, nothing is changed
    lines: list[str] = []
    for number, edit in enumerate(wanted, 1):
        lines += [f"@@ edit {number} of {len(wanted)}{': every occurrence' if edit.all else ''} @@"]
        lines += [f"-{line}" for line in edit.old.split("\n")]
        lines += [f"+{line}" for line in edit.new.split("\n")]
    return "\n".join(lines), "edits"


def _found(target: Path, limit_bytes: int, what: str) -> Found | None:
    try:
        return places.read(target, limit_bytes)
    except OSError as fault:
        raise ToolFailed(f"Cannot {what} {target}: {fault.strerror}.") from fault


def _known(target: Path, run: Run, seen: Seen) -> Found:
    """A text that the model has before its eyes as it is."""
    found = _found(target, MAX_CHANGED_BYTES, "read")
    if found is None:
        raise ToolFailed(f"Cannot read {target}: No such file or directory.")
    if not found.is_whole:
        raise too_large(target, MAX_CHANGED_BYTES)
    if is_binary(found.content):
        raise ToolFailed(f"{target} is not a text file.")
    sight = seen.find(run.scope.session, target)
    if sight is None:
        raise ToolFailed(f"You have not read {target} in this conversation yet; read it first.")
    if not sight.is_of(found):
        raise ToolFailed(f"{target} was changed since you last read or wrote it; read it again first.")
    return found


def _change(target: Path, before: Found | None, becomes: Text, run: Run, seen: Seen, changing: Changing) -> None:
    content = becomes.encode()
    try:
        with changing(target, content):
            places.write(target, content, before)
        stamp = places.stamp(target)
    except OSError as fault:
        raise ToolFailed(f"Cannot write {target}: {fault.strerror}.") from fault
    if stamp is not None:
        seen.note(run.scope.session, target, Sight(stamp, digest(content)))


def _told(done: Edited, target: Path) -> str:
    how = "" if done.is_exact else " (found without regard to white space)"
    return f"Replaced {done.count} occurrence{'s' if done.count > 1 else ''} in {target}{how}."
