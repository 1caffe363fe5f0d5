"""The screen. Finished lines go into the terminal's own scrollback. Below them is the live area: what still changes,
the input line or a question in its place, and the status."""

import asyncio
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Literal, Protocol

from prompt_toolkit.application import Application
from prompt_toolkit.application.current import set_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.data_structures import Size
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.layout import ConditionalContainer, Layout, VerticalAlign, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.layout.processors import AfterInput
from prompt_toolkit.output.color_depth import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import DynamicStyle, Style

from talaria.cli.screen import palette
from talaria.cli.screen.key_bindings import bind_steer_key, build_bindings
from talaria.cli.screen.line_input import Pastes
from talaria.cli.screen.menu import SMALL_ROWS, Menu, MenuItem
from talaria.cli.screen.palette import ask_background
from talaria.cli.screen.rendering import (
    ClusterOutput,
    ClusterPlaceholders,
    ClusterProcessor,
    ClusterSplit,
    InputLine,
    LiveArea,
    StatusLine,
    inside_cluster,
)
from talaria.cli.screen.width import cut, width

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History
    from prompt_toolkit.input import Input


REDRAW_S = 0.01
QUIET_S = 0.03
ESCAPE_S = 0.1
"""How long to wait for the rest of an escape sequence over a slow connection."""
MAX_COMPLETIONS = 7
PROMPT = "› "
_OTHER_ROWS = 6
"""For the line, its completions and the status."""


@cache
def _style(colours: palette.Palette) -> Style:
    muted, accent, warning = ("fg:ansibrightblack", "fg:ansicyan", "fg:ansiyellow")
    if colours.is_fixed:
        muted, accent, warning = (
            f"fg:{palette.hex_colour(code)}" for code in (colours.muted, colours.accent, colours.warning)
        )
    return Style.from_dict(
        {
            "status": f"{muted} noreverse",
            "prompt": f"{accent} bold",
            "question.rule": warning,
            "question.title": f"bold {warning}",
            "question.chosen": "bold reverse",
            "question.hint": muted,
            "question.preview": muted,
            "question.cursor": "reverse",
            "offer.chosen": "reverse",
            "offer.about": muted,
        }
    )


class ScreenListener(Protocol):
    """Gets what the person does."""

    def submit(self, text: str) -> None: ...
    def steer(self, text: str) -> None: ...
    def interrupt(self) -> None: ...
    def leave(self) -> None: ...
    def show_details(self) -> None: ...


