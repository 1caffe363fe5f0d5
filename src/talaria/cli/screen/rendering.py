"""Fixes two things in prompt_toolkit's drawing: terminals that reflow rows, and characters of several code points.

A terminal that becomes narrower breaks its rows again without saying so. All that is certain is that the cursor stays
at its character. So it is parked at the first cell of the live area if possible (`InputLine`); otherwise the rows that
were added above it are counted.

prompt_toolkit places text code point by code point, so it would put the cursor six columns too far to the right of a
family of four emoji. While a text is laid out, one unused code point replaces such a cluster; before it is written to
the terminal, the cluster is put back. Not every terminal draws it as wide as it is measured here, so the cursor is
then moved to its column.
"""

import os
import time
from collections.abc import Callable
from itertools import groupby
from typing import Any, NamedTuple

from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Point
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.layout import HSplit, Layout, Window
from prompt_toolkit.layout.mouse_handlers import MouseHandlers
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.layout.screen import Char, Screen, WritePosition
from prompt_toolkit.layout.utils import explode_text_fragments
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.renderer import Renderer
from prompt_toolkit.utils import get_cwidth

from talaria.cli.screen.width import cluster_before, cluster_width, clusters, cut, width

_NO_REFLOW = ("XTERM_VERSION", "STY", "NCURSES_NO_UTF8_ACS")
"""Set by xterm, screen and mosh, which cut rows instead of breaking them."""
SETTLING_S = 1.0
"""For this long, a terminal that was resized is likely to be resized again."""


class LiveArea(Renderer):
    """Draws the area below the scrollback."""

    def __init__(self, app: Application[None]) -> None:
        super().__init__(app.renderer.style, app.output)
        self._resized_at = -SETTLING_S
        self._reflows = not any(name in os.environ for name in _NO_REFLOW)

    @property
    def is_settling(self) -> bool:
        return time.monotonic() - self._resized_at < SETTLING_S

    def render(self, app: Application[Any], layout: Layout, is_done: bool = False) -> None:
        if self._is_resized:
            self.erase()
        super().render(app, layout, is_done)

    def erase_for_print(self) -> None:
        """Erase the area for a moment, during which bracketed paste stays on."""
        self._bracketed_paste_enabled = False  # so that it is not switched off; the next drawing asks for it again
        self.erase()

    def erase(self, leave_alternate_screen: bool = True) -> None:
        if self._is_resized:
            self._resized_at = time.monotonic()
        drawn, columns = self.last_rendered_screen, self.output.get_size().columns
        x, y = self._cursor_pos
        added = 0  # rows above the cursor, since the area was drawn
        if drawn is not None and self._reflows:
            added = sum(_count_rows(drawn.data_buffer[row], columns) - 1 for row in range(y))
            added += _count_rows(drawn.data_buffer[y], columns, up_to=x) - 1
        self.output.write_raw("\r")
        self.output.cursor_up(y + added)
        self._cursor_pos = Point(0, 0)
        self.output.erase_end_of_line()
        self.output.cursor_forward(1)  # tmux moves what is erased from the very first cell into its history
        self.output.erase_down()
        self.output.cursor_backward(1)
        super().erase(leave_alternate_screen)

    @property
    def _is_resized(self) -> bool:
        return self._last_size not in (None, self.output.get_size())


def _count_rows(cells: dict[int, Char], columns: int, up_to: int | None = None) -> int:
    """How many rows a row becomes, or only the part of it that ends with column `up_to`."""
    last = max((column for column, cell in cells.items() if cell.char != " "), default=0)
    rows, used, column = 1, 0, 0
    while column <= (last if up_to is None else min(last, up_to)):
        wide = max(1, cells[column].width)
        if used + wide > columns:
            rows, used = rows + 1, 0
        used, column = used + wide, column + wide
    return rows


class InputLine(Window):
    """The line to type on. The cursor is elsewhere while it is parked."""

    parks_cursor: Callable[[], bool] = staticmethod(lambda: False)

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
        if self.parks_cursor():
            screen.set_cursor_position(self, Point(0, 0))
            screen.show_cursor = False


_GAP = " · "
MIN_TITLE_COLUMNS, MIN_MODEL_COLUMNS = 12, 6
"""Cut shorter, they would say nothing."""


class StatusLine(NamedTuple):
    model: str = ""
    tokens: int | None = None
    """How many the conversation takes of the model's window."""
    window: int | None = None
    cost: str = ""
    title: str = ""
    session: str = ""
    """Its id, shown if it has no title."""
    sandbox: str = ""
    waiting: int = 0
    """Messages in the queue."""
    background: int = 0
    """Background conversations that are running."""

    def render(self, columns: int) -> str:
        """As much as fits. The conversation's name is shortened first, then the model's; the sandbox level and the
        used share of the window stay longest."""
        context = ""
        if self.tokens is not None:
            context = f"{self.tokens / self.window:.0%} context" if self.window else f"{self.tokens:,} tokens"
        shown = {
            "context": context,
            "cost": self.cost,
            "name": self.title or self.session,
            "sandbox": f"sandbox {self.sandbox}" if self.sandbox else "",
            "waiting": f"{self.waiting} queued" if self.waiting else "",
            "background": f"{self.background} in the background" if self.background else "",
        }
        parts = {name: text for name, text in shown.items() if text}
        if not self.model:  # the conversation is not open yet
            return cut(_GAP.join(parts.values()), columns)
        short = self.model.partition(":")[2].rpartition("/")[2] or self.model  # without its provider and maker
        if name := parts.get("name"):
            least = min(width(name), MIN_TITLE_COLUMNS) if self.title else width(name)
            for model in (self.model, short) if self.title else (self.model,):
                room = columns - width(_GAP.join([model, *{**parts, "name": ""}.values()]))
                if room >= least:
                    return _GAP.join([model, *{**parts, "name": cut(name, room)}.values()])
        for dropped in ("name", "cost", "background", "waiting", "sandbox", "context"):
            parts.pop(dropped, None)
            if dropped == "waiting" and "sandbox" in parts:
                parts["sandbox"] = parts["sandbox"].partition(" (")[0]  # the level itself stays longer
            room = columns - width(_GAP.join(["", *parts.values()]))
            if room >= min(width(short), MIN_MODEL_COLUMNS) or not parts:
                model = self.model if width(self.model) <= room else cut(short, room)
                return _GAP.join([model, *parts.values()])
        return ""


