"""Reading and changing files. A write is whole or not at all."""

from pathlib import Path
from typing import Annotated

from talaria.files import read_bytes, replace_file
from talaria.model.errors import ToolFailed
from talaria.tools.base import Run
from talaria.tools.function import path_effect, tool

MAX_FILE_BYTES = 10 << 20
MAX_LINE_CHARS = 2_000


@tool(after_crash="repeat", effect=path_effect("reads"))
def read_file(
    path: Annotated[str, "File to read; relative to the working directory, or absolute."],
    run: Run,
    offset: Annotated[int, "First line to show, counted from 1."] = 1,
    limit: Annotated[int, "How many lines at most."] = 1_000,
) -> str:
    """Read a text file. Each line is shown behind its number."""
    lines = _load(run.scope.resolve(path)).split("\n")
    if lines[-1] == "":
        lines.pop()
    start = max(1, offset)
    shown = lines[start - 1 : start - 1 + max(1, limit)]
    if not shown:
        return f"[the file ends at line {len(lines)}]" if lines else "[empty]"
    body = "\n".join(f"{number}|{_shown(line)}" for number, line in enumerate(shown, start))
    left = len(lines) - (start - 1 + len(shown))
    return f"{body}\n[{left} more lines; continue with offset={start + len(shown)}]" if left > 0 else body


def _shown(line: str) -> str:
    text = line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    cut = len(text) - MAX_LINE_CHARS
    return text if cut <= 0 else f"{text[:MAX_LINE_CHARS]}[… {cut:,} more characters]"


@tool(effect=path_effect("writes"))
def write_file(
    path: Annotated[str, "File to write; folders on the way are made."],
    content: Annotated[str, "The whole new content."],
    run: Run,
) -> str:
    """Write a file, replacing what it held."""
    target = run.scope.resolve(path)
    _replace(target, content)
    return f"Wrote {len(content.encode()):,} bytes to {target}."


@tool(effect=path_effect("writes"))
def patch(
    path: Annotated[str, "File to change."],
    old: Annotated[str, "The exact text to replace, with enough around it to occur only once."],
    new: Annotated[str, "What stands there afterwards."],
    run: Run,
    replace_all: Annotated[bool, "Replace every occurrence."] = False,
) -> str:
    """Replace a piece of text in a file."""
    target = run.scope.resolve(path)
    text = _load(target)
    count = text.count(old) if old else 0
    if count == 0:
        raise ToolFailed(f"The text to replace does not occur in {target}; read the file again.")
    if count > 1 and not replace_all:
        raise ToolFailed(f"The text to replace occurs {count} times in {target}; give more of it, or set replace_all.")
    _replace(target, text.replace(old, new))
    return f"Replaced {count} occurrence{'s' if count > 1 else ''} in {target}."


def _load(target: Path) -> str:
    """As text that `_replace` writes back byte for byte."""
    try:
        content = read_bytes(target, MAX_FILE_BYTES + 1)
    except OSError as fault:
        raise ToolFailed(f"Cannot read {target}: {fault.strerror}.") from fault
    if len(content) > MAX_FILE_BYTES:
        raise ToolFailed(f"{target} is larger than {MAX_FILE_BYTES >> 20} MB; use the terminal to look at parts.")
    if b"\0" in content[:8192]:
        raise ToolFailed(f"{target} is not a text file.")
    return content.decode("utf-8", "surrogateescape")


def _replace(target: Path, content: str) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, content.encode("utf-8", "surrogateescape"), mode=None)
    except OSError as fault:
        raise ToolFailed(f"Cannot write {target}: {fault.strerror}.") from fault
