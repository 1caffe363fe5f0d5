"""Our markdown as what Matrix shows: HTML without pictures, and the text itself for those who cannot show it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from markdown_it.token import Token

from talaria.platforms.markdown import parser

MAX_CHARS = 16_000
"""An event holds 64 KB, encrypted about 47: the text, and it once more as HTML."""
MAX_CONTENT_CHARS = 46_000
MAX_FALLBACK_CHARS = 1_000
"""What is shown of an edit by those who do not know edits."""

NO_PREVIEWS: dict[str, object] = {
    "m.url_previews": [],  # MSC4095: none are bundled, and none are to be made
    "com.beeper.linkpreviews": [],  # the same under the name that clients know today
    "uk.half-shot.unstable.show_url_previews": False,  # Element Web's own hint
}
"""Tells clients not to fetch the addresses in a message: the model may have put into one what nobody else may read.
There is no standard for that yet."""

_PARSER = parser(breaks=True)


def length(text: str) -> int:
    """As the text takes room in an event, where each sign outside ASCII takes six places."""
    return len(json.dumps(text)) - 2


def html(text: str) -> str:
    tokens = _PARSER.parse(text)
    for token in tokens:
        token.children = _without_pictures(token.children or []) if token.type == "inline" else token.children
    return str(_PARSER.renderer.render(tokens, _PARSER.options, {})).strip()


def content(text: str) -> dict[str, Any]:
    """Of a text message. It mentions nobody, whatever it says."""
    said: dict[str, Any] = {"body": text, "m.mentions": {}}
    shown = html(text)
    if shown not in {"", f"<p>{text}</p>"} and length(text) + length(shown) <= MAX_CONTENT_CHARS:
        said |= {"format": "org.matrix.custom.html", "formatted_body": shown}
    return said


def format_edit(text: str) -> dict[str, Any]:
    """The content of an edit, without what it edits."""
    fallback = text if len(text) <= MAX_FALLBACK_CHARS else f"{text[:MAX_FALLBACK_CHARS]}…"
    return {
        "msgtype": "m.text",
        "body": f"* {fallback}",
        "m.mentions": {},
        "m.new_content": {"msgtype": "m.text", **content(text)},
    }


def without_previews(content: Mapping[str, object]) -> dict[str, object]:
    """Of any message, and of what it is changed to."""
    changed = content.get("m.new_content")
    edit = {"m.new_content": {**cast("dict[str, object]", changed), **NO_PREVIEWS}} if isinstance(changed, dict) else {}
    return {**content, **NO_PREVIEWS, **edit}


def _without_pictures(tokens: Sequence[Token]) -> list[Token]:
    """A picture's address tells whoever owns it that it was looked at: it becomes a link."""
    kept: list[Token] = []
    depth = 0
    for token in tokens:
        depth += {"link_open": 1, "link_close": -1}.get(token.type, 0)
        if token.type != "image":
            kept.append(token)
            continue
        words = Token("text", "", 0, content=token.content or str(token.attrGet("src") or ""))
        if depth:
            kept.append(words)
        else:
            link = Token("link_open", "a", 1, attrs={"href": token.attrGet("src") or ""})
            kept += [link, words, Token("link_close", "a", -1)]
    return kept
