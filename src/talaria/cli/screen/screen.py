"""The screen itself: finished lines go into the terminal's own scrollback; below them what is still changing, the line
to type on, or a question in its place, and the status.

What was typed before, to be searched.
Large pastes, folded into one word on the line and unfolded when it is sent.
"""

import asyncio
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
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
from talaria.cli.screen.area import Area, InputLine, StatusLine
from talaria.cli.screen.clusters import ClusterOutput, PackedLine, PackedSplit, StandIns, inside_cluster
from talaria.cli.screen.key_bindings import bind_steering, bindings
from talaria.cli.screen.menu import SMALL_ROWS, Menu, MenuItem
from talaria.cli.screen.palette import ask_background
from talaria.cli.screen.width import cut, width

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History
    from prompt_toolkit.input import Input


def recalling(typed: Sequence[str], unfolded: Callable[[str], str]) -> Menu:
    """The latest first. What is folded is found by all that it stands for."""
    latest = dict.fromkeys(reversed(typed))
    choices = [MenuItem(text, text, text if "\n" in text else "", searched=unfolded(text)) for text in latest]
    return Menu("Typed before", choices, typing="search")


MOST_LINES = 6
MOST_CHARS = 800

_WORD = re.compile(r"\[pasted #(\d+): [\d,]+ (?:lines|characters)\]")


class Pastes:
    def __init__(self) -> None:
        self._texts: list[str] = []

    def folded(self, text: str) -> str:
        """What stands for it on the line: itself, if it is short."""
        lines = len(text.splitlines())
        if lines <= MOST_LINES and len(text) <= MOST_CHARS:
            return text
        self._texts.append(text)
        size = f"{lines:,} lines" if lines > MOST_LINES else f"{len(text):,} characters"
        return f"[pasted #{len(self._texts)}: {size}]"

    def unfolded(self, line: str) -> str:
        return _WORD.sub(self._text, line)

    def _text(self, word: re.Match[str]) -> str:
        number = int(word[1])
        return self._texts[number - 1] if 0 < number <= len(self._texts) else word[0]


