"""What has changed between two texts, as people and models read it: a unified diff of bounded size."""

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import islice

from talaria.model.messages import FileChange
from talaria.model.redaction import Redactor

MAX_DIFF_LINES = 200
MAX_LINE_CHARS = 300
MAX_COMPARED_LINES = 20_000
_AROUND = 3


def unified(before: str, after: str, name: str) -> str:
    """Empty: nothing has changed. Bytes that are no text (surrogates) are shown as such."""
    if before == after:
        return ""
    old, new = _lines(before), _lines(after)
    start = _alike(old, new)
    end = _alike(old[start:][::-1], new[start:][::-1])
    start, end = max(0, start - _AROUND), max(0, end - _AROUND)
    old, new = old[start : len(old) - end], new[start : len(new) - end]
    if len(old) + len(new) > MAX_COMPARED_LINES:
        return f"[lines {start + 1} to {start + len(old)} of {name} became {len(new):,} others]"
    lines = _hunks(old, new, start)
    shown = [_shown(line) for line in islice(lines, MAX_DIFF_LINES)]
    left = sum(1 for _ in lines)
    more = [f"[… {left:,} more lines of this diff]"] if left else []
    return "\n".join([f"--- {name}", f"+++ {name}", *shown, *more])


def compare(path: str, before: bytes | None, after: bytes | None, redactor: Redactor) -> FileChange:
    """What became of one file; None: it is not there. Nothing secret is in the answer."""
    kind = "created" if before is None else "deleted" if after is None else "changed"
    if b"\0" in (before or b"") + (after or b""):
        sizes = " before, ".join(f"{len(one):,} bytes" for one in (before, after) if one is not None)
        return FileChange(path, kind, note=f"binary, {sizes}{' now' if kind == 'changed' else ''}")
    old, new = (redactor.data(one or b"").decode("utf-8", "surrogateescape") for one in (before, after))
    hunks = unified(old, new, path).split("\n")[2:]
    added, removed = (sum(line.startswith(sign) for line in hunks) for sign in "+-")
    return FileChange(path, kind, added, removed, "\n".join(hunks))


def visible(text: str) -> str:
    """Bytes that are no text, kept as surrogates, as the sign for that."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _lines(text: str) -> list[str]:
    *whole, last = text.split("\n")
    return [*whole, f"{last}\n\\ No newline at end of file"] if last else whole


def _alike(some: Sequence[str], others: Sequence[str]) -> int:
    """How many lines both begin with."""
    pairs = enumerate(zip(some, others, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(some), len(others)))


def _hunks(old: Sequence[str], new: Sequence[str], start: int) -> Iterator[str]:
    for group in SequenceMatcher(None, old, new).get_grouped_opcodes(_AROUND):
        first, last = group[0], group[-1]
        yield f"@@ -{_range(first[1], last[2], start)} +{_range(first[3], last[4], start)} @@"
        for kind, i1, i2, j1, j2 in group:
            if kind == "equal":
                yield from (f" {line}" for line in old[i1:i2])
                continue
            yield from (f"-{line}" for line in old[i1:i2])
            yield from (f"+{line}" for line in new[j1:j2])


def _range(first: int, last: int, start: int) -> str:
    length = last - first
    return f"{first + start + (1 if length else 0)},{length}"


def _shown(line: str) -> str:
    text = visible(line)
    return text if len(text) <= MAX_LINE_CHARS else f"{text[:MAX_LINE_CHARS]}[…]"
