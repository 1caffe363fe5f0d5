"""Makes text from elsewhere harmless for a terminal: no escape sequences, no characters that reorder or hide text.

There are two rules. In commands, paths and file names, which people decide about, every invisible character is shown
as an escape (`visible`, `decidable`). Prose keeps those that writing needs (`readable`, `printable`): the joiners of
Persian, Hindi and emoji families, and the selectors that make a heart red or black.
"""

import json
import re
from functools import cache

from talaria.core.text import without_blank_runs

_CONTROLS = (range(0x09), range(0x0B, 0x20), range(0x7F, 0xA0))
_HIDDEN = (
    *(range(0x061C, 0x061D), range(0x200B, 0x2010), range(0x2028, 0x202F), range(0x2060, 0x2070)),
    *(range(0xFEFF, 0xFF00), range(0xFFF9, 0xFFFC), range(0xE0000, 0xE0080)),
)
_SELECTORS = (range(0x180B, 0x180E), range(0x180F, 0x1810), range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))
"""Variation selectors."""
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that count as letters, but are invisible."""

# The characters that joiners and selectors may be next to. These are ranges instead of the exact Unicode tables: if
# one is too wide, a joiner in prose stays invisible, which does no harm. Commands and paths do not use these rules.

_ARABIC = (
    "\u0610-\u061a\u0620-\u0669\u066e-\u06dc\u06df-\u06fc\u06ff\u0750-\u077f\u0870-\u08ff\ufb50-\ufdfb\ufe70-\ufefc"
)
_SCRIPTS = (
    _ARABIC,
    *("\u0710-\u074f\u0860-\u086f", "\u0840-\u085f", "\u07c0-\u07fa", "\u1807\u180a\u1820-\u18aa"),
    *(
        f"{chr(block)}-{chr(block + 0x63)}{chr(block + 0x70)}-{chr(block + 0x7F)}"
        for block in range(0x0900, 0x0E00, 0x80)
    ),
    *("\u0f40-\u0fbc", "\u1000-\u109f\uaa60-\uaa7f", "\u1780-\u17d3", "\u1b00-\u1b4b", "\ua980-\ua9c0"),
    *("\U00010d00-\U00010d27", "\U00011000-\U00011046", "\U00011080-\U000110ba", "\U0001e900-\U0001e94b"),
)
"""Scripts whose letters join: Arabic, Syriac, Mandaic, N'Ko, Mongolian, the scripts of India and their descendants,
Adlam. A joiner is only kept between two letters of the same script."""
_VIRAMA = (
    "\u094d\u09cd\u0a4d\u0acd\u0b4d\u0bcd\u0c4d\u0ccd\u0d3b\u0d3c\u0d4d\u0dca\u1039\u103a\u17d2\u1b44\ua9c0\U00011046"
)
_JOINED_EMOJI = "\u2190-\u21ff\u2600-\u27bf\u2b00-\u2bff\U0001f300-\U0001faff"
_EMOJI = (
    f"{_JOINED_EMOJI}\u00a9\u00ae\u203c\u2049\u2122\u2139\u2300-\u23ff\u24c2\u25a0-\u25ff\u2900-\u297f"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001f2ff"
)
_IDEOGRAPHS = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_FLAGS_OF_LETTERS = ("gbeng", "gbsct", "gbwls")
"""England, Scotland and Wales, the only ones that terminals draw."""


def _class(*groups: range) -> str:
    """The inside of a regular expression's character class."""
    return "".join(f"{chr(group[0])}-{chr(group[-1])}" for group in groups)


_INVISIBLE = _class(*_CONTROLS, *_HIDDEN, *_SELECTORS)
_OF_JSON = re.compile(f"[{_class(_CONTROLS[-1], *_HIDDEN)}]")
_ANY_INVISIBLE = re.compile(f"[{_INVISIBLE}]")
_UNFINISHED = re.compile(
    f"(?:[{_JOINED_EMOJI}]?[\ufe0f\U0001f3fb-\U0001f3ff]?[\u200c\u200d]"
    "|\U0001f3f4[\U000e0020-\U000e007e]*|[0-9#*]\ufe0f)\\Z"
)
"""The end of a text that the next character may turn into a sequence."""
_CONTEXT_CHARS = 16
"""Longer than any sequence."""