class Screen:
    def __init__(
        self,
        listener: ScreenListener,
        *,
        history: "History",
        completer: "Completer",
        input: "Input | None" = None,
        output: ClusterOutput | None = None,
    ) -> None:
        self.status = StatusLine()
        self.is_working = False
        self.is_raw = False
        """Whether the terminal is in raw mode; before that it sends Enter as Ctrl-J."""
        self.menu: Menu | None = None
        self.listener = listener
        self._render_live: Callable[[int], str] = lambda _: ""
        self.pastes = Pastes()
        self._history = history
        self._menus: list[Menu] = []
        self._history_task: asyncio.Task[None] | None = None
        self._editor_task: asyncio.Task[None] | None = None
        """Runs while the line is open in the person's editor."""
        self._print_queue: asyncio.Queue[str | None] = asyncio.Queue()
        """Texts, and None to clear the screen."""
        self.buffer = Buffer(
            history=history, completer=completer, complete_while_typing=True, multiline=True, name="line"
        )
        self.buffer.on_cursor_position_changed += self._snap_cursor
        self._placeholders = ClusterPlaceholders()
        self._keys = build_bindings(self)
        self._app: Application[None] = Application(
            layout=Layout(self._layout(), focused_element=self.buffer),
            key_bindings=self._keys,
            style=DynamicStyle(lambda: _style(palette.current())),
            color_depth=ColorDepth.DEPTH_1_BIT if os.environ.get("NO_COLOR") else None,
            min_redraw_interval=REDRAW_S,
            input=input,
            output=output  # the terminal is never asked for its cursor position, because not every one answers
            or ClusterOutput(sys.stdout, _terminal_size, term=os.environ.get("TERM"), enable_cpr=False),
            enable_page_navigation_bindings=False,
            erase_when_done=True,
        )
        self._app.renderer = self._area = LiveArea(self._app)
        self._app.ttimeoutlen = ESCAPE_S
        self._app.timeoutlen = 3 * ESCAPE_S

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Runs until `close`. `on_ready` is called once the person can type."""
        self._app.output.write_raw("\r\x1b[K")  # the terminal has echoed keys that were typed before
        printer = asyncio.create_task(self._print_all(), name="printer")

        def start() -> None:
            self.is_raw = True
            on_ready()

        def start_soon() -> None:  # once the keys that were typed before are on the line
            asyncio.get_running_loop().call_later(QUIET_S, start)

        try:
            await self._app.run_async(pre_run=start_soon)
        finally:
            printer.cancel()
            self._write([self._print_queue.get_nowait() for _ in range(self._print_queue.qsize())])

    def close(self) -> None:
        if self._app.is_running and not self._app.is_done:
            self._app.exit()

    def use_theme(self, theme: Literal["auto", "light", "dark"]) -> None:
        """`auto` asks the terminal, and applies its answer when it arrives."""
        input, output = self._app.input, self._app.output
        if theme != "auto":
            self._use_background(theme)
        elif palette.should_ask(os.environ) and isinstance(input, Vt100Input) and isinstance(output, Vt100_Output):
            ask_background(input, output, self._use_background)

    def _use_background(self, background: palette.Background) -> None:
        palette.use_background(background)
        self.redraw()

    def set_steer_key(self, key: str) -> None:
        """Raises `BadConfig`."""
        bind_steer_key(self._keys, self, key)

    # Output

    def print(self, text: str) -> None:
        """Print text, which must be harmless or our own, into the scrollback."""
        self._print_queue.put_nowait(text)

    def clear(self) -> None:
        """Scroll the screen empty. Its lines stay in the scrollback, which we share with others."""
        self._print_queue.put_nowait(None)

    async def drain(self) -> None:
        """Wait until everything is printed."""
        await self._print_queue.join()

    def show(self, render_live: Callable[[int], str]) -> None:
        """`render_live` takes columns and returns what still changes."""
        self._render_live = render_live
        self.redraw()

    def redraw(self) -> None:
        self._app.invalidate()

    async def ask(self, menu: Menu) -> str | None:
        """One question at a time; the input line keeps its text."""
        self.show_menu(menu)
        try:
            return await menu.answer
        finally:
            self._menus.remove(menu)
            self._next_menu()
            self.buffer.insert_text(menu.stray_text)

    def show_menu(self, menu: Menu) -> None:
        """The menu gets the keys now, or when it is its turn. `ask` removes it."""
        if menu not in self._menus:
            self._menus.append(menu)
            self._next_menu()

    def _next_menu(self) -> None:
        self.menu = self._menus[0] if self._menus else None
        self.redraw()

    @property
    def columns(self) -> int:
        return self._app.output.get_size().columns

    @property
    def rows(self) -> int:
        return self._app.output.get_size().rows

    async def _print_all(self) -> None:
        while True:
            text = await self._print_queue.get()
            texts = [text, *(self._print_queue.get_nowait() for _ in range(self._print_queue.qsize()))]
            if self._editor_task is not None:
                await asyncio.wait([self._editor_task])
            # The terminal stays in raw mode; otherwise it would echo keys, and Enter would be a line break.
            self._area.erase_for_print()
            self._write(texts)
            with set_app(self._app):
                self._app.render_counter += 1  # prompt_toolkit caches what it draws until this changes
                self._area.render(self._app, self._app.layout)
            for _ in texts:
                self._print_queue.task_done()

    def _write(self, texts: list[str | None]) -> None:
        output = self._app.output
        for text in texts:
            if text is None:
                output.write_raw("\n" * self.rows + "\x1b[H")
            else:
                output.write_raw(text.replace("\n", "\r\n") + "\r\n")
        output.flush()

    # Input

    def submit(self) -> None:
        text = self._take_line()
        if text.strip():
            self.listener.submit(text)

    def steer(self) -> None:
        text = self._take_line()
        if text.strip():
            self.listener.steer(text)

    def _take_line(self) -> str:
        text = self.pastes.unfold(self.buffer.text)
        if text.strip():
            self._history.append_string(self.buffer.text)
        self.buffer.reset()
        return text

    def interrupt(self) -> None:
        if self.buffer.text and not self.is_working:
            self.buffer.reset()
        else:
            self.listener.interrupt()

    def _snap_cursor(self, _: Buffer) -> None:
        """However the cursor was moved, it is never inside a cluster."""
        start = inside_cluster(self.buffer.text, self.buffer.cursor_position)
        if start is not None:
            self.buffer.cursor_position = start

    def prepend(self, text: str) -> None:
        """Put text on the line, before what is typed there."""
        self.buffer.text = f"{text}\n{self.buffer.text}" if self.buffer.text else text
        self.buffer.cursor_position = len(self.buffer.text)

    def open_editor(self) -> None:
        self._editor_task = self.buffer.open_in_editor()

    def paste(self, text: str) -> None:
        self.buffer.insert_text(self.pastes.fold(text))

    def search_history(self) -> None:
        """The latest line comes first. A folded paste is found by its full text."""
        latest = dict.fromkeys(reversed(self._history.get_strings()))
        items = [MenuItem(one, one, one if "\n" in one else "", searched=self.pastes.unfold(one)) for one in latest]
        menu = Menu("Input history", items, mode="search")
        self.show_menu(menu)  # at once, because the next keys are for it

        async def insert_chosen() -> None:
            chosen = await self.ask(menu)
            if chosen is not None:
                self.buffer.reset()
                self.buffer.insert_text(chosen)

        self._history_task = asyncio.get_running_loop().create_task(insert_chosen())

    # Layout

    def _layout(self) -> ClusterSplit:
        has_menu = Condition(lambda: self.menu is not None)
        has_live = Condition(lambda: bool(self._live_text()))
        has_completions = Condition(lambda: self.buffer.complete_state is not None and bool(self._draw_completions()))

        def draw_cursor() -> StyleAndTextTuples:
            return [("reverse", " ")] if self._parks_cursor() and not self.buffer.text else []

        def draw_live() -> StyleAndTextTuples:
            return self._placeholders.pack_fragments(to_formatted_text(ANSI(self._live_text())))

        def draw_menu() -> StyleAndTextTuples:
            others = 2 if self.rows < SMALL_ROWS else 3
            drawn = self.menu.fragments(self.columns, max(4, self.rows - others)) if self.menu else []
            return self._placeholders.pack_fragments(drawn)

        def draw_status() -> StyleAndTextTuples:
            return self._placeholders.pack_fragments([("class:status", self.status.render(self.columns))])

        line = InputLine(
            BufferControl(
                self.buffer, input_processors=[ClusterProcessor(self._placeholders), AfterInput(draw_cursor)]
            ),
            get_line_prefix=lambda number, wrap: [("class:prompt", PROMPT if number == wrap == 0 else "  ")],
            height=lambda: Dimension(max=max(1, self.rows - 4)),
            wrap_lines=True,
            dont_extend_height=True,
        )
        line.parks_cursor = self._parks_cursor
        split = ClusterSplit(
            [
                ConditionalContainer(Window(FormattedTextControl(draw_live), dont_extend_height=True), has_live),
                ConditionalContainer(Window(FormattedTextControl(draw_menu), dont_extend_height=True), has_menu),
                ConditionalContainer(line, ~has_menu),
                ConditionalContainer(
                    Window(FormattedTextControl(self._draw_completions), dont_extend_height=True),
                    has_completions & ~has_menu,
                ),
                Window(FormattedTextControl(draw_status), height=1),
            ],
            align=VerticalAlign.TOP,
        )
        split.placeholders = self._placeholders
        return split

    def _live_text(self) -> str:
        """At most half of the screen, so that rows do not scroll off the top when a narrower terminal breaks them."""
        if self.menu is not None and self.rows < SMALL_ROWS:
            return ""  # the question needs all rows
        rows = max(1, min(self.rows - _OTHER_ROWS, self.rows // 2)) if self.menu is None else 1
        lines = self._render_live(self.columns).split("\n")
        return "\n".join(lines[-rows:])

    def _parks_cursor(self) -> bool:
        """Whether to park the terminal's own cursor: while something is running and nobody types."""
        is_typing = bool(self.buffer.text) and not self._area.is_settling
        return self.is_working and self.menu is None and not is_typing

    def _draw_completions(self) -> StyleAndTextTuples:
        state = self.buffer.complete_state
        if state is None or not state.completions:
            return []
        at = state.complete_index or 0
        first = max(0, min(at - MAX_COMPLETIONS // 2, len(state.completions) - MAX_COMPLETIONS))
        drawn: StyleAndTextTuples = []
        offered = state.completions[first : first + MAX_COMPLETIONS]
        widest = max(width(one.display_text) for one in offered)
        for place, one in enumerate(offered, first):
            chosen_style = "class:offer.chosen" if place == state.complete_index else ""
            gap = " " * (widest - width(one.display_text))
            name = cut(f"  {one.display_text}{gap}", self.columns)
            about = cut(f"  {one.display_meta_text}", self.columns - width(name)) if one.display_meta_text else ""
            drawn += [(chosen_style, name), ("class:offer.about", about), ("", "\n")]
        return self._placeholders.pack_fragments(drawn[:-1])


def _terminal_size() -> Size:
    """Some terminals report a size of zero."""
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    return Size(rows=rows or 24, columns=columns or 80)
