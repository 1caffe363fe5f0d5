"""Asks the terminal for the colour of its background. The answer arrives among the keys, and is taken out of them."""

import re
from collections.abc import Callable
from typing import cast

from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.output.vt100 import Vt100_Output

from talaria.cli.screen.palette import ASK_BACKGROUND, Background, answered

_REPLY = re.compile(r"\x1b\]11;[^\x07\x1b]*(?:\x07|\x1b\\)")
_BEGUN = re.compile(r"\x1b\](?:1(?:1(?:;[^\x07\x1b]*\x1b?)?)?)?\Z")
"""The beginning of an answer, at the end of what has been read. An escape alone may be the key of that name."""


def ask_background(input: Vt100Input, output: Vt100_Output, heard: Callable[[Background], None]) -> None:
    """Returns at once; `heard` is called if an answer comes. Until then the keys are read as before."""
    input.vt100_parser = cast("Vt100Parser", _ReplyFilter(input, heard))
    output.write_raw(ASK_BACKGROUND)
    output.flush()


class _ReplyFilter:
    """In place of the parser of keys, until the answer has come."""

    def __init__(self, input: Vt100Input, heard: Callable[[Background], None]) -> None:
        self._input = input
        self._parser = input.vt100_parser
        self._heard = heard
        self._held = ""

    def feed(self, data: str) -> None:
        data, self._held = self._held + data, ""
        reply = _REPLY.search(data)
        if reply is not None:
            self._input.vt100_parser = self._parser
            self._parser.feed(data[: reply.start()] + data[reply.end() :])
            background = answered(reply[0])
            if background is not None:
                self._heard(background)
            return
        begun = _BEGUN.search(data)
        if begun is not None:
            data, self._held = data[: begun.start()], data[begun.start() :]
        self._parser.feed(data)

    def flush(self) -> None:
        """What is held is kept: an answer may come in pieces."""
        self._parser.flush()

    def feed_and_flush(self, data: str) -> None:
        self.feed(data)
        self.flush()

    def reset(self, request: bool = False) -> None:
        self._parser.reset(request)
