"""Text from elsewhere, made harmless for a terminal: no escape sequences, no signs that reorder or hide text."""

import json
import re

from talaria.model.fences import without_blank_runs

_CONTROLS = (range(0x09), range(0x0B, 0x20), range(0x7F, 0xA0))
_HIDDEN = (
    *(range(0x061C, 0x061D), range(0x200B, 0x2010), range(0x2028, 0x202F), range(0x2060, 0x2070)),
    *(range(0xFEFF, 0xFF00), range(0xFFF9, 0xFFFC), range(0xE0000, 0xE0080)),
)
_DROPPED: dict[int, None] = {code: None for group in (*_CONTROLS, *_HIDDEN) for code in group}
_OF_JSON = re.compile(f"[{''.join(map(chr, (code for code in _DROPPED if code >= 0x7F)))}]")
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Signs that count as letters, and that nobody sees."""


def printable(text: str) -> str:
    """Newlines and tabs stay; every other control, zero-width and direction sign goes."""
    return text.translate(_DROPPED)


def visible(text: str) -> str:
    """For a person who must decide about it: what `printable` drops is shown as its escape."""
    return "".join(sign.encode("unicode_escape").decode() if ord(sign) in _DROPPED else sign for sign in text)


def decidable(text: str) -> str:
    """For a question: all of it can be seen. Nothing in it is invisible, and no run of blank lines hides the rest."""
    seen = "".join(sign if sign.isprintable() or sign in "\n\t" else _escape(sign) for sign in text)
    return without_blank_runs(_UNSEEN.sub(lambda found: _escape(found[0]), seen))


def escaped_json(document: bytes) -> bytes:
    """JSON that says the same, with what `printable` drops as escapes: it may be read at a terminal."""
    text = document.decode()
    return _OF_JSON.sub(lambda found: json.dumps(found[0])[1:-1], text).encode()


def _escape(sign: str) -> str:
    return sign.encode("unicode_escape").decode()


def brief(text: str, chars: int) -> str:
    """On one line, of which so much is left."""
    line = " ".join(text.split())
    return line if len(line) <= chars else f"{line[:chars]}…"
