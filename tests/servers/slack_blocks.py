"""Block Kit as far as `SlackServer` needs it: what Slack would refuse, and what people read."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Block = Mapping[str, Any]

MOST_BLOCKS = 50
MOST_ELEMENTS = 25
MOST_WORDS = 13_200
"""Not documented; found by others."""

_RICH = {"rich_text_section", "rich_text_list", "rich_text_preformatted", "rich_text_quote"}
_STYLES = {"bold", "italic", "strike", "code"}


def problem(blocks: Sequence[Block]) -> str:
    """The word with which Slack refuses them; empty if it takes them."""
    if len(blocks) > MOST_BLOCKS or not all(map(_is_valid, blocks)):
        return "invalid_blocks"
    return "msg_blocks_too_long" if len(words(blocks)) > MOST_WORDS else ""


def words(blocks: Sequence[Block]) -> str:
    return "\n".join(filter(None, map(_words, blocks)))


def buttons(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        if block["type"] == "actions":
            yield from block["elements"]


def _is_valid(block: Block) -> bool:
    match block:
        case {"type": "rich_text", "elements": [*elements]} if elements:
            return all(map(_is_rich, elements))
        case {"type": "section", "text": {"type": "plain_text" | "mrkdwn", "text": str(text)}}:
            return 0 < len(text) <= 3000
        case {"type": "actions", "elements": [*elements]} if elements:
            names = [element.get("action_id") for element in elements]
            return len(elements) <= MOST_ELEMENTS and len(set(names)) == len(names) and all(map(_is_button, elements))
        case _:
            return False


def _is_rich(element: Any) -> bool:
    match element:
        case {"type": "rich_text_list", "style": "bullet" | "ordered", "elements": [*items]} if items:
            return 0 <= element.get("indent", 0) <= 8 and element.get("offset", 0) >= 0 and all(map(_is_rich, items))
        case {"type": kind, "elements": [*spans]} if kind in _RICH and spans:
            return all(map(_is_span, spans))
        case _:
            return False


def _is_span(span: Any) -> bool:
    styles_fit = set(span.get("style", {})) <= _STYLES
    match span:
        case {"type": "text", "text": str(text)}:
            return bool(text) and styles_fit
        case {"type": "link", "url": str(url), "text": str(text)}:
            return url.startswith(("https://", "http://", "mailto:")) and len(url) <= 3000 and bool(text) and styles_fit
        case _:
            return False


def _is_button(element: Any) -> bool:
    match element:
        case {"type": "button", "text": {"type": "plain_text", "text": str(label)}, "value": str(value)}:
            is_styled = element.get("style", "primary") in {"primary", "danger"}
            return 0 < len(label) <= 75 and len(value) <= 2000 and is_styled
        case _:
            return False


def _words(element: Any) -> str:
    match element:
        case {"type": "rich_text" | "rich_text_list", "elements": [*elements]}:
            return "\n".join(map(_words, elements))
        case {"type": kind, "elements": [*spans]} if kind in _RICH:
            return "".join(str(span["text"]) for span in spans)
        case {"type": "section", "text": {"text": str(text)}}:
            return text
        case _:
            return ""
