"""Telegram's HTML, read as strictly as Telegram reads it."""

import re
from html import unescape
from typing import Any

_TAGS = {
    "a": "text_link",
    "b": "bold",
    "strong": "bold",
    "i": "italic",
    "em": "italic",
    "s": "strikethrough",
    "strike": "strikethrough",
    "del": "strikethrough",
    "u": "underline",
    "ins": "underline",
    "tg-spoiler": "spoiler",
    "span": "spoiler",
    "pre": "pre",
    "code": "code",
    "blockquote": "blockquote",
}
_PART = re.compile(r"<(?P<end>/?)(?P<tag>[^\s>]*)(?P<attributes>[^>]*)(?P<close>>?)|[^<]+")
_ATTRIBUTE = re.compile(r"""\s+(?P<name>[^\s=]+)\s*=\s*(?:"(?P<quoted>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>[\w.-]+))""")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#x[0-9a-fA-F]{1,6}|lt|gt|amp|quot);")


class CannotParse(ValueError):
    """`str()` of it is what Telegram says."""


def parse_html(markup: str) -> tuple[str, list[dict[str, Any]]]:
    """The text that people see, and its entities."""
    text = ""
    entities: list[dict[str, Any]] = []
    opened: list[tuple[str, int, dict[str, str]]] = []
    for part in _PART.finditer(markup):
        at = len(markup[: part.start()].encode())
        if part["tag"] is None:
            text += _decode(part[0])
        elif part["end"]:
            text_from, attributes = _close_tag(part, at, opened)
            entities += _entity(part["tag"].lower(), text, text_from, attributes)
        else:
            opened.append((_open_tag(part, at), len(text), _attributes(part, at)))
    if opened:
        raise CannotParse(f'Can\'t find end tag corresponding to start tag "{opened[-1][0]}"')
    return text, entities


def units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _decode(text: str) -> str:
    return _ENTITY.sub(lambda found: unescape(found[0]), text)


def _open_tag(part: re.Match[str], at: int) -> str:
    tag = part["tag"].lower()
    is_whole = part["close"] or part["attributes"]
    if is_whole and tag not in _TAGS:
        raise CannotParse(f'Unsupported start tag "{tag}" at byte offset {at}')
    if not part["close"]:
        raise CannotParse(f"Unclosed start tag at byte offset {at}")
    return tag


def _attributes(part: re.Match[str], at: int) -> dict[str, str]:
    given = part["attributes"]
    found = {
        one["name"]: _decode(one["quoted"] or one["single"] or one["bare"] or "") for one in _ATTRIBUTE.finditer(given)
    }
    if _ATTRIBUTE.sub("", given).strip():
        raise CannotParse(f'Empty attribute name in the tag "{part["tag"]}" at byte offset {at}')
    if part["tag"].lower() == "span" and found.get("class") != "tg-spoiler":
        raise CannotParse(f'Tag "span" must have class "tg-spoiler" at byte offset {at}')
    return found


def _close_tag(
    part: re.Match[str], at: int, opened: list[tuple[str, int, dict[str, str]]]
) -> tuple[int, dict[str, str]]:
    tag = part["tag"].lower()
    if not part["close"]:
        raise CannotParse(f"Unclosed end tag at byte offset {at}")
    if not opened:
        raise CannotParse(f"Unexpected end tag at byte offset {at}")
    expected, text_from, attributes = opened.pop()
    if tag != expected:
        raise CannotParse(f'Unmatched end tag at byte offset {at}, expected "</{expected}>", found "</{tag}>"')
    return text_from, attributes


def _entity(tag: str, text: str, text_from: int, attributes: dict[str, str]) -> list[dict[str, Any]]:
    length = units(text[text_from:])
    if not length:
        return []
    entity: dict[str, Any] = {"type": _TAGS[tag], "offset": units(text[:text_from]), "length": length}
    if tag == "a":
        entity["url"] = attributes.get("href", text[text_from:])
    if tag == "code" and attributes.get("class", "").startswith("language-"):
        entity["language"] = attributes["class"].removeprefix("language-")
    return [entity]
