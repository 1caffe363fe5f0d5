"""A turn on the screen: what is complete goes into the scrollback, what is being written or done stands below it."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from talaria.cli.output_lines import output_lines
from talaria.cli.safe import readable, settled
from talaria.cli.screen.blocks import BlockSplitter, MarkdownBlock
from talaria.cli.screen.painting import CYAN, DIM, YELLOW, markdown, styled
from talaria.cli.screen.tool_lines import ToolCallLines
from talaria.cli.screen.width import cut, paragraphs
from talaria.core.clock import Clock
from talaria.core.events import (
    AnswerRestarted,
    Event,
    Notice,
    RoundEnded,
    RouteSwitched,
    TextDelta,
    ThinkingDelta,
    ToolBegan,
    ToolEnded,
    ToolOutput,
    TurnBegan,
    TurnDone,
)
from talaria.core.ids import CallId

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
SPINS_PER_S = 8
_ROUND = "\n\n"
"""Between what is thought in one round and in the next."""
Filled = Callable[[int, int | None], None]
"""Told how many tokens the conversation takes, of how many, if that is known."""


class Paper(Protocol):
    """What a turn is written on: the screen."""

    @property
    def columns(self) -> int: ...
    @property
    def menu(self) -> object | None: ...
    def print(self, text: str) -> None: ...


class _Running(msgspec.Struct, frozen=True):
    """A call under way."""

    name: str
    arguments: str
    began: float
    printed: Sequence[str] = ()
    """The last lines."""


class TurnView:
    def __init__(self, screen: Paper, clock: Clock, filled: Filled) -> None:
        self._screen = screen
        self._clock = clock
        self._filled = filled
        self._began = clock.monotonic()
        self._blocks = BlockSplitter()
        self._thoughts: list[str] = []
        self._has_written = False
        self._running: dict[CallId, _Running] = {}
        self._ended: list[ToolCallLines] = []
        self._window: int | None = None
        self._painted = ("", 0, "")
        """The rest of the text, for how many columns, and what it looks like."""
        self._needs_gap = True
        self._notes: list[str] = []
        """That wait for the end of a block."""

    def show(self, event: Event) -> None:
        match event:
            case TurnBegan(window=window):
                self._window = window
            case TextDelta(text):
                self._write(text)
            case ThinkingDelta(text):
                self._thoughts.append(text)
            case AnswerRestarted():  # why, a notice says
                self._blocks = BlockSplitter()
                if self._has_written:
                    self._note("[…]")
                self._has_written = False
                self._thoughts.append(_ROUND)
            case RoundEnded(message):
                if message.text and not self._has_written:  # it came whole
                    self._write(message.text)
                self._end_text()
                self._has_written = False
                self._thoughts.append(_ROUND)
                self._fill(message.usage.prompt + message.usage.output if message.usage else None)
            case ToolBegan(call, name, arguments):
                self._end_text()
                self._running[call] = _Running(name, arguments, self._clock.monotonic())
            case ToolOutput(call, tail):  # drawn with the next tick, however much comes
                if call in self._running:
                    lines = [line for line in output_lines(tail) if line.strip()]
                    self._running[call] = msgspec.structs.replace(self._running[call], printed=lines)
            case ToolEnded(result, seconds):
                began = self._running.pop(result.call_id, None)
                self._end_tool(ToolCallLines(result.name, began.arguments if began else "", result, seconds))
            case Notice(text):
                self._note(text)
            case RouteSwitched(_, model, reason, window):
                self._window = window
                self._note(f"{reason} Going on with {model}.")
            case TurnDone():
                self.end()

    def end(self) -> None:
        """Also before the turn has: what was written of it stays, and what runs was stopped."""
        self._end_text()
        for running in self._running.values():
            self._end_tool(ToolCallLines(running.name, running.arguments))
        self._running.clear()

    def add_note(self, text: str) -> None:
        """Of the person's. It stands behind the block that is being written."""
        self._notes.append(text)
        if not self._blocks.rest:
            self._print_notes()

    def live(self, columns: int) -> str:
        """What is still changing, and that something goes on."""
        gap = "\n" if self._needs_gap else ""
        parts = [gap + self._rest(columns)] if self._blocks.rest else []
        parts += self._notes
        now = self._clock.monotonic()
        for one in self._running.values():
            call = ToolCallLines(one.name, one.arguments, seconds=now - one.began)
            parts.append(call.running(columns, self._sign, CYAN, one.printed))
        return "\n".join([*parts, self._pulse(columns)])

    def details(self) -> str:
        """What the turn has thought and done, in full."""
        thought = readable("".join(self._thoughts).strip())
        parts = [styled("✻ Thought:\n", DIM) + styled(thought, DIM)] if thought else []
        return "\n".join([*parts, *(call.details(self._screen.columns) for call in self._ended)])

    @property
    def seconds(self) -> float:
        return self._clock.monotonic() - self._began

    @property
    def _sign(self) -> str:
        return _SPINNER[int(self.seconds * SPINS_PER_S) % len(_SPINNER)]

    def _pulse(self, columns: int) -> str:
        if self._screen.menu is not None:
            return styled(cut(f"{self._sign} Waiting for your answer … {self.seconds:.0f} s", columns), DIM)
        if self._blocks.rest:
            doing = "Writing"
        elif self._running:
            doing = "Working"
        else:
            doing = "Thinking"
        thought = "" if doing != "Thinking" else readable("".join(self._thoughts[-40:]).rpartition("\n")[2].strip())
        line = f"{self._sign} {doing} … {self.seconds:.0f} s · Ctrl-C stops"
        return styled(cut(f"{line} · {thought}" if thought else line, columns), DIM)

    def _rest(self, columns: int) -> str:
        rest = self._blocks.tail
        if self._painted[:2] != (rest, columns):
            self._painted = (rest, columns, markdown(settled(rest), columns))
        return self._painted[2]

    def _write(self, text: str) -> None:
        self._has_written = True
        for block in self._blocks.add(text):
            self._print(block)

    def _end_text(self) -> None:
        for block in self._blocks.end():
            self._print(block)
        self._print_notes()

    def _print(self, block: MarkdownBlock) -> None:
        gap = "\n" if self._needs_gap else ""
        self._screen.print(gap + markdown(block.text, self._screen.columns))
        self._needs_gap = not block.goes_on
        if not block.goes_on:
            self._print_notes()

    def _print_notes(self) -> None:
        notes, self._notes = self._notes, []
        for note in notes:
            self._screen.print(note)

    def _end_tool(self, call: ToolCallLines) -> None:
        self._ended.append(call)
        gap = "\n" if self._needs_gap and len(self._ended) == 1 else ""
        self._screen.print(gap + call.ended(self._screen.columns))
        self._needs_gap = True

    def _note(self, text: str) -> None:
        self._end_text()
        self._screen.print(styled(paragraphs(f"  {readable(text)}", self._screen.columns), YELLOW))

    def _fill(self, tokens: int | None) -> None:
        if tokens:
            self._filled(tokens, self._window)
