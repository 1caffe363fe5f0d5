"""ripgrep in place of our own search of contents, where the system has it. Finds in the same files as ours does."""

import os
import re
import shutil
from collections.abc import Sequence

from talaria.tools.searching.program import MAX_LINE_CHARS, Hit, Wanted
from talaria.tools.searching.tree import MAX_FILE_BYTES, SKIPPED_FOLDERS

SYSTEM_FOLDERS = ("/usr/bin", "/usr/local/bin", "/bin", "/opt/homebrew/bin", "/opt/local/bin")
"""Only there: a program that a project brings along is not ours to run."""

FAULT = 2
"""Exit code."""

_LINE = re.compile(rb"(?P<path>[^\0]+)\0(?P<number>\d+):(?P<text>.*)", re.DOTALL)
_OPTIONS = (
    *("--no-config", "--no-messages", "--color=never", "--no-heading", "--with-filename", "--line-number", "--null"),
    *("--hidden", "--no-require-git", "--no-ignore-dot", "--no-ignore-exclude", "--no-ignore-global"),
    *("--sort=path", "--crlf", f"--max-filesize={MAX_FILE_BYTES}"),
    *(f"--max-columns={4 * MAX_LINE_CHARS}", "--max-columns-preview"),
)


def executable() -> str | None:
    given = os.environ.get("PATH", "").split(os.pathsep)
    return shutil.which("rg", path=os.pathsep.join(one for one in given if one in SYSTEM_FOLDERS) or os.devnull)


def arguments(wanted: Wanted) -> Sequence[str]:
    globs = [f"--glob=!**/{name}/**" for name in sorted(SKIPPED_FOLDERS)]
    is_any = wanted["glob"] == "*"  # as a type: --glob would also bring back what is ignored
    chosen = [] if is_any else [f"--type-add=wanted:{wanted['glob']}", "--type=wanted"]
    return (*_OPTIONS, *chosen, *globs, f"--regexp={wanted['pattern']}", "--", wanted["root"])


def hit(line: bytes) -> Hit | None:
    """None: this line tells something else."""
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    text = found["text"].decode("utf-8", "replace")
    return os.fsdecode(found["path"]), int(found["number"]), text[:MAX_LINE_CHARS].removesuffix("\r")
