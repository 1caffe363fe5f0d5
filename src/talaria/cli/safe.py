"""Text from elsewhere, made harmless for a terminal: no escape sequences, no signs that reorder or hide text."""

_CONTROLS = (range(0x09), range(0x0B, 0x20), range(0x7F, 0xA0))
_HIDDEN = (
    *(range(0x061C, 0x061D), range(0x200B, 0x2010), range(0x2028, 0x202F), range(0x2060, 0x2070)),
    *(range(0xFEFF, 0xFF00), range(0xFFF9, 0xFFFC), range(0xE0000, 0xE0080)),
)
_DROPPED: dict[int, None] = {code: None for group in (*_CONTROLS, *_HIDDEN) for code in group}


def printable(text: str) -> str:
    """Newlines and tabs stay; every other control, zero-width and direction sign goes."""
    return text.translate(_DROPPED)


def visible(text: str) -> str:
    """For a person who must decide about it: what `printable` drops is shown as its escape."""
    return "".join(sign.encode("unicode_escape").decode() if ord(sign) in _DROPPED else sign for sign in text)


def brief(text: str, chars: int) -> str:
    """On one line, of which so much is left."""
    line = " ".join(text.split())
    return line if len(line) <= chars else f"{line[:chars]}…"