REDRAW_S = 0.01
QUIET_S = 0.03
ESCAPE_S = 0.1
"""For what a key sends behind an escape: a slow line needs some time."""
MOST_COMPLETIONS = 7
PROMPT = "› "
_OTHER_ROWS = 6
"""Kept for the line, its completions and the status."""


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
    """Whoever is told what the person does."""

    def submitted(self, text: str) -> None: ...
    def steered(self, text: str) -> None: ...
    def interrupted(self) -> None: ...
    def left(self) -> None: ...
    def wants_details(self) -> None: ...


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
        self.is_ours = False
        """The terminal has been in our mode for a moment: before that it sent Enter as another key."""
        self.menu: Menu | None = None
        self._listener = listener
        self._live: Callable[[int], str] = lambda _: ""
        self.pastes = Pastes()
        self._history = history
        self._menus: list[Menu] = []
        self._recalling: asyncio.Task[None] | None = None
        self._editing: asyncio.Task[None] | None = None
        """In a program of the person's."""
        self._printing: asyncio.Queue[str | None] = asyncio.Queue()
        """Texts, and None for an empty screen."""
        self.buffer = Buffer(
            history=history, completer=completer, complete_while_typing=True, multiline=True, name="line"
        )
        self.buffer.on_cursor_position_changed += self._leave_cluster
        self._stand_ins = StandIns()
        self._keys = bindings(self)
        self._app: Application[None] = Application(
            layout=Layout(self._layout(), focused_element=self.buffer),
            key_bindings=self._keys,
            style=DynamicStyle(lambda: _style(palette.current())),
            color_depth=ColorDepth.DEPTH_1_BIT if os.environ.get("NO_COLOR") else None,
            min_redraw_interval=REDRAW_S,
            input=input,
            output=output or _output(),
            enable_page_navigation_bindings=False,
            erase_when_done=True,
        )
        self._app.renderer = self._area = Area(self._app)
        self._app.ttimeoutlen = ESCAPE_S
        self._app.timeoutlen = 3 * ESCAPE_S

    async def run(self, meanwhile: Callable[[], None]) -> None:
        """Until `close`. `meanwhile` is called once the line can be typed on."""
        self._app.output.write_raw("\r\x1b[K")  # keys that came before us were shown by the terminal itself
        printer = asyncio.create_task(self._print_all(), name="printer")
        try:
            await self._app.run_async(pre_run=partial(_soon, self._begin, meanwhile))
        finally:
            printer.cancel()
            self._print_rest()

    def _begin(self) -> None:
        self.is_ours = True

    def close(self) -> None:
        if self._app.is_running and not self._app.is_done:
            self._app.exit()

    def use_theme(self, theme: Literal["auto", "light", "dark"]) -> None:
        """`auto`: what the terminal says of itself counts as soon as it does."""
        input, output = self._app.input, self._app.output
        if theme != "auto":
            self._use_background(theme)
        elif palette.may_be_asked(os.environ) and isinstance(input, Vt100Input) and isinstance(output, Vt100_Output):
            ask_background(input, output, self._use_background)

    def _use_background(self, background: palette.Background) -> None:
        palette.choose(background)
        self.redraw()

    def steer_with(self, key: str) -> None:
        """Raises `BadConfig`."""
        bind_steering(self._keys, self, key)

    # What is shown

    def print(self, text: str) -> None:
        """For good, above the line; harmless text, or our own."""
        self._printing.put_nowait(text)

    def clear(self) -> None:
        """What is on the screen leaves it at the top. It stays in the scrollback, which is not ours alone."""
        self._printing.put_nowait(None)

    async def printed(self) -> None:
        """Once all of it stands there."""
        await self._printing.join()

    def show(self, live: Callable[[int], str]) -> None:
        """What is still changing, as it is drawn for so many columns."""
        self._live = live
        self.redraw()

    def redraw(self) -> None:
        self._app.invalidate()

    async def ask(self, menu: Menu) -> str | None:
        """One at a time; the line keeps what is on it."""
        self.offer(menu)
        try:
            return await menu.answer
        finally:
            self._menus.remove(menu)
            self._next_menu()
            self.buffer.insert_text(menu.beside)

    def offer(self, menu: Menu) -> None:
        """It takes the keys from now on, or when it is its turn."""
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
            text = await self._printing.get()
            waiting = [text, *(self._printing.get_nowait() for _ in range(self._printing.qsize()))]
            if self._editing is not None:
                await asyncio.wait([self._editing])
            self._write_above(waiting)
            for _ in waiting:
                self._printing.task_done()

    def _write_above(self, texts: list[str | None]) -> None:
        """The terminal stays in its mode: in its usual one it would show keys itself, and Enter would be a new line."""
        self._area.lift()
        self._write(texts)
        with set_app(self._app):
            self._app.render_counter += 1  # what is drawn is kept for as long as this stays
            self._area.render(self._app, self._app.layout)

    def _print_rest(self) -> None:
        self._write([self._printing.get_nowait() for _ in range(self._printing.qsize())])

    def _write(self, texts: list[str | None]) -> None:
        output = self._app.output
        for text in texts:
            if text is None:
                output.write_raw("\n" * self.rows + "\x1b[H")
            else:
                output.write_raw(text.replace("\n", "\r\n") + "\r\n")
        output.flush()

    # What is typed

    def submit(self) -> None:
        text = self._taken()
        if text.strip():
            self._listener.submitted(text)

    def steer(self) -> None:
        text = self._taken()
        if text.strip():
            self._listener.steered(text)

    def _taken(self) -> str:
        text = self.pastes.unfolded(self.buffer.text)
        if text.strip():
            self._history.append_string(self.buffer.text)
        self.buffer.reset()
        return text

    def interrupt(self) -> None:
        if self.buffer.text and not self.is_working:
            self.buffer.reset()
        else:
            self._listener.interrupted()

    def leave(self) -> None:
        self._listener.left()

    def _leave_cluster(self, _: Buffer) -> None:
        """Whatever has moved the cursor: it is never inside of a character."""
        begin = inside_cluster(self.buffer.text, self.buffer.cursor_position)
        if begin is not None:
            self.buffer.cursor_position = begin

    def put_before(self, text: str) -> None:
        """On the line, before what is typed there."""
        self.buffer.text = f"{text}\n{self.buffer.text}" if self.buffer.text else text
        self.buffer.cursor_position = len(self.buffer.text)

    def edit(self) -> None:
        self._editing = self.buffer.open_in_editor()

    def show_details(self) -> None:
        self._listener.wants_details()

    def paste(self, text: str) -> None:
        self.buffer.insert_text(self.pastes.folded(text))

    def search_history(self) -> None:
        asked = recalling(self._history.get_strings(), self.pastes.unfolded)
        self.offer(asked)  # at once: the next keys are for it
        self._recalling = asyncio.get_running_loop().create_task(self._recall(asked))

    async def _recall(self, asked: Menu) -> None:
        """Puts what is chosen on the line."""
        chosen = await self.ask(asked)
        if chosen is not None:
            self.buffer.reset()
            self.buffer.insert_text(chosen)

    # How it is laid out

    def _layout(self) -> PackedSplit:
        asks = Condition(lambda: self.menu is not None)
        shows = Condition(lambda: bool(self._live_text()))
        completes = Condition(lambda: self.buffer.complete_state is not None and bool(self._completions()))
        line = InputLine(
            BufferControl(self.buffer, input_processors=[PackedLine(self._stand_ins), AfterInput(self._drawn_cursor)]),
            get_line_prefix=lambda number, wrap: [("class:prompt", PROMPT if number == wrap == 0 else "  ")],
            height=lambda: Dimension(max=max(1, self.rows - 4)),
            wrap_lines=True,
            dont_extend_height=True,
        )
        line.may_rest = self._may_rest
        split = PackedSplit(
            [
                ConditionalContainer(Window(FormattedTextControl(self._drawn_live), dont_extend_height=True), shows),
                ConditionalContainer(Window(FormattedTextControl(self._drawn_menu), dont_extend_height=True), asks),
                ConditionalContainer(line, ~asks),
                ConditionalContainer(
                    Window(FormattedTextControl(self._completions), dont_extend_height=True), completes & ~asks
                ),
                Window(FormattedTextControl(self._drawn_status), height=1),
            ],
            align=VerticalAlign.TOP,
        )
        split.stand_ins = self._stand_ins
        return split

    def _live_text(self) -> str:
        """Half of the screen at most: rows that a narrower terminal breaks in two must not leave it at the top."""
        if self.menu is not None and self.rows < SMALL_ROWS:
            return ""  # the question needs them all
        rows = max(1, min(self.rows - _OTHER_ROWS, self.rows // 2)) if self.menu is None else 1
        lines = self._live(self.columns).split("\n")
        return "\n".join(lines[-rows:])

    def _drawn_live(self) -> StyleAndTextTuples:
        return self._stand_ins.packed_fragments(to_formatted_text(ANSI(self._live_text())))

    def _may_rest(self) -> bool:
        """The terminal's own cursor: something goes on, and nobody types."""
        is_typed_on = bool(self.buffer.text) and not self._area.is_settling
        return self.is_working and self.menu is None and not is_typed_on

    def _drawn_cursor(self) -> StyleAndTextTuples:
        return [("reverse", " ")] if self._may_rest() and not self.buffer.text else []

    def _drawn_menu(self) -> StyleAndTextTuples:
        others = 2 if self.rows < SMALL_ROWS else 3
        drawn = self.menu.fragments(self.columns, max(4, self.rows - others)) if self.menu else []
        return self._stand_ins.packed_fragments(drawn)

    def _drawn_status(self) -> StyleAndTextTuples:
        return self._stand_ins.packed_fragments([("class:status", self.status.line(self.columns))])

    def _completions(self) -> StyleAndTextTuples:
        state = self.buffer.complete_state
        if state is None or not state.completions:
            return []
        at = state.complete_index or 0
        first = max(0, min(at - MOST_COMPLETIONS // 2, len(state.completions) - MOST_COMPLETIONS))
        drawn: StyleAndTextTuples = []
        offered = state.completions[first : first + MOST_COMPLETIONS]
        widest = max(width(one.display_text) for one in offered)
        for place, one in enumerate(offered, first):
            style = "class:offer.chosen" if place == state.complete_index else ""
            gap = " " * (widest - width(one.display_text))
            name = cut(f"  {one.display_text}{gap}", self.columns)
            about = cut(f"  {one.display_meta_text}", self.columns - width(name)) if one.display_meta_text else ""
            drawn += [(style, name), ("class:offer.about", about), ("", "\n")]
        return self._stand_ins.packed_fragments(drawn[:-1])


def _soon(*acts: Callable[[], None]) -> None:
    """Once what was typed before us is on the line."""
    for act in acts:
        asyncio.get_running_loop().call_later(QUIET_S, act)


def _output() -> ClusterOutput:
    """The terminal is never asked where its cursor is: not every one answers."""
    return ClusterOutput(sys.stdout, _size, term=os.environ.get("TERM"), enable_cpr=False)


def _size() -> Size:
    """Some terminals say that they have no size at all."""
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    return Size(rows=rows or 24, columns=columns or 80)
