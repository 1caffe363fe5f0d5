"""Takes what is wanted as JSON, prints one match per line: a JSON list of path, line number, line."""

import fnmatch
import json
import re
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NoReturn, TypedDict

from talaria.tools.searching import tree

MAX_LINE_CHARS = 300
REFUSED = 3
"""Exit code; the sentence stands on standard error."""

Hit = tuple[str, int, str]
"""A path; a line, from 1, and what stands there. Of a file found by its name they are 0 and empty."""


class Wanted(TypedDict):
    root: str
    pattern: str
    """Of content."""
    by_name: bool
    """The content does not count."""
    glob: str
    """Of names."""
    skip: int
    limit: int
    hidden: list[str]
    """Files and folders that are not searched."""


def main() -> None:
    wanted: Wanted = json.loads(sys.argv[1])
    root = Path(wanted["root"])
    if not root.exists():
        _refuse(f"{root} does not exist.")
    for hit in islice(_found(root, wanted), wanted["skip"], wanted["skip"] + wanted["limit"]):
        sys.stdout.write(f"{json.dumps(hit)}\n")
        sys.stdout.flush()


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as fault:
        _refuse(f"{pattern!r} is not a regular expression: {fault}.")


def _refuse(sentence: str) -> NoReturn:
    sys.stderr.buffer.write(sentence.encode("utf-8", "backslashreplace"))
    sys.exit(REFUSED)


def _found(root: Path, wanted: Wanted) -> Iterator[Hit]:
    pattern = None if wanted["by_name"] else _compiled(wanted["pattern"])
    for path in tree.files(root, wanted["hidden"]):
        if _fits(path, root, wanted["glob"]):
            yield from _matches(path, pattern) if pattern else ((path, 0, ""),)


def _fits(path: str, root: Path, glob: str) -> bool:
    """By its name, or by its path below the root, where `**/` may also be nothing."""
    below = path[len(str(root)) :].lstrip("/")
    given = (path.rpartition("/")[2], below)
    return any(fnmatch.fnmatchcase(one, each) for one in given for each in (glob, glob.replace("**/", "")))


def _matches(path: str, pattern: re.Pattern[str]) -> Iterator[Hit]:
    for number, line in enumerate(tree.content(path).decode("utf-8", "replace").split("\n"), 1):
        if pattern.search(line.removesuffix("\r")):
            yield path, number, line[:MAX_LINE_CHARS].removesuffix("\r")
