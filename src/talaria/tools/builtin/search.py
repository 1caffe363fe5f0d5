"""Finding files by name and by content."""

import fnmatch
import os
import re
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

from talaria.files import read_bytes
from talaria.model.errors import ToolFailed
from talaria.tools.base import Run
from talaria.tools.function import path_effect, tool

SKIPPED_FOLDERS = frozenset({".git", ".hg", "node_modules", "__pycache__", ".venv", ".mypy_cache", ".ruff_cache"})
MAX_FILE_BYTES = 4 << 20
MAX_LINE_CHARS = 300
TIME_S = 20.0


@tool(after_crash="repeat", effect=path_effect("reads"))
def search_files(
    pattern: Annotated[str, "A regular expression for content; a glob such as *.py for names."],
    run: Run,
    path: Annotated[str, "Folder (or file) to search in."] = ".",
    target: Annotated[Literal["content", "names"], "What the pattern is matched against."] = "content",
    glob: Annotated[str, "For content: only files whose name matches this glob."] = "*",
    limit: Annotated[int, "How many matches at most."] = 100,
) -> str:
    """Search below a folder: file contents by regular expression, or file names by glob."""
    root = run.scope.resolve(path)
    if not root.exists():
        raise ToolFailed(f"{root} does not exist.")
    found = _names(root, pattern) if target == "names" else _content(root, _compiled(pattern), glob)
    wanted = max(1, limit)
    hits = list(islice(found, wanted + 1))
    if not hits:
        return "[nothing found]"
    more = "\n[there are more matches; narrow the search]" if len(hits) > wanted else ""
    return "\n".join(hits[:wanted]) + more


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as fault:
        raise ToolFailed(f"{pattern!r} is not a regular expression: {fault}.") from fault


def _files(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    deadline = time.monotonic() + TIME_S
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS)
        for name in sorted(names):
            if time.monotonic() > deadline:
                raise ToolFailed(f"The search below {root} took longer than {TIME_S:.0f} seconds; narrow it.")
            yield Path(folder) / name


def _names(root: Path, pattern: str) -> Iterator[str]:
    for file in _files(root):
        if fnmatch.fnmatch(file.name, pattern) or fnmatch.fnmatch(str(file.relative_to(root)), pattern):
            yield str(file)


def _content(root: Path, pattern: re.Pattern[str], glob: str) -> Iterator[str]:
    for file in _files(root):
        if fnmatch.fnmatch(file.name, glob):
            yield from _matches(file, pattern)


def _matches(file: Path, pattern: re.Pattern[str]) -> Iterator[str]:
    try:
        content = read_bytes(file, MAX_FILE_BYTES) if file.stat().st_size <= MAX_FILE_BYTES else b""
    except OSError:
        return  # not ours to read
    if b"\0" in content[:8192]:
        return
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
        if pattern.search(line):
            yield f"{file}:{number}:{line[:MAX_LINE_CHARS]}"
