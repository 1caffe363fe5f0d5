"""How many columns a text takes, and the part of it that fits into so many."""

import re

from prompt_toolkit.utils import get_cwidth

_LISTED = re.compile(r" *\S+(?: \S+)* {2,}")


def width(text: str) -> int:
    return get_cwidth(text)


def cut(text: str, columns: int) -> str:
    """No wider than that; an ellipsis says that something is missing."""
    if width(text) <= columns:
        return text
    kept, used = "", 1
    for sign in text:
        used += width(sign)
        if used > columns:
            break
        kept += sign
    return f"{kept}…" if columns > 0 else ""


def wrapped(text: str, columns: int) -> list[str]:
    """Every line of it broken where it must be, at any sign: nothing of it is hidden."""
    lines, columns = list[str](), max(1, columns)
    for line in text.split("\n"):
        if line.isascii() and line.isprintable():  # quickly: it may be very long
            lines += [line[start : start + columns] for start in range(0, len(line), columns)] or [""]
            continue
        piece, used = "", 0
        for sign in line:
            wide = width(sign)
            if piece and used + wide > columns:
                lines.append(piece)
                piece, used = "", 0
            piece += sign
            used += wide
        lines.append(piece)
    return lines


def paragraphs(text: str, columns: int) -> str:
    """Broken between words where there are any."""
    return "\n".join(_broken(line, columns) for line in text.split("\n"))


def _broken(line: str, columns: int) -> str:
    """What goes on below begins where the line did, or under the second column of a list of two."""
    words = line.split(" ")
    first = _LISTED.match(line)
    indent = len(first[0]) if first and len(first[0]) <= columns // 2 else len(line) - len(line.lstrip(" "))
    lines = [words[0]]
    for word in words[1:]:
        if lines[-1].strip() and width(lines[-1]) + 1 + width(word) > columns:
            lines.append(" " * indent + word)
        else:
            lines[-1] += f" {word}"
    return "\n".join(lines)
