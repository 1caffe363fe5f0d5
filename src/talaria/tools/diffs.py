"""Shows people and models what has changed between two texts: a unified diff of bounded size."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import islice

from talaria.core.messages import FileChange
from talaria.core.redaction import Redactor

MAX_DIFF_LINES = 200
MAX_LINE_CHARS = 300
MAX_COMPARED_LINES = 20_000
MAX_ANCHORED_LINES = 400_000
"""Of both sides together; in longer files everything between the first and last changed line counts as replaced."""
_MAX_MATCHED_PAIRS = 1_000_000
"""Lines of one side times lines of the other: up to this they are compared line by line."""
_CONTEXT_LINES = 3
_BOM = b"\xef\xbb\xbf"
NO_NEWLINE = "\\ No newline at end of file"

ChangedBlock = tuple[int, int, int, int]
"""Start and end of lines in the old text, and of the lines that replace them in the new text."""


def format_unified_diff(before: str, after: str, name: str) -> str:
    """Empty: nothing has changed. Bytes that are not text (surrogates) are shown as replacement characters."""
    if before == after:
        return ""
    old, new = _split_lines(before), _split_lines(after)
    start = _count_common_lines(old, new)
    end = _count_common_lines(old[start:][::-1], new[start:][::-1])
    first, last = max(0, start - _CONTEXT_LINES), max(0, end - _CONTEXT_LINES)
    length = len(old) + len(new) - 2 * (first + last)
    if length > MAX_COMPARED_LINES:
        return f"[lines {first + 1} to {len(old) - last} of {name} became {len(new) - first - last:,} others]"
    matcher = SequenceMatcher(None, old[first : len(old) - last], new[first : len(new) - last])
    codes = (code[1:] for code in matcher.get_opcodes() if code[0] != "equal")
    blocks = [(i1 + first, i2 + first, j1 + first, j2 + first) for i1, i2, j1, j2 in codes]
    lines = _format_hunks(blocks, old, new)
    shown = [_shorten(replace_surrogates(line)) for line in islice(lines, MAX_DIFF_LINES)]
    return "\n".join([f"--- {name}", f"+++ {name}", *shown, *_count_rest(lines)])


def compare_contents(
    path: str,
    before: bytes | None,
    after: bytes | None,
    redactor: Redactor,
    *,
    modes: tuple[int | None, int | None] = (None, None),
    is_whole: bool = False,
) -> FileChange:
    """How one file has changed. `before` or `after` None: it did not or does not exist. The result holds no secrets.

    Lines are compared as they are and shown redacted, so a line in which only a secret changed counts, too. The counts
    cover the whole diff. `is_whole`: the diff is not cut, however long it is, because a person decides about it.
    """
    kind = "created" if before is None else "deleted" if after is None else "changed"
    notes = [f"mode {modes[0]:o} → {modes[1]:o}"] if None not in modes and modes[0] != modes[1] else []
    sides = [side for side in (before, after) if side is not None]
    if any(b"\0" in side for side in sides):
        sizes = " before, ".join(f"{len(side):,} bytes" for side in sides)
        notes.insert(0, f"binary, {sizes}{' now' if kind == 'changed' else ''}")
        return FileChange(path, kind, note="; ".join(notes))
    if not any(sides):
        notes.insert(0, "empty")
    has_bom = [side.startswith(_BOM) for side in sides]
    if len({*has_bom}) > 1:
        notes.append(f"byte order mark {'added' if has_bom[1] else 'removed'}")
    contents = [(side or b"").removeprefix(_BOM) for side in (before, after)]
    ends: list[str] = []
    for one in contents:
        count, with_cr = one.count(b"\n"), one.count(b"\r\n")
        ends.append("none" if not count else "LF" if not with_cr else "CRLF" if with_cr == count else "mixed")
    if kind == "created":
        notes += [*(["byte order mark"] if has_bom[0] else []), *(["line ends CRLF"] if ends[1] == "CRLF" else [])]
    if "mixed" not in ends:  # otherwise every CR is shown
        contents = [one.replace(b"\r\n", b"\n") for one in contents]
        if {*ends} == {"CRLF", "LF"}:
            notes.append(f"line ends {ends[0]} → {ends[1]}")
    exactly = [one.decode("latin-1") for one in contents]  # every byte is a character of its own
    blocks = _find_changed_blocks(*map(_split_lines, exactly))
    readable = (redactor.data(one, keeps_lines=True).decode("utf-8", "backslashreplace") for one in contents)
    lines = _format_hunks(
        blocks, *(_split_lines(text, shown=shown) for text, shown in zip(exactly, readable, strict=True))
    )
    shown = list(lines) if is_whole else [_shorten(line) for line in islice(lines, MAX_DIFF_LINES)]
    added, removed = (sum(block[end] - block[end - 1] for block in blocks) for end in (3, 1))
    return FileChange(path, kind, added, removed, "\n".join([*shown, *_count_rest(lines)]), "; ".join(notes))


def replace_surrogates(text: str) -> str:
    """Replaces bytes that are not text, kept as surrogates, by the replacement character."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _split_lines(text: str, *, shown: str | None = None) -> list[str]:
    """Returns the lines of `shown` instead, if given; it has as many lines."""
    lines = (text if shown is None else shown).split("\n")
    if text.rpartition("\n")[2]:
        return [*lines[:-1], f"{lines[-1]}\n{NO_NEWLINE}"]
    return lines[:-1]


