"""Renders markdown as Slack's rich text. That is a tree, not markup, so the model's text cannot become a mention, an
image or a preview, and needs no escaping."""

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from markdown_it.tree import SyntaxTreeNode as Node

from talaria.platforms.base import Button
from talaria.platforms.markdown import align_table, parser

Element = dict[str, Any]
"""An element of Block Kit."""

_STYLES = {"strong": "bold", "em": "italic", "s": "strike"}
_BUTTON_STYLES = {"good": {"style": "primary"}, "bad": {"style": "danger"}, "plain": {}}
_ADDRESS = re.compile(r"(?:https?://|mailto:)\S{1,2900}")
_LANGUAGE = re.compile(r"[a-z][a-z0-9+#-]{0,20}")
_DEEPEST = 8
_MOST_BUTTONS = 25
_LABEL_CHARS = 75
_SECTION_CHARS = 3000

_markdown = parser().disable("reference")
"""Without link reference definitions, so that each part of a long text is complete by itself."""


def blocks(text: str, buttons: Sequence[Button] = ()) -> list[Element]:
    elements = _merge_sections(_rich(text))
    return [*([{"type": "rich_text", "elements": elements}] if elements else []), *_actions(buttons)]


def plain(text: str) -> str:
    """For notifications, and as a fallback for the blocks. Escaped, so that Slack finds no markup in it."""
    return html.escape(_flat(_merge_sections(_rich(text))) or text, quote=False)


def plain_blocks(text: str, buttons: Sequence[Button]) -> list[Element]:
    """A fallback for the blocks, needed only to carry buttons."""
    words = _flat(_merge_sections(_rich(text))) or text
    parts = (words[start : start + _SECTION_CHARS] for start in range(0, len(words), _SECTION_CHARS))
    sections = [{"type": "section", "text": {"type": "plain_text", "text": part}} for part in parts if part.strip()]
    return [*sections, *_actions(buttons)] if buttons else []


def _actions(buttons: Sequence[Button]) -> Iterator[Element]:
    for start in range(0, len(buttons), _MOST_BUTTONS):
        group = buttons[start : start + _MOST_BUTTONS]
        elements: list[Element] = []
        for number, button in enumerate(group, start):
            label = {"type": "plain_text", "text": button.label[:_LABEL_CHARS] or " ", "emoji": True}
            style = _BUTTON_STYLES[button.style]
            id = f"talaria-{number}"
            elements.append({"type": "button", "action_id": id, "text": label, "value": button.data, **style})
        yield {"type": "actions", "elements": elements}


def _rich(text: str) -> Iterator[Element]:
    for node in Node(_markdown.parse(text)).children:
        yield from _block(node, 0)


def _block(node: Node, indent: int) -> Iterator[Element]:
    match node.type:
        case "paragraph":
            yield _section(_spans(node, {}))
        case "heading":
            yield _section(_spans(node, {"bold": True}))
        case "fence" | "code_block":
            yield _make_code_block(node.content, node.info)
        case "bullet_list" | "ordered_list":
            yield from _lists(node, indent)
        case "blockquote":
            inner = _merge_sections(element for child in node.children for element in _block(child, 0))
            yield {"type": "rich_text_quote", "elements": [_text(_flat(inner) or " ", {})]}
        case "table":
            rows = [[_plain(cell) for cell in row.children] for part in node.children for row in part.children]
            yield _make_code_block(align_table(rows, between="  ", joint="  "), "")
        case _:
            yield _section([_text("———", {})])


def _section(spans: Sequence[Element]) -> Element:
    return {"type": "rich_text_section", "elements": list(spans)}


def _make_code_block(content: str, info: str) -> Element:
    language = info.strip().lower().partition(" ")[0]
    more = {"language": language} if _LANGUAGE.fullmatch(language) else {}
    return {"type": "rich_text_preformatted", "elements": [_text(content.rstrip("\n") or " ", {})], **more}


def _lists(node: Node, indent: int) -> Iterator[Element]:
    """One list, or several if there is other content between two items."""
    style = "ordered" if node.type == "ordered_list" else "bullet"
    number = int(node.attrs.get("start", 1))
    items: list[Element] = []
    for item in node.children:
        words = [child for child in item.children[:1] if child.type == "paragraph"]
        items.append(_section([span for child in words for span in _spans(child, {})] or [_text(" ", {})]))
        if len(item.children) > len(words):
            yield _list(style, indent, number, items)
            number += len(items)
            items = []
            for child in item.children[len(words) :]:
                yield from _block(child, indent + 1)
    if items:
        yield _list(style, indent, number, items)


def _list(style: str, indent: int, number: int, items: Sequence[Element]) -> Element:
    place = {"style": style, "indent": min(indent, _DEEPEST), "offset": max(number - 1, 0)}
    return {"type": "rich_text_list", "elements": list(items), **place}


def _spans(node: Node, style: Mapping[str, bool]) -> list[Element]:
    return [span for child in node.children for span in _inline(child, style)]


def _inline(node: Node, style: Mapping[str, bool]) -> Iterator[Element]:
    match node.type:
        case "text" | "code_inline":
            if node.content:
                yield _text(node.content, {**style, "code": True} if node.type == "code_inline" else style)
        case "softbreak" | "hardbreak":
            yield _text("\n", {})
        case "link" | "image":
            # an image becomes a link, so that nothing is fetched before somebody clicks
            url = str(node.attrs.get("href") or node.attrs.get("src") or "")
            if _ADDRESS.fullmatch(url) is None:
                yield from [*_spans(node, style), _text(f" ({url})", style)]
            else:
                yield {
                    "type": "link",
                    "url": url,
                    "text": _plain(node) or url,
                    **({"style": dict(style)} if style else {}),
                }
        case _:
            more = {_STYLES[node.type]: True} if node.type in _STYLES else {}
            yield from _spans(node, {**style, **more})


def _text(text: str, style: Mapping[str, bool]) -> Element:
    return {"type": "text", "text": text, **({"style": dict(style)} if style else {})}


def _merge_sections(elements: Iterable[Element]) -> list[Element]:
    """Merges adjacent sections, because Slack shows no space between them."""
    merged: list[Element] = []
    for element in elements:
        if not element["elements"]:
            continue
        is_section = element["type"] == "rich_text_section"
        if is_section and merged and merged[-1]["type"] == "rich_text_section":
            merged[-1] = _section([*merged[-1]["elements"], _text("\n\n", {}), *element["elements"]])
        else:
            merged.append(element)
    return merged


def _plain(node: Node) -> str:
    return "".join(_words(span) for span in _spans(node, {}))


def _flat(elements: Iterable[Element]) -> str:
    return "\n".join(_lines(element) for element in elements)


def _lines(element: Element) -> str:
    if element["type"] != "rich_text_list":
        return "".join(map(_words, element["elements"]))
    number = element["offset"] + 1
    marks = (
        f"{at}." if element["style"] == "ordered" else "•" for at in range(number, number + len(element["elements"]))
    )
    margin = "  " * element["indent"]
    return "\n".join(f"{margin}{mark} {_lines(item)}" for mark, item in zip(marks, element["elements"], strict=True))


def _words(span: Element) -> str:
    is_named = span["type"] == "link" and span["text"] != span["url"]
    return f"{span['text']} ({span['url']})" if is_named else span["text"]
