"""The search itself, run as a program of its own: a pathological pattern can be killed, and blocks nobody.

Only the standard library: it is started without site-packages. Takes a JSON object, prints one match per line.
"""

import fnmatch
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NoReturn, TypedDict

SKIPPED_FOLDERS = frozenset({".git", ".hg", "node_modules", "__pycache__", ".venv", ".mypy_cache", ".ruff_cache"})
MAX_FILE_BYTES = 4 << 20
MAX_LINE_CHARS = 300
REFUSED = 3
"""Exit code; the sentence stands on standard error."""


class Wanted(TypedDict):
    root: str
    pattern: str
    by_name: bool
    glob: str
    limit: int


def main() -> None:
    wanted: Wanted = json.loads(sys.argv[1])
    root = Path(wanted["root"])
    if not root.exists():
        _refuse(f"{root} does not exist.")
    if wanted["by_name"]:
        found = _names(root, wanted["pattern"])
    else:
        found = _content(root, _compiled(wanted["pattern"]), wanted["glob"])
    for hit in islice(found, wanted["limit"]):
        sys.stdout.buffer.write(hit.encode("utf-8", "surrogateescape") + b"\n")
        sys.stdout.buffer.flush()


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as fault:
        _refuse(f"{pattern!r} is not a regular expression: {fault}.")


def _refuse(sentence: str) -> NoReturn:
    sys.stderr.buffer.write(sentence.encode("utf-8", "surrogateescape"))
    sys.exit(REFUSED)


def _files(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS)
        yield from (Path(folder) / name for name in sorted(names))


def _names(root: Path, pattern: str) -> Iterator[str]:
    for file in _files(root):
        if fnmatch.fnmatch(file.name, pattern) or fnmatch.fnmatch(str(file.relative_to(root)), pattern):
            yield str(file)


def _content(root: Path, pattern: re.Pattern[str], glob: str) -> Iterator[str]:
    for file in _files(root):
        if fnmatch.fnmatch(file.name, glob):
            yield from _matches(file, pattern)


def _matches(file: Path, pattern: re.Pattern[str]) -> Iterator[str]:
    for number, line in enumerate(_read(file).decode("utf-8", "replace").split("\n"), 1):
        if pattern.search(line):
            yield f"{file}:{number}:{line[:MAX_LINE_CHARS]}"


def _read(file: Path) -> bytes:
    """Nothing of what is no text, too large, not ours to read, or may never end."""
    try:
        found = file.stat()
        content = file.read_bytes() if stat.S_ISREG(found.st_mode) and found.st_size <= MAX_FILE_BYTES else b""
    except OSError:
        return b""
    return b"" if b"\0" in content[:8192] else content


if __name__ == "__main__":
    main()
