"""Reads HTML as a stream of tags and text, in linear time for any input: it builds no tree and reads nothing twice.

The HTML5 standard makes tree builders quadratic: with 100,000 elements open, every tag searches them all. They are also
written in C; Python's own parser was quadratic until recently.

`Outline` tracks the open elements that matter: which text is noise, and which is the main part. An end tag closes
whatever is open inside its element, and is ignored if no such element is open. Each element is pushed and popped once,
so broken nesting costs nothing extra.
"""

import re
from collections import Counter
from collections.abc import Iterator
from html import unescape
from typing import Literal, NamedTuple

CHUNK_CHARS = 64 << 10
"""Text is handled in chunks, so that a thread with a long page does not block others."""
MAX_VALUE_CHARS = 4_000

_MARKUP = re.compile(r"<(?=[a-zA-Z/!?])")
_NAME = re.compile(r"[a-zA-Z][^ \t\n\f\r/>]*+")
_ATTRIBUTE = re.compile(
    r"""
    [ \t\n\f\r/]*+
    (?: (?P<end>>)
      | (?P<name>[^ \t\n\f\r/>][^ \t\n\f\r/>=]*+)
        (?: [ \t\n\f\r]*+ = [ \t\n\f\r]*+
            (?: "(?P<double>[^"]*+)" | '(?P<single>[^']*+)' | (?P<bare>[^ \t\n\f\r>"'][^ \t\n\f\r>]*+)? )
        )?
    )""",
    re.VERBOSE,
)
_REFERENCE = re.compile(r"&(?:#[0-9]{1,7}(?![0-9])|#[xX][0-9a-fA-F]{1,6}(?![0-9a-fA-F])|[a-zA-Z][a-zA-Z0-9]{1,31});?")
_LONGEST_REFERENCE = 34
_KEPT = frozenset(("alt", "aria-hidden", "class", "content", "hidden", "href", "name", "rel", "role", "start", "style"))
_RAW = {
    name: re.compile(f"</{name}(?=[ \t\n\f\r/>])", re.IGNORECASE | re.ASCII)
    for name in ("script", "style", "xmp", "iframe", "noembed", "noframes", "title", "textarea")
}
_NONE: dict[str, str] = {}
_SHOWN = ("title", "textarea", "xmp")
_INVISIBLE = re.compile(
    "["
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # controls
    "\u00ad\u200b\u2060-\u2064\ufeff"  # zero width
    "\u202a-\u202e\u2066-\u2069"  # changes of direction
    "\U000e0000-\U000e007f"  # tags: a whole hidden alphabet
    "\ud800-\udfff"  # lone surrogates
    "]"
)
"""Not joiners: scripts and emoji need them."""


class Tag(NamedTuple):
    name: str
    """In lower case."""
    is_end: bool
    attributes: dict[str, str]
    """Only the ones we use."""
    is_closed: bool = False
    """`<name/>`, which has a meaning in XML and in drawings."""


def strip_invisible(text: str) -> str:
    """Drops characters that people would not see."""
    return _INVISIBLE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def tokenize(html: str, *, is_xml: bool = False) -> Iterator[Tag | str]:
    """Tags, and text with character references replaced. The content of scripts and styles is left out."""
    at = searched = 0
    while searched < len(html):
        markup = _MARKUP.search(html, searched, searched + CHUNK_CHARS + 1)
        if markup is None:
            searched += CHUNK_CHARS
            continue
        yield from _split_text(html, at, markup.start())
        tag, at = _read_markup(html, markup.start(), is_xml=is_xml)
        if tag is not None:
            yield tag
        if isinstance(tag, Tag) and tag.name in _RAW and not tag.is_end and not is_xml:
            content = at
            found = _RAW[tag.name].search(html, at)
            at = found.start() if found else len(html)
            if tag.name in _SHOWN:
                yield from _split_text(html, content, at)
        searched = at
    yield from _split_text(html, at, len(html))


def strip_tags(html: str) -> str:
    """The text on one line."""
    return " ".join("".join(token for token in tokenize(html) if isinstance(token, str)).split())


