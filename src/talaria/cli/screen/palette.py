"""The colours of the screen: one palette each for dark, light and unknown backgrounds.

The first two use the 240 colours of xterm that look the same in every terminal. The basic 16 depend on the terminal's
theme, so the basic palette leaves most text in its default colour.

The terminal is asked for its background. Its answer arrives among the keys, and is filtered out.
"""

import os
import re
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, cast

from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.output.vt100 import Vt100_Output

Background = Literal["light", "dark"]

ASK_BACKGROUND = "\x1b]11;?\x1b\\"
_ANSWERED = re.compile(r"\x1b\]11;rgba?:([0-9a-fA-F]+)/([0-9a-fA-F]+)/([0-9a-fA-F]+)")
_FIRST_GREY = 232
_LIGHT_NUMBERS = {"7", "9", "10", "11", "12", "13", "14", "15"}
_NO_ANSWER = ("dumb", "linux", "vt", "cons25")
"""Prefixes of terminal names that would print the question or misread it."""


class Palette(NamedTuple):
    """SGR codes by purpose; empty is the default colour."""

    is_fixed: bool
    """Its colours do not depend on the terminal's theme."""
    added: str
    removed: str
    added_text: str
    """For parts of an added line that have no syntax colour."""
    removed_text: str
    added_word: str
    """For the new part of a line."""
    removed_word: str
    muted: str
    accent: str
    warning: str
    keyword: str
    string: str
    number: str
    comment: str
    function: str
    type: str
    builtin: str


def _make_palette(words: tuple[str, str], **colours: int) -> Palette:
    codes = {name: f"38;5;{number}" for name, number in colours.items()}
    return Palette(
        is_fixed=True,
        added_text=codes["added"],
        removed_text=codes["removed"],
        added_word=words[0],
        removed_word=words[1],
        **codes,
    )


DARK = _make_palette(
    ("38;5;255;48;5;22", "38;5;255;48;5;52"),
    added=114,
    removed=210,
    muted=247,
    accent=116,
    warning=221,
    keyword=176,
    string=150,
    number=215,
    comment=248,
    function=117,
    type=222,
    builtin=116,
)
LIGHT = _make_palette(
    ("38;5;16;48;5;157", "38;5;16;48;5;217"),
    added=22,
    removed=124,
    muted=241,
    accent=24,
    warning=94,
    keyword=90,
    string=22,
    number=58,
    comment=241,
    function=25,
    type=54,
    builtin=23,
)
BASIC = Palette(
    is_fixed=False,
    added="32",
    removed="31",
    added_text="",
    removed_text="",
    added_word="1;4",
    removed_word="1;4",
    muted="2",
    accent="36",
    warning="33",
    keyword="1",
    string="35",  # the most readable basic colour on both black and white
    number="35",
    comment="2",
    function="",
    type="",
    builtin="",
)
BY_BACKGROUND: Mapping[Background, Palette] = {"dark": DARK, "light": LIGHT}

_chosen: list[Background] = []
"""At most one, because there is only one terminal."""


def current() -> Palette:
    background = _chosen[0] if _chosen else background_of(os.environ)
    return BY_BACKGROUND[background] if background and has_many_colours(os.environ) else BASIC


def use_background(background: Background) -> None:
    """From now on, use the palette for this background."""
    _chosen[:] = [background]


def background_of(environment: Mapping[str, str]) -> Background | None:
    """From `COLORFGBG`, which some terminals set: two or three numbers, with the background last."""
    number = environment.get("COLORFGBG", "").rpartition(";")[2]
    return None if not number.isdecimal() else "light" if number in _LIGHT_NUMBERS else "dark"


def has_many_colours(environment: Mapping[str, str]) -> bool:
    is_rich = environment.get("COLORTERM", "") in ("truecolor", "24bit")
    return is_rich or "256" in environment.get("TERM", "") or environment.get("TERM") in ("xterm-kitty", "alacritty")


def should_ask(environment: Mapping[str, str]) -> bool:
    """Whether the answer would matter, and the terminal would understand the question."""
    is_known = background_of(environment) is not None or bool(_chosen) or bool(environment.get("NO_COLOR"))
    return not is_known and has_many_colours(environment) and not environment["TERM"].startswith(_NO_ANSWER)


def hex_colour(code: str) -> str:
    """A fixed colour as `#rrggbb`."""
    number = int(code.rpartition(";")[2])
    if number >= _FIRST_GREY:
        return "#" + f"{8 + 10 * (number - _FIRST_GREY):02x}" * 3
    levels = (0, 95, 135, 175, 215, 255)
    place = number - 16
    return "#" + "".join(f"{levels[part]:02x}" for part in (place // 36, place // 6 % 6, place % 6))


def parse_background(reply: str) -> Background | None:
    """Read a terminal's answer to `ASK_BACKGROUND`."""
    found = _ANSWERED.match(reply)
    if found is None:
        return None
    red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in found.groups())
    return "light" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.5 else "dark"


_REPLY = re.compile(r"\x1b\]11;[^\x07\x1b]*(?:\x07|\x1b\\)")
_PARTIAL_REPLY = re.compile(r"\x1b\](?:1(?:1(?:;[^\x07\x1b]*\x1b?)?)?)?\Z")
"""The start of an answer, at the end of the input. An escape alone may be the key."""


def ask_background(input: Vt100Input, output: Vt100_Output, on_answer: Callable[[Background], None]) -> None:
    """Returns at once; `on_answer` is called if an answer arrives. Keys are read as before."""
    input.vt100_parser = cast("Vt100Parser", _ReplyFilter(input, on_answer))
    output.write_raw(ASK_BACKGROUND)
    output.flush()


class _ReplyFilter:
    """Takes the place of the key parser until the answer has arrived."""

    def __init__(self, input: Vt100Input, on_answer: Callable[[Background], None]) -> None:
        self._input = input
        self._parser = input.vt100_parser
        self._on_answer = on_answer
        self._held = ""

    def feed(self, data: str) -> None:
        data, self._held = self._held + data, ""
        reply = _REPLY.search(data)
        if reply is not None:
            self._input.vt100_parser = self._parser
            self._parser.feed(data[: reply.start()] + data[reply.end() :])
            background = parse_background(reply[0])
            if background is not None:
                self._on_answer(background)
            return
        partial = _PARTIAL_REPLY.search(data)
        if partial is not None:
            data, self._held = data[: partial.start()], data[partial.start() :]
        self._parser.feed(data)

    def flush(self) -> None:
        """Keeps what is held back, because an answer may arrive in pieces."""
        self._parser.flush()

    def feed_and_flush(self, data: str) -> None:
        self.feed(data)
        self.flush()

    def reset(self, request: bool = False) -> None:
        self._parser.reset(request)
