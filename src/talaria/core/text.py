"""Text that is shown literally, in markdown or to a person who must decide; text of foreign objects; sizes (512M, 75%),
and times."""

import re
import time
from itertools import groupby

MAX_BLANK_LINES = 2
_BLANKS = re.compile(r"[ \t]{60,}")


def as_text(value: object) -> str:
    """`str()` of a foreign object, as text that can be encoded. This may run foreign code."""
    return str.encode(str(value), "utf-8", "replace").decode()


def fence(text: str) -> str:
    """The text in a fence that is longer than any inside it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text.rstrip()}\n{fence}"


def without_blank_runs(text: str) -> str:
    """Replaces many empty lines by one that says how many there were, and many spaces likewise, so that they hide
    nothing."""
    lines: list[str] = []
    for is_blank, run in groupby(text.split("\n"), key=lambda line: not line.strip()):
        found = [*run]
        too_many = is_blank and len(found) > MAX_BLANK_LINES
        lines += [f"[{len(found)} blank lines]"] if too_many else found
    return _BLANKS.sub(lambda found: f"[{len(found[0])} blanks]", "\n".join(lines))


_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)(?:i?B)?", re.IGNORECASE)
_SHARE = re.compile(r"(\d{1,3}) ?%")


def parse_size(text: str | int, whole_bytes: int = 0) -> int:
    """The size in bytes. A share is of `whole_bytes`, and is refused if that is 0. Raises `ValueError`."""
    share, size = _SHARE.fullmatch(str(text).strip()), _SIZE.fullmatch(str(text).strip())
    if share and whole_bytes and 0 < int(share[1]) <= 100:
        return whole_bytes * int(share[1]) // 100
    found = int(float(size[1]) * (1 << _UNITS[size[2].upper()])) if size else 0
    if found <= 0:
        examples = "512M, 4G or 75%" if whole_bytes else "512M or 4G"
        raise ValueError(f"{text!r} is not a size; write it like {examples}")
    return found


def show_size(size_bytes: int) -> str:
    """4 GiB, 1.5 GiB, 96 MiB, 12 bytes."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes >= 1 << shift:
            return f"{round(size_bytes / (1 << shift), 1):g} {unit}"
    return f"{size_bytes} bytes"


def show_time(at: float) -> str:
    """2026-11-19 20:05, in the local time zone."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
