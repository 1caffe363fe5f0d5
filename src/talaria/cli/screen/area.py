"""The area below the scrollback. A terminal that becomes narrower breaks its rows anew and tells nobody.

Only one thing is sure then: the cursor stays at its sign. So it rests at the area's first sign wherever that is
possible (`InputLine`); elsewhere the rows that were gained above it are counted.
"""

import os
import time
from collections.abc import Callable
from typing import Any

from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Point
from prompt_toolkit.layout import Layout, Window
from prompt_toolkit.layout.mouse_handlers import MouseHandlers
from prompt_toolkit.layout.screen import Char, Screen, WritePosition
from prompt_toolkit.renderer import Renderer

_KEEPING_ROWS = ("XTERM_VERSION", "STY", "NCURSES_NO_UTF8_ACS")
"""Set by xterm, screen and mosh, which cut rows instead of breaking them."""
SETTLING_S = 1.0
"""A terminal that was resized is about to be resized again."""


class Area(Renderer):
    def __init__(self, app: Application[None]) -> None:
        super().__init__(app.renderer.style, app.output)
        self._resized_at = -SETTLING_S
        self._breaks_rows = not any(name in os.environ for name in _KEEPING_ROWS)

    @property
    def is_settling(self) -> bool:
        return time.monotonic() - self._resized_at < SETTLING_S

    def render(self, app: Application[Any], layout: Layout, is_done: bool = False) -> None:
        if self._is_resized:
            self.erase()
        super().render(app, layout, is_done)

    def lift(self) -> None:
        """Erase it for a moment, in which a paste is still told apart from typing."""
        self._bracketed_paste_enabled = False  # so it is not ended; the next drawing asks for it again
        self.erase()

    def erase(self, leave_alternate_screen: bool = True) -> None:
        if self._is_resized:
            self._resized_at = time.monotonic()
        self.output.write_raw("\r")
        self.output.cursor_up(self._cursor_pos.y + self._gained_rows())
        self._cursor_pos = Point(0, 0)
        self.output.erase_end_of_line()
        self.output.cursor_forward(1)  # what is erased from its very first place on, tmux keeps in its history
        self.output.erase_down()
        self.output.cursor_backward(1)
        super().erase(leave_alternate_screen)

    @property
    def _is_resized(self) -> bool:
        return self._last_size not in (None, self.output.get_size())

    def _gained_rows(self) -> int:
        """Above the cursor, since it was drawn."""
        drawn, columns = self.last_rendered_screen, self.output.get_size().columns
        if drawn is None or not self._breaks_rows:
            return 0
        x, y = self._cursor_pos
        above = sum(_rows(drawn.data_buffer[row], columns) - 1 for row in range(y))
        return above + _rows(drawn.data_buffer[y], columns, up_to=x) - 1


class InputLine(Window):
    """To type on; the cursor is not here while it may rest."""

    may_rest: Callable[[], bool] = staticmethod(lambda: False)

    def write_to_screen(
        self,
        screen: Screen,
        mouse_handlers: MouseHandlers,
        write_position: WritePosition,
        parent_style: str,
        erase_bg: bool,
        z_index: int | None,
    ) -> None:
        super().write_to_screen(screen, mouse_handlers, write_position, parent_style, erase_bg, z_index)
        if self.may_rest():
            screen.set_cursor_position(self, Point(0, 0))
            screen.show_cursor = False


def _rows(signs: dict[int, Char], columns: int, up_to: int | None = None) -> int:
    """How many a row becomes; or only the part of it that ends with this column."""
    last = max((column for column, sign in signs.items() if sign.char != " "), default=0)
    rows, used, column = 1, 0, 0
    while column <= (last if up_to is None else min(last, up_to)):
        wide = max(1, signs[column].width)
        if used + wide > columns:
            rows, used = rows + 1, 0
        used, column = used + wide, column + wide
    return rows
