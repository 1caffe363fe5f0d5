"""Tools that read, write and patch files, and view images. A change is made completely or not at all."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from msgspec import structs

from talaria.core.errors import BadArguments, ToolFailed
from talaria.core.messages import FileChange
from talaria.core.pictures import MAX_BYTES, UnsupportedImage, prepare_image
from talaria.core.redaction import MaskedText
from talaria.tools import file_content
from talaria.tools.base import RichResult, Run, Scope, Tool
from talaria.tools.builtin.edits import Edit, EditResult, apply_edits
from talaria.tools.diffs import compare_contents, format_unified_diff
from talaria.tools.file_content import (
    FileContent,
    KnownContent,
    ReadFiles,
    TextFile,
    decode_text,
    is_binary,
    read_page,
    too_large_error,
)
from talaria.tools.function import ChangePlan, file_change_tool, path_tool, project_name, tool
from talaria.tools.person import Proposal

MAX_CHANGED_BYTES = 10 << 20
MAX_REPLACED_BYTES = 32 << 20
USUAL_LINES = 1_000
MAX_SHOWN_DIFF_BYTES = 900_000
"""If the diff is longer, a person sees the whole new content instead: the gate refuses more than they can be shown."""

AllowChange = Callable[[Path, bytes], AbstractContextManager[None]]


def _ask_later(_: object) -> tuple[None, str]:
    """The question about a change depends on the file, so it is planned when somebody is asked."""
    return None, ""


def file_tools(seen: ReadFiles, changing_file: AllowChange | None = None) -> tuple[Tool, ...]:
    """`seen`: what the model knows about files, for all sessions that share these tools. `changing_file`: entered
    around each change of a file."""

    @path_tool("reads", "Read")
    @tool(after_crash="repeat")
    def read_file(
        path: Annotated[str, "File to read; relative to the working directory, or absolute."],
        run: Run,
        offset: Annotated[int, "First line to show; lines are numbered from 1."] = 1,
        limit: Annotated[int, "Maximum number of lines."] = USUAL_LINES,
    ) -> str:
        """Read a text file. Each line is prefixed with its number."""
        target = Path(path)
        try:
            with file_content.open_file(target) as file:
                page, sight = read_page(file, target, offset, limit, run.scope.redactor)
        except OSError as fault:
            raise ToolFailed(f"Cannot read {target}: {fault.strerror}.") from fault
        seen.note(run.scope.session, target, sight)
        return page

    @file_change_tool(_plan_write)
    @path_tool("writes", "Write", _ask_later)
    @tool
    def write_file(
        path: Annotated[str, "File to write; missing folders are created."],
        content: Annotated[str, "The complete new content."],
        run: Run,
    ) -> RichResult:
        """Write a file, replacing its content. An existing byte order mark and CRLF line endings are kept."""
        target = Path(path)
        before = _read_target(target, MAX_REPLACED_BYTES, "write", run.expected_fingerprint)
        sight = seen.find(run.scope.session, target)
        if before is not None and sight is not None and not sight.matches(before):
            raise ToolFailed(f"{target} was changed since you last read or wrote it; read it again first.")
        becomes = _make_text(content, before)
        _replace_target(target, before, becomes, run, seen, changing_file)
        text = f"Wrote {len(becomes.encode()):,} bytes to {target}."
        return RichResult(text, changes=_describe_changes(target, before, becomes.encode(), run.scope))

    @file_change_tool(_plan_patch)
    @path_tool("writes", "Change", _ask_later)
    @tool
    def patch(
        path: Annotated[str, "File to change; read it first."],
        run: Run,
        edits: Annotated[tuple[Edit, ...], "Replacements, made in order: all of them or none."] = (),
        old: Annotated[str | None, "For a single edit instead of `edits`: the text to replace."] = None,
        new: Annotated[str | None, "For a single edit: the text to put in its place."] = None,
        replace_all: Annotated[bool, "For a single edit: replace every occurrence."] = False,
    ) -> str | RichResult:
        """Replace text in a file and show the change.

        Each text to replace must occur exactly once, unless every occurrence is to be replaced. If it does not occur,
        whole lines are matched ignoring white space, and the new text gets their indentation.
        """
        target = Path(path)
        wanted = _choose_edits(edits, old, new, is_for_all=replace_all)
        found = _require_text(target, _read_target(target, MAX_CHANGED_BYTES, "read", run.expected_fingerprint))
        sight = seen.find(run.scope.session, target)
        if sight is None:
            raise ToolFailed(f"You have not read {target} in this conversation yet; read it first.")
        if not sight.matches(found):
            raise ToolFailed(f"{target} was changed since you last read or wrote it; read it again first.")
        patched = _apply_to_file(target, found, wanted, run.scope, flag="all" if edits else "replace_all")
        if patched.becomes.body == patched.text.body:
            return f"[{target} is unchanged: the new text equals the old one]"
        _replace_target(target, found, patched.becomes, run, seen, changing_file)
        masked, done = patched.masked, patched.done
        how = "" if done.is_exact else " (found ignoring white space)"
        told = f"Replaced {done.count} occurrence{'s' if done.count > 1 else ''} in {target}{how}."
        diff = format_unified_diff(masked.redact(masked.text), masked.redact(done.text), target.name)
        changes = _describe_changes(target, found, patched.becomes.encode(), run.scope)
        return RichResult(f"{told}\n{diff}", changes=changes)

    return read_file, write_file, patch


@path_tool("reads", "View")
@tool(after_crash="repeat")
def view_image(path: Annotated[str, "Image to view; relative to the working directory, or absolute."]) -> RichResult:
    """View an image file, such as a screenshot: PNG, JPEG, GIF or WebP."""
    target = Path(path)
    found = _read_target(target, MAX_BYTES + 1, "read")
    if found is None:
        raise ToolFailed(f"Cannot read {target}: No such file or directory.")
    try:
        image, (width, height) = prepare_image(found.content)
    except UnsupportedImage as fault:
        raise ToolFailed(f"{target} {fault}.") from fault
    shown = f"{target}: {image.media_type}, {width} x {height} pixels, {len(found.content):,} bytes"
    return RichResult(shown, (image,))


def _choose_edits(edits: tuple[Edit, ...], old: str | None, new: str | None, *, is_for_all: bool) -> tuple[Edit, ...]:
    is_single = old is not None and new is not None
    if bool(edits) == is_single or (edits and (old is not None or new is not None)):
        raise BadArguments("patch needs either `edits`, or `old` and `new`.")
    return edits or (Edit(old or "", new or "", is_for_all),)


class PatchResult(NamedTuple):
    """Edits made in memory to the text of a file."""

    text: TextFile
    """The file as it was."""
    masked: MaskedText
    done: EditResult
    becomes: TextFile


def _require_text(target: Path, found: FileContent | None) -> FileContent:
    if found is None:
        raise ToolFailed(f"Cannot read {target}: No such file or directory.")
    if not found.is_whole:
        raise too_large_error(target, MAX_CHANGED_BYTES)
    if is_binary(found.content):
        raise ToolFailed(f"{target} is not a text file.")
    return found


def _apply_to_file(
    target: Path, found: FileContent, wanted: tuple[Edit, ...], scope: Scope, *, flag: str
) -> PatchResult:
    text = decode_text(found.content)
    masked = scope.redactor.mask(text.body)  # otherwise failed edits would reveal a secret piece by piece
    try:
        done = apply_edits(masked.text, wanted, str(target), flag=flag)
    except ToolFailed as failure:
        raise ToolFailed(masked.redact(str(failure))) from None
    return PatchResult(text, masked, done, TextFile(masked.unmask(done.text), text.has_bom, text.has_crlf))


def _make_text(content: str, before: FileContent | None) -> TextFile:
    becomes = decode_text(content.encode())
    if before is not None and not is_binary(before.content):
        becomes = becomes.like(decode_text(before.content))
    return becomes


def _plan_write(arguments: Any, scope: Scope) -> ChangePlan:
    """Shows the difference from the present file, or the whole content if the file is new or there is nothing to see
    in a diff."""
    target = Path(arguments.path)
    whole = Proposal(f"Write {target}?", arguments.content, "new content")
    try:
        before = _read_target(target, MAX_REPLACED_BYTES, "write")
        content = _make_text(arguments.content, before).encode()
    except (ToolFailed, UnicodeEncodeError):
        return ChangePlan(whole, None)
    expects = file_content.fingerprint(before)
    if before is not None and not before.is_whole:
        note = f"it replaces a file of more than {len(before.content):,} bytes, which is too large to compare"
        return ChangePlan(structs.replace(whole, note=note), expects)
    if before is not None and before.content == content:
        return ChangePlan(structs.replace(whole, note="the file already holds exactly this"), expects)
    change = compare_contents(
        project_name(target, scope), before and before.content, content, scope.redactor, is_whole=True
    )
    if before is None:
        return ChangePlan(structs.replace(whole, changes=(change,)), expects)
    if not change.diff:
        return ChangePlan(structs.replace(whole, note=change.note), expects)
    if len(change.diff.encode()) > MAX_SHOWN_DIFF_BYTES:
        counts = _format_counts(change)
        note = f"{counts} against the file as it is now; the difference is too long to show, so this is the whole file"
        return ChangePlan(structs.replace(whole, note=note), expects)
    return ChangePlan(_propose_diff(whole.headline, change), expects)


def _plan_patch(arguments: Any, scope: Scope) -> ChangePlan:
    """Shows what the edits, made in memory, change in the file. If they cannot be made, it lists them."""
    target = Path(arguments.path)
    single = Edit(arguments.old or "", arguments.new or "", arguments.replace_all)
    edits: tuple[Edit, ...] = arguments.edits or (single,)  # if both are given, nothing is changed
    headline = f"Change {target}?"
    lines: list[str] = []
    for number, edit in enumerate(edits, 1):  # each line has a mark, so that no text can pass for another part
        lines += [f"@@ edit {number} of {len(edits)}{': every occurrence' if edit.all else ''} @@"]
        lines += [f"-{line}" for line in edit.old.split("\n")]
        lines += [f"+{line}" for line in edit.new.split("\n")]
    listed = "\n".join(lines)
    expects: str | None = None
    try:
        wanted = _choose_edits(arguments.edits, arguments.old, arguments.new, is_for_all=arguments.replace_all)
        before = _read_target(target, MAX_CHANGED_BYTES, "read")
        expects = file_content.fingerprint(before)
        found = _require_text(target, before)
        content = _apply_to_file(target, found, wanted, scope, flag="all").becomes.encode()
    except (ToolFailed, BadArguments):
        note = "these edits do not apply to the file as it is now, so nothing would be changed"
        return ChangePlan(Proposal(headline, listed, "edits", note=note), expects)
    change = compare_contents(project_name(target, scope), found.content, content, scope.redactor, is_whole=True)
    if not change.diff:
        note = change.note or "the file would not change"
        return ChangePlan(Proposal(headline, listed, "edits", note=note), expects)
    return ChangePlan(_propose_diff(headline, change), expects)


def _propose_diff(headline: str, change: FileChange) -> Proposal:
    also = f"; {change.note}" if change.note else ""
    note = f"{_format_counts(change)} against the file as it is now{also}"
    return Proposal(headline, change.diff, "change", note=note, changes=(change,))


def _format_counts(change: FileChange) -> str:
    return f"+{change.added:,} −{change.removed:,} lines"  # noqa: RUF001  (as wide as the plus)


def _describe_changes(target: Path, before: FileContent | None, content: bytes, scope: Scope) -> tuple[FileChange, ...]:
    """For people."""
    name = project_name(target, scope)
    if before is not None and not before.is_whole:
        return (FileChange(name, "changed", note=f"too large to compare, {len(content):,} bytes now"),)
    if before is not None and before.content == content:
        return ()
    return (compare_contents(name, before and before.content, content, scope.redactor),)


def _read_target(target: Path, limit_bytes: int, what: str, expects: str | None = None) -> FileContent | None:
    try:
        found = file_content.read_file(target, limit_bytes)
    except OSError as fault:
        raise ToolFailed(f"Cannot {what} {target}: {fault.strerror}.") from fault
    if expects is not None and file_content.fingerprint(found) != expects:
        raise ToolFailed(
            f"{target} was changed since the person was asked, so it was left as it is. Read it again first."
        )
    return found


def _replace_target(
    target: Path, before: FileContent | None, becomes: TextFile, run: Run, seen: ReadFiles, changing: AllowChange | None
) -> None:
    content = becomes.encode()
    try:
        with changing(target, content) if changing is not None else nullcontext():
            file_content.write_file(target, content, before)
        stamp = file_content.find_stamp(target)
    except OSError as fault:
        raise ToolFailed(f"Cannot write {target}: {fault.strerror}.") from fault
    if stamp is not None:
        seen.note(run.scope.session, target, KnownContent(stamp, sha256(content).hexdigest()))
