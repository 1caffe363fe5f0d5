"""Reading a command line, as far as that can be done without running it. A convenience: the sandbox is the boundary."""

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

from talaria.tools.protected import Protected

_SIGNS = frozenset("|&;<>()$`\\\n*?[]{}~!#=\r")
"""With one of these outside of quotes, or with quotes around some of them, more happens than the words say."""
_INTERPRETERS = (
    r"(?:ba|da|z|k|fi|c|tc)?sh|python[\d.]*|node|deno|bun|perl|ruby|php|lua|awk|gawk|env|xargs|sudo|doas|su|eval|exec|"
    r"source|\.|nohup|time|timeout|nice|watch|find|make|npx|uvx|pipx|ssh|docker|podman|kubectl|systemd-run|export|alias"
)
"""What they do is said by their arguments or by files: a word in front of it means nothing."""
_SEPARATORS = r"\|\|?|&&?|;|\n|\(|\)|\$\(|`|\{|\}|\bthen\b|\bdo\b|\belse\b"
_DISK = r"/dev/(?:sd|nvme|vd|hd|mmcblk|mapper|md|dm-|xvd)"
_SYSTEM = r"(?:/|/\*|~/?|\$HOME/?|/(?:home|usr|etc|var|boot|root|bin|lib)/?\*?)"
_RUINOUS = (
    rf"\brm\b(?=[^|;&\n]*\s-\w*[rR])[^|;&\n]*\s{_SYSTEM}(?:\s|$|[|;&])",
    r"\bmkfs(?:\.\w+)?\b|\bwipefs\b|\bblkdiscard\b|\bsgdisk\b.*--zap",
    rf"(?:\bdd\b[^|;&\n]*\bof=|\b(?:shred|tee)\b[^|;&\n]*\s|>\s*){_DISK}",
    r":\s*\(\s*\)\s*\{\s*:\s*\|\s*:\s*&\s*\}",
)


def simple(command: str) -> Sequence[str] | None:
    """Its words, if it is one program with plain words behind it, named by no path of the project; else None."""
    if _SIGNS & set(command):
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if not words or re.fullmatch(_INTERPRETERS, PurePosixPath(words[0]).name) or _is_relative(words[0]):
        return None
    return words


def _is_relative(program: str) -> bool:
    return "/" in program and not program.startswith("/")


def matches(command: str, pattern: str, *, is_allowing: bool) -> bool:
    """`*` stands for a word, at the end for any number of them. To allow, it must be all that happens."""
    wanted = pattern.split()
    if is_allowing:
        words = simple(command)
        return command.strip() == pattern.strip() or (words is not None and _fits(words, wanted))
    return any(_fits(_loosely(part), wanted) for part in (command, *re.split(_SEPARATORS, command)))


def _loosely(part: str) -> Sequence[str]:
    try:
        words = shlex.split(part)
    except ValueError:
        words = part.split()
    return [PurePosixPath(words[0]).name, *words[1:]] if words else words


def _fits(words: Sequence[str], wanted: Sequence[str]) -> bool:
    for index, pattern in enumerate(wanted):
        if pattern == "*" and index == len(wanted) - 1:
            return True
        if index >= len(words) or pattern not in ("*", words[index]):
            return False
    return len(words) == len(wanted)


def is_ruinous(command: str, protected: Protected) -> bool:
    """Wipes the disk, or goes for what is private."""
    return any(re.search(pattern, command) for pattern in _RUINOUS) or any(
        place in command for place in protected.names
    )
