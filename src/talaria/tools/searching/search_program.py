"""Reads a request as JSON and prints one match per line: a JSON list of path, line number, line. If it cannot search,
it prints a sentence as a JSON string. It runs in the sandbox if there is one (`sandbox/project_reader.py`)."""

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
"""A path, a line number from 1, and the line. For a file found by name they are 0 and empty."""


class SearchRequest(TypedDict):
    root: str
    """Resolved."""
    pattern: str
    """For content."""
    by_name: bool
    """Content is not searched."""
    glob: str
    """For names."""
    skip: int
    limit: int
    hidden: list[Identity]
    """Files and folders that are not searched."""
    shown: list[Identity]
    """Folders inside hidden ones that are."""
    around: list[IgnoreText] | None
    """The ignore files above the root; None: look there."""
    secrets: list[str]
    """In every form. They are replaced before a file is searched; otherwise searches would reveal a secret piece by
    piece."""


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


def _refuse(sentence: str) -> NoReturn:
    sys.stdout.write(f"{json.dumps(sentence)}\n")
    sys.exit(REFUSED)


class _Search:
    def __init__(self, wanted: SearchRequest, private: PrivateFolders) -> None:
        self._wanted = wanted
        self._hidden = private.hidden
        self._finder = SecretFinder(wanted["secrets"]) if wanted["secrets"] else None
        self._pattern: re.Pattern[str] | None = None
        self._sieve: re.Pattern[str] | None = None
        """A quick test of a whole text: if it finds nothing, no line matches. Only for patterns that match no more than
        a few characters and do not look around them."""
        if not wanted["by_name"]:
            try:
                self._pattern = re.compile(wanted["pattern"])
            except (re.error, OverflowError, RecursionError) as fault:
                _refuse(f"{wanted['pattern']!r} is not a regular expression: {fault}.")
            unbounded = ("*", "+", "?", "{", "$", r"\A", r"\Z", r"\B")
            if not any(piece in wanted["pattern"] for piece in unbounded):
                self._sieve = re.compile(wanted["pattern"], re.MULTILINE)

    def hits(self, files: Iterator[FileToRead]) -> Iterator[FileHit]:
        glob, root = self._wanted["glob"], self._wanted["root"]
        globs = (glob, glob.replace("**/", ""))  # `**/` may also match nothing
        for file in files:
            path = file.path
            if self._finder is not None:
                path = decode_text(self._finder.redact(encode_text(path)))
            names = (path.rpartition("/")[2], path[len(root) :].lstrip("/"))
            if glob != "*" and not any(fnmatch.fnmatchcase(name, each) for name in names for each in globs):
                continue
            if self._pattern is None:
                yield path, 0, ""
                continue
            content = file_tree.read_content(file, self._hidden)
            if self._finder is not None:
                content = self._finder.redact(content, keeps_lines=True)
            text = content.decode("utf-8", "replace")
            if self._sieve is not None and not self._sieve.search(text):
                continue
            for number, line in enumerate(text.split("\n"), 1):
                if self._pattern.search(line.removesuffix("\r")):
                    yield path, number, line[:MAX_LINE_CHARS].removesuffix("\r")