def _count_common_lines(some: Sequence[str], others: Sequence[str]) -> int:
    """At the beginning."""
    pairs = enumerate(zip(some, others, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(some), len(others)))


def _find_changed_blocks(old: Sequence[str], new: Sequence[str]) -> list[ChangedBlock]:
    """In order. Long texts are first split at lines that occur once on each side, which bounds the time."""
    start = _count_common_lines(old, new)
    end = _count_common_lines(old[start:][::-1], new[start:][::-1])
    i_end, j_end = len(old) - end, len(new) - end
    anchors = list[tuple[int, int]]()
    if (i_end - start) * (j_end - start) > _MAX_MATCHED_PAIRS and i_end + j_end - 2 * start <= MAX_ANCHORED_LINES:
        anchors = _find_anchors(old, new, (start, i_end, start, j_end))
    blocks, i, j = list[ChangedBlock](), start, start
    for i_next, j_next in (*anchors, (i_end, j_end)):
        if (i_next - i) * (j_next - j) > _MAX_MATCHED_PAIRS or i == i_next or j == j_next:
            if i != i_next or j != j_next:
                blocks.append((i, i_next, j, j_next))
        else:
            codes = SequenceMatcher(None, old[i:i_next], new[j:j_next]).get_opcodes()
            blocks += [(i + a1, i + a2, j + b1, j + b2) for kind, a1, a2, b1, b2 in codes if kind != "equal"]
        i, j = i_next + 1, j_next + 1
    return blocks


def _find_anchors(old: Sequence[str], new: Sequence[str], within: ChangedBlock) -> list[tuple[int, int]]:
    """The longest run of lines that occur once on each side, in the same order on both."""
    i1, i2, j1, j2 = within
    counted, others = Counter(old[i1:i2]), Counter(new[j1:j2])
    places = {old[i]: i for i in range(i1, i2) if counted[old[i]] == 1 and others[old[i]] == 1}
    pairs = [(places[new[j]], j) for j in range(j1, j2) if new[j] in places]
    ends, ends_at, before = list[int](), list[int](), list[int]()  # patience sorting
    for at, (i, _) in enumerate(pairs):
        length = bisect_left(ends, i)
        before.append(ends_at[length - 1] if length else -1)
        ends[length : length + 1], ends_at[length : length + 1] = [i], [at]
    run, at = list[tuple[int, int]](), ends_at[-1] if ends_at else -1
    while at >= 0:
        run.append(pairs[at])
        at = before[at]
    return run[::-1]


def _format_hunks(blocks: Sequence[ChangedBlock], old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    groups = list[list[ChangedBlock]]()
    for block in blocks:
        if groups and block[0] - groups[-1][-1][1] <= 2 * _CONTEXT_LINES:
            groups[-1].append(block)
        else:
            groups.append([block])
    for group in groups:
        (i1, _, j1, _), (_, i2, _, j2) = group[0], group[-1]
        before, after = min(_CONTEXT_LINES, i1), min(_CONTEXT_LINES, len(old) - i2)
        yield f"@@ -{_range(i1 - before, i2 + after)} +{_range(j1 - before, j2 + after)} @@"
        at = i1 - before
        for first, last, new_first, new_last in group:
            yield from (f" {line}" for line in old[at:first])
            yield from (f"-{line}" for line in old[first:last])
            yield from (f"+{line}" for line in new[new_first:new_last])
            at = last
        yield from (f" {line}" for line in old[at : i2 + after])


def _range(first: int, last: int) -> str:
    return f"{first + (1 if last > first else 0)},{last - first}"


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_LINE_CHARS else f"{text[:MAX_LINE_CHARS]}[…]"


def _count_rest(lines: Iterator[str]) -> list[str]:
    left = sum(1 for _ in lines)
    return [f"[… {left:,} more lines of this diff]"] if left else []