_FREE_CODES = {1: range(0x10F000, 0x10FFFE), 2: range(0x3F000, 0x3FFFE)}
"""Unused code points by their width in columns: private ones, and the end of a plane for ideographs."""
_MAX_CLUSTER_CODES = 64
"""How many code points are examined, because accents can be piled up without end."""
_COLUMN_MARK = "\0"
"""Between a cluster and the column after it; no text to draw contains this character."""


class ClusterOutput(Vt100_Output):
    def write(self, data: str) -> None:
        text, _, column = data.partition(_COLUMN_MARK)
        super().write(text)
        if column:
            self.write_raw(f"\x1b[{column}G")


class ClusterPlaceholders:
    """Maps code points to the clusters they replace. If they run out, clusters are drawn as they are."""

    def __init__(self) -> None:
        self._clusters: dict[str, str] = {}
        self._found: dict[str, str] = {}
        self._left = {columns: iter(codes) for columns, codes in _FREE_CODES.items()}

    def pack(self, text: str) -> str:
        """Replace each cluster that would be measured wrongly with one code point."""
        if text.isascii():
            return text
        packed = ""
        for cluster in clusters(text):
            wide = cluster_width(cluster)
            is_taken = any(ord(cluster[0]) in codes for codes in _FREE_CODES.values())
            if cluster not in self._found and wide in _FREE_CODES and (wide != get_cwidth(cluster) or is_taken):
                code = next(self._left[wide], None)
                if code is not None:
                    self._found[cluster] = chr(code)
                    self._clusters[chr(code)] = cluster
            packed += self._found.get(cluster, cluster)
        return packed

    def pack_fragments(self, fragments: StyleAndTextTuples) -> StyleAndTextTuples:
        """Neighbours of the same style are joined first, because a cluster may be spread over several."""
        grouped = groupby(fragments, key=lambda fragment: fragment[0])
        return [(style, self.pack("".join(one[1] for one in group))) for style, group in grouped]

    def unpack(self, screen: Screen) -> None:
        if not self._clusters:
            return
        for row in screen.data_buffer.values():
            for column, char in row.items():
                if char.char[:1] in self._clusters:
                    whole = Char(char.char, char.style)  # as wide as the placeholder
                    text = self._clusters[char.char[0]] + char.char[1:]
                    whole.char = f"{text}{_COLUMN_MARK}{column + char.width + 1}"
                    row[column] = whole


class ClusterProcessor(Processor):
    """Packs the input line, and maps positions of the cursor."""

    def __init__(self, placeholders: ClusterPlaceholders) -> None:
        self._placeholders = placeholders

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        exploded = explode_text_fragments(transformation_input.fragments)
        text = "".join(fragment[1] for fragment in exploded)
        if text.isascii():
            return Transformation(exploded)
        drawn: StyleAndTextTuples = []
        to_display, to_source = list[int](), list[int]()
        for cluster in clusters(text):
            packed = self._placeholders.pack(cluster)
            is_one = len(packed) < len(cluster)
            for place in range(len(cluster)):
                to_display.append(len(to_source) + (0 if is_one else place))
            to_source += range(len(to_display) - len(cluster), len(to_display) - len(cluster) + len(packed))
            style = exploded[to_source[-1]][0]
            drawn.append((style, packed))
        return Transformation(
            drawn,
            source_to_display=lambda place: _map_position(to_display, len(to_source), place),
            display_to_source=lambda place: _map_position(to_source, len(to_display), place),
        )


class ClusterSplit(HSplit):
    """The whole screen; puts clusters back once it is laid out."""

    placeholders: ClusterPlaceholders

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
        screen.draw_all_floats()
        self.placeholders.unpack(screen)


def _map_position(places: list[int], end: int, place: int) -> int:
    """A position past the end stays just as far past it."""
    return places[place] if place < len(places) else end + place - len(places)


def next_cluster(text: str, place: int) -> int:
    """Where the cluster that starts here ends."""
    return place + len(next(clusters(text[place : place + _MAX_CLUSTER_CODES]), ""))


def inside_cluster(text: str, place: int) -> int | None:
    """The start of the cluster that contains this position; None if it is between two clusters."""
    if not 0 < place < len(text):
        return None
    start = cluster_before(text, place + 1)
    return start if start < place else None
