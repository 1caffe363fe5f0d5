"""The area below the scrollback. A terminal that becomes narrower breaks its rows anew and tells nobody.

Only one thing is sure then: the cursor stays at its sign. So it rests at the area's first sign wherever that is
possible (`InputLine`); elsewhere the rows that were gained above it are counted.

The status line, as much of it as fits.
"""

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Point
from prompt_toolkit.layout import Layout, Window
from prompt_toolkit.layout.mouse_handlers import MouseHandlers
from prompt_toolkit.layout.screen import Char, Screen, WritePosition
from prompt_toolkit.renderer import Renderer

from talaria.cli.screen.width import cut, width

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


_GAP = " · "
MIN_TITLE_COLUMNS, MIN_MODEL_COLUMNS = 12, 6
"""Cut shorter, they tell nothing."""


class StatusLine(NamedTuple):
    """What is known of the conversation on the screen."""

    model: str = ""
    tokens: int | None = None
    """That the conversation takes of the model's window."""
    window: int | None = None
    cost: str = ""
    title: str = ""
    session: str = ""
    """Its id, shown if it has no title."""
    sandbox: str = ""
    waiting: int = 0
    """Messages that wait for their turn."""
    background: int = 0
    """Conversations that go on beside this one."""

    def line(self, columns: int) -> str:
        """What fits. The conversation's name gives way first, then the model's name; of the rest, the level of the
        sandbox and how full the window is stay longest."""
        if not self.model:  # nothing is known yet
            return cut(_GAP.join(filter(None, self._parts().values())), columns)
        short = self.model.partition(":")[2].rpartition("/")[2] or self.model  # not who serves it, and who made it
        parts = {name: text for name, text in self._parts().items() if text}
        if name := parts.get("name"):
            least = min(width(name), MIN_TITLE_COLUMNS) if self.title else width(name)
            for model in (self.model, short) if self.title else (self.model,):
                room = columns - width(_joined(model, {**parts, "name": ""}))
                if room >= least:
                    return _joined(model, {**parts, "name": cut(name, room)})
        for dropped in ("name", "cost", "background", "waiting", "sandbox", "context"):
            parts.pop(dropped, None)
            if dropped == "waiting" and "sandbox" in parts:
                parts["sandbox"] = parts["sandbox"].partition(" (")[0]  # what the level lacks goes before the level
            room = columns - width(_joined("", parts))
            if room >= min(width(short), MIN_MODEL_COLUMNS) or not parts:
                return _joined(self.model if width(self.model) <= room else cut(short, room), parts)
        return ""

    def _context(self) -> str:
        if self.tokens is None:
            return ""
        return f"{self.tokens / self.window:.0%} context" if self.window else f"{self.tokens:,} tokens"

    def _parts(self) -> dict[str, str]:
        """All but the model, in the order in which they are shown."""
        return {
            "context": self._context(),
            "cost": self.cost,
            "name": self.title or self.session,
            "sandbox": f"sandbox {self.sandbox}" if self.sandbox else "",
            "waiting": f"{self.waiting} queued" if self.waiting else "",
            "background": f"{self.background} in the background" if self.background else "",
        }


def _joined(model: str, parts: dict[str, str]) -> str:
    return _GAP.join([model, *parts.values()])
