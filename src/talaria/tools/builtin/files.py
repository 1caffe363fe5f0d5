"""Reading and changing files. A write is whole or not at all: it goes to a temporary file that replaces the old one."""

import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

from talaria.model.errors import ToolFailed
from talaria.tools.base import Effect, Run, Scope
from talaria.tools.function import tool

MAX_FILE_BYTES = 10 << 20
MAX_LINE_CHARS = 2_000


def _reads(arguments: Any, scope: Scope) -> Effect:
    return Effect("reads", (scope.resolve(arguments.path),))


def _writes(arguments: Any, scope: Scope) -> Effect:
    return Effect("writes", (scope.resolve(arguments.path),))


@tool(after_crash="repeat", effect=_reads)
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
    body = "\n".join(f"{number}|{line[:MAX_LINE_CHARS]}" for number, line in enumerate(shown, start))
    left = len(lines) - (start - 1 + len(shown))
    return f"{body}\n[{left} more lines; continue with offset={start + len(shown)}]" if left > 0 else body or "[empty]"


@tool(effect=_writes)
def write_file(
    path: Annotated[str, "File to write; folders on the way are made."],
    content: Annotated[str, "The whole new content."],
    run: Run,
) -> str:
    """Write a file, replacing what it held."""
    target = run.scope.resolve(path)
    _replace(target, content)
    return f"Wrote {len(content.encode()):,} bytes to {target}."


@tool(effect=_writes)
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
    try:
        if target.stat().st_size > MAX_FILE_BYTES:
            raise ToolFailed(f"{target} is larger than {MAX_FILE_BYTES >> 20} MB; use the terminal to look at parts.")
        content = target.read_bytes()
    except OSError as fault:
        raise ToolFailed(f"Cannot read {target}: {fault.strerror}.") from fault
    if b"\0" in content[:8192]:
        raise ToolFailed(f"{target} is not a text file.")
    return content.decode("utf-8", "surrogateescape")


def _replace(target: Path, content: str) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~_umask()
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content.encode("utf-8", "surrogateescape"))
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(mode)
            Path(temporary).replace(target)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as fault:
        raise ToolFailed(f"Cannot write {target}: {fault.strerror}.") from fault


def _umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current