@cache
def _in_prose() -> re.Pattern[str]:
    """Finds invisible characters, and as `kept` the sequences that need them. Compiled when first needed."""
    element = f"[{_JOINED_EMOJI}][\ufe0f\U0001f3fb-\U0001f3ff]?"
    flags = ("".join(chr(0xE0000 + ord(letter)) for letter in flag) for flag in _FLAGS_OF_LETTERS)
    sequences = (
        f"{element}(?:\u200d{element}){{1,3}}",  # no real one has more than four
        f"\U0001f3f4(?:{'|'.join(flags)})\U000e007f",
        "[0-9#*]\ufe0f\u20e3",
        f"(?<=[{_EMOJI}])[\ufe0e\ufe0f]",
        f"(?<=[{_IDEOGRAPHS}])[\ufe00-\ufe02\U000e0100-\U000e01ef]",
        "(?<=[0\u1000-\u109f\u2200-\u22ff\u2a00-\u2aff\u3000-\u303f\ua840-\ua87f\uff01-\uff5e])[\ufe00\ufe01]",
        "(?<=[\u1820-\u18aa])[\u180b-\u180d\u180f]",
        f"(?<=[{_VIRAMA}])[\u200c\u200d]",
        *(f"(?<=[{letters}])[\u200c\u200d](?=[{letters}])" for letters in _SCRIPTS),
        f"(?<=\\w)\u200c(?=[{_ARABIC}])",  # as in the Persian plural of a word in Latin letters
        f"(?<=[{_ARABIC}])\u200d(?!\\w|[\u200c\u200d])",  # a letter in the form it has inside a word
    )
    return re.compile(f"(?P<kept>{'|'.join(sequences)})|[{_INVISIBLE}]")


def readable(text: str) -> str:
    """For prose: invisible characters are shown as escapes, except those that the script needs."""
    if _ANY_INVISIBLE.search(text) is None:
        return text
    return _in_prose().sub(lambda found: found[0] if found["kept"] else _escape(found[0]), text)


def printable(text: str) -> str:
    """Like `readable`, but drops other invisible characters. Newlines and tabs stay."""
    if _ANY_INVISIBLE.search(text) is None:
        return text
    return _in_prose().sub(lambda found: found["kept"] or "", text)


def drop_unfinished(text: str) -> str:
    """Text that is still being streamed, without an incomplete sequence at its end."""
    return _UNFINISHED.sub("", text)


class PrintableStream:
    """`printable` for streamed text: a piece may end inside a sequence."""

    def __init__(self) -> None:
        self._before = ""
        self._held = ""

    def add(self, piece: str) -> str:
        """Returns what can be printed so far."""
        text = self._held + piece
        ready = drop_unfinished(text)
        self._held = text[len(ready) :]
        return self._print(ready)

    def end(self) -> str:
        """Returns the rest."""
        rest, self._held = self._held, ""
        return self._print(rest)

    def _print(self, text: str) -> str:
        printed = printable(self._before + text)[len(printable(self._before)) :]
        self._before = (self._before + text)[-_CONTEXT_CHARS:]
        return printed


def visible(text: str) -> str:
    """For text that people decide about, such as a command or a path: shows every invisible character as an escape."""
    return _ANY_INVISIBLE.sub(lambda found: _escape(found[0]), text)


def decidable(text: str) -> str:
    """For a question: nothing in it is invisible, and no blank lines push the rest out of view."""
    seen = "".join(char if char.isprintable() or char in "\n\t" else _escape(char) for char in text)
    return without_blank_runs(_UNSEEN.sub(lambda found: _escape(found[0]), seen))


def escape_json(document: bytes) -> bytes:
    """The same JSON with invisible characters as escapes, because it may be read at a terminal."""
    text = document.decode()
    return _OF_JSON.sub(lambda found: json.dumps(found[0])[1:-1], text).encode()


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()


def brief(text: str, chars: int) -> str:
    """On one line, cut to at most `chars` characters and an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= chars else f"{line[:chars]}…"
