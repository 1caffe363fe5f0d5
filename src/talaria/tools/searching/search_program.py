"""Takes what is wanted as JSON, prints one match per line: a JSON list of path, line number, line. If it cannot search,
it prints a sentence as a JSON string. It runs in a sandbox where there is one (`sandbox/reading.py`)."""

import fnmatch
import json
import re
import sys
from collections.abc import Iterator
from itertools import islice
from typing import NoReturn, TypedDict

from talaria.core.secret_finder import SecretFinder, decode_text, encode_text
from talaria.tools.searching import file_tree
from talaria.tools.searching.file_tree import FileToRead, Identity, IgnoreText, PrivateFolders

MAX_LINE_CHARS = 300
REFUSED = 3
"""Exit code, with a sentence."""

FileHit = tuple[str, int, str]
"""A path; a line, from 1, and what stands there. Of a file found by its name they are 0 and empty."""


class SearchRequest(TypedDict):
    root: str
    """Resolved."""
    pattern: str
    """Of content."""
    by_name: bool
    """The content does not count."""
    glob: str
    """Of names."""
    skip: int
    limit: int
    hidden: list[Identity]
    """Files and folders that are not searched."""
    shown: list[Identity]
    """Folders inside of those that are."""
    around: list[IgnoreText] | None
    """What the folders above the root ignore; None: look there."""
    secrets: list[str]
    """In every form. Files are searched as if they held something else in their place: so a search, which tells
    whether something is there, cannot be asked about them piece by piece."""


def main() -> None:
    wanted: SearchRequest = json.load(sys.stdin)
    hidden, shown = (frozenset((device, inode) for device, inode in wanted[which]) for which in ("hidden", "shown"))
    private = PrivateFolders(hidden, shown)
    try:
        with file_tree.open_files(wanted["root"], private, wanted["around"]) as files:
            hits = _Search(wanted, private).hits(files)
            for hit in islice(hits, wanted["skip"], wanted["skip"] + wanted["limit"]):
                sys.stdout.write(f"{json.dumps(hit)}\n")
                sys.stdout.flush()
    except FileNotFoundError:
        _refuse(f"{wanted['root']} does not exist.")
    except OSError as fault:
        _refuse(f"{wanted['root']} cannot be searched: {fault.strerror}.")


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as fault:
        _refuse(f"{pattern!r} is not a regular expression: {fault}.")


def _refuse(sentence: str) -> NoReturn:
    sys.stdout.write(f"{json.dumps(sentence)}\n")
    sys.exit(REFUSED)


class _Search:
    def __init__(self, wanted: SearchRequest, private: PrivateFolders) -> None:
        self._wanted = wanted
        self._hidden = private.hidden
        self._finder = SecretFinder(wanted["secrets"]) if wanted["secrets"] else None
        self._pattern = None if wanted["by_name"] else _compile(wanted["pattern"])
        self._make_sieve = None if self._pattern is None else _make_sieve(wanted["pattern"])

    def hits(self, files: Iterator[FileToRead]) -> Iterator[FileHit]:
        for file in files:
            path = self._redact_path(file.path)
            if self._fits(path):
                yield from ((path, 0, ""),) if self._pattern is None else self._matches(file, path, self._pattern)

    def _redact_path(self, path: str) -> str:
        if self._finder is None:
            return path
        return decode_text(self._finder.redact(encode_text(path)))

    def _fits(self, path: str) -> bool:
        """By its name, or by its path below the root, where `**/` may also be nothing."""
        glob = self._wanted["glob"]
        if glob == "*":
            return True
        below = path[len(self._wanted["root"]) :].lstrip("/")
        given = (path.rpartition("/")[2], below)
        return any(fnmatch.fnmatchcase(one, each) for one in given for each in (glob, glob.replace("**/", "")))

    def _matches(self, file: FileToRead, path: str, pattern: re.Pattern[str]) -> Iterator[FileHit]:
        content = file_tree.read_content(file, self._hidden)
        if self._finder is not None:
            content = self._finder.redact(content, keeps_lines=True)
        text = content.decode("utf-8", "replace")
        if self._make_sieve is not None and not self._make_sieve.search(text):
            return
        for number, line in enumerate(text.split("\n"), 1):
            if pattern.search(line.removesuffix("\r")):
                yield path, number, line[:MAX_LINE_CHARS].removesuffix("\r")


def _make_sieve(pattern: str) -> re.Pattern[str] | None:
    """Finds something in a whole text if a line of it fits, and quickly: for patterns that cannot fit more than a few
    characters, and do not look at what is around them. Else None."""
    if any(piece in pattern for piece in ("*", "+", "?", "{", "$", r"\A", r"\Z", r"\B")):
        return None
    return re.compile(pattern, re.MULTILINE)
