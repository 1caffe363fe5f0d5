"""Reading and changing files. A change is whole or not at all.

Looking at image files.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from msgspec import structs

from talaria.core.errors import BadArguments, ToolFailed
from talaria.core.messages import FileChange
from talaria.core.pictures import MAX_BYTES, Unfit, fit
from talaria.core.redaction import SetAside
from talaria.tools import places
from talaria.tools.base import Run, Scope, Shown, Tool
from talaria.tools.builtin.edits import Edit, Edited, edited
from talaria.tools.builtin.located import Plan, changing, located, project_name
from talaria.tools.builtin.pages import ReadFiles, Sight, TextFile, decoded, is_binary, read_page, too_large
from talaria.tools.diffs import compare, unified
from talaria.tools.function import tool
from talaria.tools.person import Proposal
from talaria.tools.places import FileContent
from talaria.tools.undo.shelf import digest

MAX_CHANGED_BYTES = 10 << 20
MAX_REPLACED_BYTES = 32 << 20
USUAL_LINES = 1_000
MAX_SHOWN_DIFF_BYTES = 900_000
"""Of a longer one, a person is shown all of the new content instead: the gate refuses more than they can be shown."""


Changing = Callable[[Path, bytes], AbstractContextManager[None]]


def _unwatched(_: Path, __: bytes) -> AbstractContextManager[None]:
    return nullcontext()


def _unasked(_: object) -> tuple[None, str]:
    """What is asked about a change depends on the file, so it is planned when somebody is asked."""
    return None, ""


def file_tools(seen: ReadFiles, changing_file: Changing = _unwatched) -> tuple[Tool, ...]:
    """`seen` is what the model knows of files, for all sessions that share these tools. `changing_file`: entered
    around each change of a file."""

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

    @changing(_plan_write)
    @located("writes", "Write", _unasked)
    @tool
    def write_file(
        path: Annotated[str, "File to write; folders on the way are made."],
        content: Annotated[str, "The whole new content."],
        run: Run,
    ) -> Shown:
        """Write a file, replacing what it held. Its byte order mark and CRLF line ends are kept."""
        target = Path(path)
        before = _found(target, MAX_REPLACED_BYTES, "write", run.expects)
        sight = seen.find(run.scope.session, target)
        if before is not None and sight is not None and not sight.is_of(before):
            raise ToolFailed(f"{target} was changed since you last read or wrote it; read it again first.")
        becomes = _written(content, before)
        _change(target, before, becomes, run, seen, changing_file)
        text = f"Wrote {len(becomes.encode()):,} bytes to {target}."
        return Shown(text, changes=_changes(target, before, becomes.encode(), run.scope))

    @changing(_plan_patch)
    @located("writes", "Change", _unasked)
    @tool
    def patch(
        path: Annotated[str, "File to change; read it first."],
        run: Run,
        edits: Annotated[tuple[Edit, ...], "What to replace, one after the other: all of it, or nothing."] = (),
        old: Annotated[str | None, "For a single edit instead of `edits`: the text to replace."] = None,
        new: Annotated[str | None, "For a single edit: what stands there afterwards."] = None,
        replace_all: Annotated[bool, "For a single edit: replace every occurrence."] = False,
    ) -> str | Shown:
        """Replace pieces of text in a file and show the change.

        Each piece must occur exactly once unless all are meant. If it does not occur, whole lines are also found
        without regard to white space, and the new text is indented as they are.
        """
        target = Path(path)
        wanted = _wanted(edits, old, new, is_for_all=replace_all)
        before = _found(target, MAX_CHANGED_BYTES, "read", run.expects)
        sight = seen.find(run.scope.session, target)
        patched = _patched(target, before, sight, wanted, run.scope, flag="all" if edits else "replace_all")
        if patched.becomes.body == patched.text.body:
            return f"[{target} stays as it is: the new text is the old one]"
        _change(target, before, patched.becomes, run, seen, changing_file)
        diff = unified(patched.aside.hide(patched.aside.text), patched.aside.hide(patched.done.text), target.name)
        changes = _changes(target, before, patched.becomes.encode(), run.scope)
        return Shown(f"{_told(patched.done, target)}\n{diff}", changes=changes)

    return read_file, write_file, patch


def _wanted(edits: tuple[Edit, ...], old: str | None, new: str | None, *, is_for_all: bool) -> tuple[Edit, ...]:
    is_single = old is not None and new is not None
    if bool(edits) == is_single or (edits and (old is not None or new is not None)):
        raise BadArguments("patch needs either `edits`, or `old` and `new`.")
    return edits or (Edit(old or "", new or "", is_for_all),)


class Patched(NamedTuple):
    """Edits, made to the text of a file in memory."""

    text: TextFile
    """As it was."""
    aside: SetAside
    done: Edited
    becomes: TextFile


def _patched(
    target: Path, before: FileContent | None, sight: Sight | None, wanted: tuple[Edit, ...], scope: Scope, *, flag: str
) -> Patched:
    """Raises `ToolFailed`, also if the model does not have the text before its eyes as it is."""
    found = _text_file(target, before)
    if sight is None:
        raise ToolFailed(f"You have not read {target} in this conversation yet; read it first.")
    if not sight.is_of(found):
        raise ToolFailed(f"{target} was changed since you last read or wrote it; read it again first.")
    return _edited(target, found, wanted, scope, flag=flag)


def _text_file(target: Path, found: FileContent | None) -> FileContent:
    if found is None:
        raise ToolFailed(f"Cannot read {target}: No such file or directory.")
    if not found.is_whole:
        raise too_large(target, MAX_CHANGED_BYTES)
    if is_binary(found.content):
        raise ToolFailed(f"{target} is not a text file.")
    return found


def _edited(target: Path, found: FileContent, wanted: tuple[Edit, ...], scope: Scope, *, flag: str) -> Patched:
    text = decoded(found.content)
    aside = scope.redactor.set_aside(text.body)  # so that nobody can find out a secret piece by piece
    try:
        done = edited(aside.text, wanted, str(target), flag=flag)
    except ToolFailed as failure:
        raise ToolFailed(aside.hide(str(failure))) from None
    return Patched(text, aside, done, TextFile(aside.put_back(done.text), text.has_bom, text.has_crlf))


def _written(content: str, before: FileContent | None) -> TextFile:
    becomes = decoded(content.encode())
    if before is not None and not is_binary(before.content):
        becomes = becomes.like(decoded(before.content))
    return becomes


def _plan_write(arguments: Any, scope: Scope) -> Plan:
    """The difference from the file as it is; of a new one, and where there is no difference to see, all of it."""
    target = Path(arguments.path)
    whole = Proposal(f"Write {target}?", arguments.content, "new content")
    try:
        before = _found(target, MAX_REPLACED_BYTES, "write")
        content = _written(arguments.content, before).encode()
    except (ToolFailed, UnicodeEncodeError):
        return Plan(whole, None)
    expects = places.fingerprint(before)
    if before is not None and not before.is_whole:
        note = f"it replaces a file of more than {len(before.content):,} bytes, too large to compare"
        return Plan(structs.replace(whole, note=note), expects)
    if before is not None and before.content == content:
        return Plan(structs.replace(whole, note="the file already holds exactly this"), expects)
    change = compare(project_name(target, scope), before and before.content, content, scope.redactor, is_whole=True)
    if before is None:
        return Plan(structs.replace(whole, changes=(change,)), expects)
    if not change.diff:
        return Plan(structs.replace(whole, note=change.note), expects)
    if len(change.diff.encode()) > MAX_SHOWN_DIFF_BYTES:
        note = (
            f"{_counts(change)} against the file as it is now; too long to compare, so this is all of the new content"
        )
        return Plan(structs.replace(whole, note=note), expects)
    return Plan(_difference(whole.headline, change), expects)


def _plan_patch(arguments: Any, scope: Scope) -> Plan:
    """The edits, made in memory. If they cannot be made, they are shown one after the other."""
    target = Path(arguments.path)
    single = Edit(arguments.old or "", arguments.new or "", arguments.replace_all)
    edits: tuple[Edit, ...] = arguments.edits or (single,)  # if both are given, nothing is changed
    headline, listed = f"Change {target}?", _listed(edits)
    expects: str | None = None
    try:
        wanted = _wanted(arguments.edits, arguments.old, arguments.new, is_for_all=arguments.replace_all)
        before = _found(target, MAX_CHANGED_BYTES, "read")
        expects = places.fingerprint(before)
        found = _text_file(target, before)
        content = _edited(target, found, wanted, scope, flag="all").becomes.encode()
    except (ToolFailed, BadArguments):
        note = "these edits do not apply to the file as it is now, so nothing would be changed"
        return Plan(Proposal(headline, listed, "edits", note=note), expects)
    change = compare(project_name(target, scope), found.content, content, scope.redactor, is_whole=True)
    if not change.diff:
        return Plan(Proposal(headline, listed, "edits", note=change.note or "the file would stay as it is"), expects)
    return Plan(_difference(headline, change), expects)


def _difference(headline: str, change: FileChange) -> Proposal:
    also = f"; {change.note}" if change.note else ""
    note = f"{_counts(change)} against the file as it is now{also}"
    return Proposal(headline, change.diff, "change", note=note, changes=(change,))


def _counts(change: FileChange) -> str:
    return f"+{change.added:,} −{change.removed:,} lines"  # noqa: RUF001  (as wide as the plus)


def _listed(edits: tuple[Edit, ...]) -> str:
    """As a diff. Every line of a text has its mark before it: whatever it says, it cannot pass for another."""
    lines: list[str] = []
    for number, edit in enumerate(edits, 1):
        lines += [f"@@ edit {number} of {len(edits)}{': every occurrence' if edit.all else ''} @@"]
        lines += [f"-{line}" for line in edit.old.split("\n")]
        lines += [f"+{line}" for line in edit.new.split("\n")]
    return "\n".join(lines)


def _changes(target: Path, before: FileContent | None, content: bytes, scope: Scope) -> tuple[FileChange, ...]:
    """For people."""
    name = project_name(target, scope)
    if before is None:
        return (compare(name, None, content, scope.redactor),)
    if not before.is_whole:
        note = f"too large to compare, {len(content):,} bytes now"
        return (FileChange(name, "changed", note=note),)
    return () if before.content == content else (compare(name, before.content, content, scope.redactor),)


def _found(target: Path, limit_bytes: int, what: str, expects: str | None = None) -> FileContent | None:
    try:
        found = places.read(target, limit_bytes)
    except OSError as fault:
        raise ToolFailed(f"Cannot {what} {target}: {fault.strerror}.") from fault
    if expects is not None and places.fingerprint(found) != expects:
        raise ToolFailed(
            f"{target} was changed since the person was asked, so it was left as it is. Read it again first."
        )
    return found


def _change(
    target: Path, before: FileContent | None, becomes: TextFile, run: Run, seen: ReadFiles, changing: Changing
) -> None:
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


@located("reads", "Look at")
@tool(after_crash="repeat")
def view_image(path: Annotated[str, "Image to look at; relative to the working directory, or absolute."]) -> Shown:
    """Look at an image: a PNG, JPEG, GIF or WebP file, such as a screenshot."""
    target = Path(path)
    try:
        found = places.read(target, MAX_BYTES + 1)
    except OSError as fault:
        raise ToolFailed(f"Cannot read {target}: {fault.strerror}.") from fault
    if found is None:
        raise ToolFailed(f"Cannot read {target}: No such file or directory.")
    try:
        image, (width, height) = fit(found.content)
    except Unfit as fault:
        raise ToolFailed(f"{target} {fault}.") from fault
    shown = f"{target}: {image.media_type}, {width} x {height} pixels, {len(found.content):,} bytes"
    return Shown(shown, (image,))
