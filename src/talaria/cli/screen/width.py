"""Measures, cuts and wraps text by columns.

The unit is the grapheme cluster, which people see as one character: an emoji family, a Hindi syllable, a letter with
its accents. Nothing is cut or wrapped inside one.
"""

import os
import re
from collections.abc import Iterator
from functools import lru_cache

from wcwidth import grapheme_boundary_before, iter_graphemes, wcstwidth

_LISTED = re.compile(r" *\S+(?: \S+)* {2,}")


def clusters(text: str) -> Iterator[str]:
    return iter(text) if text.isascii() else iter_graphemes(text)


def cluster_before(text: str, place: int) -> int:
    """The start of the cluster that ends at this position or extends past it."""
    return grapheme_boundary_before(text, place) if place > 0 else 0


def width(text: str) -> int:
    """The columns that this terminal draws it with. Control characters take none."""
    if text.isascii() and text.isprintable():
        return len(text)
    return sum(map(cluster_width, clusters(text)))


@lru_cache(maxsize=10_000)
def cluster_width(cluster: str) -> int:
    """Not every terminal draws a family as one emoji; wcwidth knows by name which do. Many terminals call themselves
    xterm, so that name alone says nothing."""
    name = os.environ.get("TERM", "")
    by_variable = {"VTE_VERSION": "vte", "XTERM_VERSION": "xterm"} if name.startswith("xterm") else {}
    found = (name for variable, name in by_variable.items() if variable in os.environ)
    terminal = os.environ.get("TERM_PROGRAM") or next(found, name if name != "xterm" else "")
    return max(0, wcstwidth(cluster, term_program=terminal))


def cut(text: str, columns: int) -> str:
    """Cut to at most `columns`, with an ellipsis for the rest."""
    if width(text) <= columns:
        return text
    kept, used = "", 1
    for cluster in clusters(text):
        used += cluster_width(cluster)
        if used > columns:
            break
        kept += cluster
    return f"{kept}…" if columns > 0 else ""


def wrap(text: str, columns: int) -> list[str]:
    """Break each line where it must be broken, between any two characters. Nothing is left out."""
    lines, columns = list[str](), max(1, columns)
    for line in text.split("\n"):
        if line.isascii() and line.isprintable():  # the fast way: it may be very long
            lines += [line[start : start + columns] for start in range(0, len(line), columns)] or [""]
            continue
        piece, used = "", 0
        for cluster in clusters(line):
            wide = cluster_width(cluster)
            if piece and used + wide > columns:
                lines.append(piece)
                piece, used = "", 0
            piece += cluster
            used += wide
        lines.append(piece)
    return lines


def wrap_words(text: str, columns: int) -> str:
    """Break lines between words. Continuation lines are indented like the line, or to the second column of a
    two-column list."""
    wrapped = list[str]()
    for line in text.split("\n"):
        first = _LISTED.match(line)
        indent = len(first[0]) if first and len(first[0]) <= columns // 2 else len(line) - len(line.lstrip(" "))
        row, *words = line.split(" ")
        for word in words:
            if row.strip() and width(row) + 1 + width(word) > columns:
                wrapped.append(row)
                row = " " * indent + word
            else:
                row += f" {word}"
        wrapped.append(row)
    return "\n".join(wrapped)
