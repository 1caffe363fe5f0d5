"""HTML as a stream of tags and text, in linear time whatever the input: no tree is built, nothing is read twice.

Parsers that build HTML5's tree are quadratic by the standard itself (100,000 open elements, looked through at every
tag) and written in C; Python's own was quadratic, too, until lately. Reading needs neither.
"""

import re
from collections.abc import Iterator
from html import unescape
from typing import NamedTuple

CHUNK_CHARS = 64 << 10
"""Of text at once: a thread that reads a long page lets others in between."""
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


class Tag(NamedTuple):
    name: str
    """In lower case."""
    is_end: bool
    attributes: dict[str, str]
    """Those that matter to us."""
    is_closed: bool = False
    """`<name/>`, which counts in XML and in drawings."""


def tokens(html: str, *, is_xml: bool = False) -> Iterator[Tag | str]:
    """Tags, and text with its character references replaced. What scripts and styles hold is left out."""
    at = 0
    while (start := _markup(html, at)) < len(html):
        yield from _text(html, at, start)
        tag, at = _read(html, start, is_xml=is_xml)
        if isinstance(tag, str):
            yield tag
        elif tag is not None:
            yield tag
            if tag.name in _RAW and not tag.is_end and not is_xml:
                content = at
                at = _end_of_raw(html, at, tag.name)
                if tag.name in _SHOWN:
                    yield from _text(html, content, at)
    yield from _text(html, at, len(html))


def plain(html: str) -> str:
    """Only its text, on one line."""
    return " ".join("".join(token for token in tokens(html) if isinstance(token, str)).split())


def _markup(html: str, at: int) -> int:
    while at < len(html):
        found = _MARKUP.search(html, at, at + CHUNK_CHARS + 1)
        if found:
            return found.start()
        at += CHUNK_CHARS
    return len(html)


def _read(html: str, start: int, *, is_xml: bool) -> tuple[Tag | str | None, int]:
    """What begins at a `<`, and where to go on."""
    if html.startswith("<!--", start):
        return None, _after(html, "-->", start + 2)  # `<!-->` is whole, too
    if is_xml and html.startswith("<![CDATA[", start):
        end = _after(html, "]]>", start)
        return html[start + 9 : end].removesuffix("]]>"), end
    is_end = html.startswith("</", start)
    name = _NAME.match(html, start + 1 + is_end)
    if name is None:
        return None, _after(html, ">", start)
    attributes, at = _attributes(html, name.end())
    if not at:
        return None, len(html)
    return Tag(name[0].lower(), is_end, attributes, is_closed=html[at - 2] == "/"), at


def _after(html: str, what: str, start: int) -> int:
    at = html.find(what, start)
    return len(html) if at < 0 else at + len(what)


def _attributes(html: str, at: int) -> tuple[dict[str, str], int]:
    """Up to the tag's `>`; 0 if it has none."""
    if html.startswith(">", at):
        return _NONE, at + 1
    kept: dict[str, str] = {}
    while (found := _ATTRIBUTE.match(html, at)) is not None:
        at = found.end()
        if found["end"]:
            return kept, at
        name = found["name"].lower()
        if name in _KEPT and name not in kept:
            value = found["double"] or found["single"] or found["bare"] or ""
            kept[name] = _resolved(value[:MAX_VALUE_CHARS])
    return kept, 0


def _end_of_raw(html: str, at: int, name: str) -> int:
    found = _RAW[name].search(html, at)
    return found.start() if found else len(html)


def _text(html: str, start: int, end: int) -> Iterator[str]:
    while start < end:
        stop = min(start + CHUNK_CHARS, end)
        if stop < end:
            reference = html.rfind("&", stop - _LONGEST_REFERENCE, stop)
            stop = reference if reference > start else stop
        yield _resolved(html[start:stop])
        start = stop


def _resolved(text: str) -> str:
    """One by one: `unescape` of a whole text fails at a number with thousands of digits."""
    return _REFERENCE.sub(lambda found: unescape(found[0]), text) if "&" in text else text
