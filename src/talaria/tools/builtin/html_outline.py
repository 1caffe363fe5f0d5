"""Which elements are open around the words, as far as that matters: what is noise, what is the main part.

An end tag closes what was left open inside it, and is passed over if nothing of that name is open. Each element is put
down and taken up once, so that broken nesting costs nothing extra.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Literal

from talaria.tools.builtin.html_tokens import Tag

MAX_TABLES = 32

Part = Literal["noise", "main", "article", "list", "quote", "pre", "table", "plain"]

_PROGRAMS = [
    "script",
    "style",
    "noscript",
    "template",
    "svg",
    "math",
    "iframe",
    "object",
    "applet",
    "canvas",
    "audio",
    "video",
    "map",
    "datalist",
]
_FURNITURE = ["nav", "aside", "footer", "button", "select", "textarea", "dialog"]
_PARTS: dict[str, Part] = {
    **dict.fromkeys(("ul", "ol", "menu", "dir"), "list"),
    **dict.fromkeys(("body", "center", "details", "div", "fieldset", "figure", "form", "header", "section"), "plain"),
    "article": "article",
    "blockquote": "quote",
    "main": "main",
    "pre": "pre",
    "table": "table",
}
_NOISY_ROLES = frozenset(
    ("alertdialog", "banner", "complementary", "contentinfo", "dialog", "menu", "navigation", "search")
)
_SINGLE = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "wbr")
)
_ENDED_BY_NEXT = frozenset(("p", "li", "dt", "dd", "tr", "td", "th", "option"))
_UNSEEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)


class Outline:
    def __init__(self, *, is_lenient: bool) -> None:
        self._is_lenient = is_lenient
        """Menus and the like are shown, too."""
        self._open: list[tuple[str, Part]] = []
        self._parts: Counter[Part] = Counter()
        self._names: list[Counter[str]] = [Counter()]
        """How many of a name are open, in each open table apart: what is inside does not close what is outside."""

    @property
    def is_noise(self) -> bool:
        return self._parts["noise"] > 0

    @property
    def rank(self) -> int:
        """2 in the main part, 1 in an article, 0 elsewhere."""
        return 2 if self._parts["main"] else min(1, self._parts["article"])

    @property
    def quotes(self) -> int:
        return self._parts["quote"]

    def open(self, tag: Tag) -> Part | None:
        """What begins here; None for what is not kept track of."""
        if tag.name in _SINGLE:
            return None
        part = self._part(tag)
        if part is None or (part == "table" and len(self._names) > MAX_TABLES):
            return None
        if self.is_noise:
            part = "noise"
        elif self._parts["pre"] and part != "noise":
            part = "plain"
        self._open.append((tag.name, part))
        self._parts[part] += 1
        self._names[-1][tag.name] += 1
        if part == "table":
            self._names.append(Counter())
        return part

    def ended_by(self, tag: Tag) -> Iterator[Part]:
        """What a start tag ends without a word: an unseen paragraph lasts until the next one."""
        if tag.name in _ENDED_BY_NEXT and self._open and self._open[-1][0] == tag.name:
            yield from self._close_to(len(self._open) - 1)

    def close(self, name: str) -> Iterator[Part]:
        """What ends with this end tag, innermost first; each is open until the next is asked for."""
        if name == "table" and len(self._names) > 1 and not self._names[-1][name]:
            yield from self._close_to(self._last("table", by_part=True))
        elif self._names[-1][name]:
            yield from self._close_to(self._last(name))

    def close_all(self) -> Iterator[Part]:
        yield from self._close_to(0)

    def _last(self, wanted: str, *, by_part: bool = False) -> int:
        """Where the innermost of these stands. All above it is closed next, so it is looked for only once."""
        at = len(self._open) - 1
        while self._open[at][by_part] != wanted:
            at -= 1
        return at

    def _close_to(self, depth: int) -> Iterator[Part]:
        while len(self._open) > depth:
            name, part = self._open[-1]
            yield part
            self._open.pop()
            if part == "table":
                self._names.pop()
            self._parts[part] -= 1
            self._names[-1][name] -= 1

    def _part(self, tag: Tag) -> Part | None:
        name, attributes = tag.name, tag.attributes
        if name in _PROGRAMS:
            return None if tag.is_closed and name in ("svg", "math") else "noise"
        if _is_unseen(attributes):
            return "noise"
        role = attributes.get("role", "").lower()
        is_furniture = name in _FURNITURE or role in _NOISY_ROLES or (name == "header" and self.rank == 0)
        if is_furniture and not self._is_lenient:
            return "noise"
        return "main" if role == "main" else _PARTS.get(name)


def _is_unseen(attributes: dict[str, str]) -> bool:
    return (
        "hidden" in attributes
        or attributes.get("aria-hidden", "").lower() == "true"
        or _UNSEEN.search(attributes.get("style", "")) is not None
    )
