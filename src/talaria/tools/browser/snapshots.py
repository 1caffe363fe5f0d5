"""What a page looks like to the model: the tree of what can be read and used, short enough to be read."""

import re

PAGE_CHARS = 16_000
MAX_LINE_CHARS = 300
_NOISE = re.compile(r" \[cursor=pointer\]")


def shown(tree: str, offset: int) -> str:
    """From line `offset` on."""
    lines = [_short(line) for line in tree.splitlines()]
    end, size = offset, 0
    while end < len(lines) and size + len(lines[end]) < PAGE_CHARS:
        size += len(lines[end]) + 1
        end += 1
    left = len(lines) - end
    if not lines[offset:end]:
        return "[nothing]" if not lines else f"[it ends at offset={len(lines)}]"
    more = [f"[… {left:,} more lines; continue with browser_snapshot, offset={end}]"] if left else []
    return "\n".join([*lines[offset:end], *more])


def _short(line: str) -> str:
    plain = _NOISE.sub("", line)
    return plain if len(plain) <= MAX_LINE_CHARS else f"{plain[:MAX_LINE_CHARS]}…"