def _read_markup(html: str, start: int, *, is_xml: bool) -> tuple[Tag | str | None, int]:
    """What begins at a `<`, and where to continue."""
    if html.startswith("<!--", start):
        return None, _after(html, "-->", start + 2)  # `<!-->` is complete, too
    if is_xml and html.startswith("<![CDATA[", start):
        end = _after(html, "]]>", start)
        return html[start + 9 : end].removesuffix("]]>"), end
    is_end = html.startswith("</", start)
    name = _NAME.match(html, start + 1 + is_end)
    if name is None:
        return None, _after(html, ">", start)
    at = name.end()
    if html.startswith(">", at):
        return Tag(name[0].lower(), is_end, _NONE), at + 1
    kept: dict[str, str] = {}
    while (found := _ATTRIBUTE.match(html, at)) is not None:
        at = found.end()
        if found["end"]:
            return Tag(name[0].lower(), is_end, kept, is_closed=html[at - 2] == "/"), at
        key = found["name"].lower()
        if key in _KEPT and key not in kept:
            value = found["double"] or found["single"] or found["bare"] or ""
            kept[key] = _unescape(value[:MAX_VALUE_CHARS])
    return None, len(html)  # the tag has no end


def _after(html: str, what: str, start: int) -> int:
    at = html.find(what, start)
    return len(html) if at < 0 else at + len(what)


def _split_text(html: str, start: int, end: int) -> Iterator[str]:
    while start < end:
        stop = min(start + CHUNK_CHARS, end)
        if stop < end:
            reference = html.rfind("&", stop - _LONGEST_REFERENCE, stop)
            stop = reference if reference > start else stop
        yield _unescape(html[start:stop])
        start = stop


def _unescape(text: str) -> str:
    """One by one: `unescape` on a whole text fails on a number with thousands of digits."""
    return _REFERENCE.sub(lambda found: unescape(found[0]), text) if "&" in text else text


MAX_TABLES = 32

PagePart = Literal["noise", "main", "article", "list", "quote", "pre", "table", "plain"]

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
_NAVIGATION = ["nav", "aside", "footer", "button", "select", "textarea", "dialog"]
_PARTS: dict[str, PagePart] = {
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
_INVISIBLE_STYLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)


class Outline:
    def __init__(self, *, is_lenient: bool) -> None:
        """`is_lenient`: menus and the like are shown, too."""
        self._is_lenient = is_lenient
        self._open: list[tuple[str, PagePart]] = []
        self._parts: Counter[PagePart] = Counter()
        self._names: list[Counter[str]] = [Counter()]
        """How many elements of each name are open, per open table: tags inside a table close nothing outside it."""

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

    def open(self, tag: Tag) -> PagePart | None:
        """The part that begins here; None for elements that are not tracked."""
        if tag.name in _SINGLE:
            return None
        part = self._classify(tag)
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

    def close_implied(self, tag: Tag) -> Iterator[PagePart]:
        """What a start tag closes implicitly: a paragraph without an end tag lasts until the next one."""
        if tag.name in _ENDED_BY_NEXT and self._open and self._open[-1][0] == tag.name:
            yield from self._close_to(len(self._open) - 1)

    def close(self, name: str) -> Iterator[PagePart]:
        """What this end tag closes, innermost first. Each part stays open until the next one is requested."""
        if name == "table" and len(self._names) > 1 and not self._names[-1][name]:
            yield from self._close_to(self._last("table", by_part=True))
        elif self._names[-1][name]:
            yield from self._close_to(self._last(name))

    def close_all(self) -> Iterator[PagePart]:
        yield from self._close_to(0)

    def _last(self, wanted: str, *, by_part: bool = False) -> int:
        """The position of the innermost one. Everything above it is closed next, so it is searched only once."""
        at = len(self._open) - 1
        while self._open[at][by_part] != wanted:
            at -= 1
        return at

    def _close_to(self, depth: int) -> Iterator[PagePart]:
        while len(self._open) > depth:
            name, part = self._open[-1]
            yield part
            self._open.pop()
            if part == "table":
                self._names.pop()
            self._parts[part] -= 1
            self._names[-1][name] -= 1

    def _classify(self, tag: Tag) -> PagePart | None:
        name, attributes = tag.name, tag.attributes
        if name in _PROGRAMS:
            return None if tag.is_closed and name in ("svg", "math") else "noise"
        if (
            "hidden" in attributes
            or attributes.get("aria-hidden", "").lower() == "true"
            or _INVISIBLE_STYLE.search(attributes.get("style", "")) is not None
        ):
            return "noise"
        role = attributes.get("role", "").lower()
        is_furniture = name in _NAVIGATION or role in _NOISY_ROLES or (name == "header" and self.rank == 0)
        if is_furniture and not self._is_lenient:
            return "noise"
        return "main" if role == "main" else _PARTS.get(name)
