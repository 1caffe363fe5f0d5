"""A turn on the screen: what is complete goes into the scrollback, what is being written or done stands below it.

A tool call in one line: what it is about, how it ended, how long it took; below it what tells most of it.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import msgspec

from talaria.cli.safe import readable, settled, visible
from talaria.cli.screen.painting import (
    BOLD,
    CYAN,
    DIM,
    GREEN,
    RED,
    YELLOW,
    BlockSplitter,
    MarkdownBlock,
    checklist,
    diff,
    file_change,
    markdown,
    styled,
)
from talaria.cli.screen.width import cut, paragraphs, width, wrapped
from talaria.cli.tool_outcomes import TOOL, Excerpt, outcome, output_lines, read_steps, summarise
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
from talaria.core.messages import FileChange, Outcome, ToolResult

_TELLING = ("command", "path", "query", "url", "pattern", "code", "question", "action", "name")
MOST_DIFF_LINES = 24
MOST_ARGUMENT_LINES = 200
MOST_OUTPUT_LINES = 5
MOST_REASON_LINES = 3
MOST_END_COLUMNS = 30
_OF_SANDBOX = "[sandbox: "
_STOPPED = Outcome("cancelled", "stopped")
_COLOURS = {"done": GREEN, "failed": RED, "invalid": RED, "refused": YELLOW, "cancelled": YELLOW}


class ToolCallLines(msgspec.Struct, frozen=True):
    """A call that was made; without a result it runs, or was stopped."""

    name: str
    arguments: str
    result: ToolResult | None = None
    seconds: float | None = None
    """None: not known."""

    def running(self, columns: int, sign: str, colour: str, printed: Sequence[str] = ()) -> str:
        """With the last lines that it has printed."""
        took = f"{self.seconds:.0f} s" if self.seconds and self.seconds >= 1 else ""
        lines = [self._line(columns, sign, colour, "", took)]
        lines += [_beneath(line, columns) for line in printed[-MOST_OUTPUT_LINES:]]
        return "\n".join(lines)

    def ended(self, columns: int) -> str:
        """With what it printed, what went wrong, or what it changed in files."""
        how = self._outcome
        colour = _COLOURS[how.kind]
        said, reason = _said(how, columns)
        took = f"{self.seconds:.1f} s" if self.seconds is not None and self._has_run else ""
        steps = read_steps(self.result.text) if self.result is not None and self.name == TOOL else []
        call = msgspec.structs.replace(self, arguments=summarise(steps)) if steps else self
        mark = "✓" if how.kind == "done" else "✗"
        lines = [call._line(columns, mark, colour, said, took)]  # noqa: SLF001  (one of us)
        lines += _sentence(reason, columns) if reason else []
        if self.result is not None:
            lines += _printed(self.result, how, columns)
            for note in _notes(self.result, how):
                lines += _sentence(note, columns)
            lines += _changes(self.result, how, columns)
        if self.result is not None and steps:
            lines += [f"    {row}" for row in checklist(self.result.text, columns - 4).split("\n")]
        return "\n".join(lines)

    def details(self, columns: int) -> str:
        """All of it, as far as it is kept."""
        how = self._outcome
        end = how.words or how.kind
        lines = [styled(f"● {visible(self.name)}", BOLD), *_indented(self.arguments)]
        lines += [styled(f"  ─ {visible(end)}" if how.kind != "done" or how.words else "  ─", DIM)]
        if self.result is not None:
            text = self.result.text
            printed, ours = text[: how.output_chars], text[how.output_chars :].lstrip("\n")
            shown = output_lines(printed.rstrip("\n")) if printed else []
            lines += [f"    {line}" for line in (*shown, *readable(ours).split("\n"))]
            for change in self.result.changes:
                rows = file_change(change, columns - 4, most_lines=None).split("\n")
                lines += [f"    {row}" for row in rows]
        return "\n".join(lines)

    @property
    def _outcome(self) -> Outcome:
        return _STOPPED if self.result is None else outcome(self.result)

    @property
    def _has_run(self) -> bool:
        return self.result is None or self.result.disposition != "none"

    def _line(self, columns: int, sign: str, colour: str, said: str, took: str) -> str:
        gap = " · " if said and took else ""
        end = f"  {styled(said, colour)}{styled(f'{gap}{took}', DIM)}" if said or took else ""
        room = columns - width(f"  {said}{gap}{took}")
        name = cut(visible(self.name), max(1, room - width(f"  {sign} ")))
        about = cut(about_what(self.arguments), max(0, room - width(f"  {sign} {name}  ")))
        told = f"  {styled(about, DIM)}" if about else ""
        return f"  {styled(sign, colour)} {styled(name, BOLD)}{told}{end}"


def _said(how: Outcome, columns: int) -> tuple[str, str]:
    """What stands at the end of the line, and the reason for below it if that is too long."""
    words = visible(how.words)
    match how.kind:
        case "done":
            return ("" if words == "exit 0" else cut(words, columns // 2)), ""
        case "failed" | "cancelled":
            label, full = "failed" if how.kind == "failed" else "stopped", words
        case "refused":
            words = "you said no" if how.refused_by == "person" else words
            label, full = "refused", f"refused: {words}"
        case "invalid":
            label, full = "invalid", f"invalid: {words}"
    fits = bool(words) and width(full) <= min(MOST_END_COLUMNS, columns // 3)
    return (full, "") if fits else (label, words)


def _printed(result: ToolResult, how: Outcome, columns: int) -> list[str]:
    excerpt = Excerpt(result.text[: how.output_chars], MOST_OUTPUT_LINES, is_failed=how.kind != "done")
    lines = [_beneath(line, columns) for line in excerpt.lines]
    return [*lines, _beneath(f"{excerpt.more}: Ctrl-O", columns)] if excerpt.more else lines


def _notes(result: ToolResult, how: Outcome) -> list[str]:
    """What is said of a command besides how it ended: hosts that it could not reach, files that were held back."""
    ours = result.text[how.output_chars :].strip("\n").partition("\n\n")[0].split("\n")
    if not how.words:
        return []
    has_ended = ours[0].startswith("[")
    noted = [line for line in ours[1:] if has_ended or line.startswith(_OF_SANDBOX)]  # else it began in the background
    return [line.removeprefix("[").removesuffix("]") for line in noted]


def _changes(result: ToolResult, how: Outcome, columns: int) -> list[str]:
    if result.changes:
        shown = [_change(change, columns) for change in result.changes]
        more = result.more_changes
        return [*shown, *([_beneath(f"and {more:,} more file{'s' if more > 1 else ''}", columns)] if more else [])]
    is_command = how.words or how.output_chars
    changes = "" if result.is_error or is_command else changed(result.text)  # as earlier versions told it
    return [_shortened(changes, columns)] if changes else []


def _change(change: FileChange, columns: int) -> str:
    rows = file_change(change, columns - 4, most_lines=MOST_DIFF_LINES).split("\n")
    return "\n".join(f"    {row}" for row in rows)


def about_what(arguments: str) -> str:
    """The one argument that tells most, on one line."""
    try:
        given: Any = json.loads(arguments)
    except (ValueError, RecursionError):
        return _flat(arguments)
    if not isinstance(given, dict):
        return _flat(arguments)
    named = cast("dict[str, Any]", given)
    telling = [named[name] for name in _TELLING if isinstance(named.get(name), str)]
    if telling:
        return _flat(str(telling[0]))
    return _flat(", ".join(f"{name}={_told(value)}" for name, value in named.items()))


def _told(value: Any) -> str:
    """A list of things is how many they are; else as JSON, but for the quotes of a text."""
    if isinstance(value, list):
        count = len(cast("list[Any]", value))
        return f"{count} item{'' if count == 1 else 's'}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def changed(text: str) -> str:
    """The diff at the end of what a tool says; empty if there is none."""
    lines = text.split("\n")
    for place, line in enumerate(lines[:-1]):
        if line.startswith("--- ") and lines[place + 1].startswith("+++ "):
            return "\n".join(lines[place + 2 :])
    return ""


def _shortened(changes: str, columns: int) -> str:
    lines = changes.rstrip("\n").split("\n")
    left = len(lines) - MOST_DIFF_LINES
    more = [styled(f"    … {left} more lines: Ctrl-O", DIM)] if left > 0 else []
    return "\n".join(
        [*(f"    {line}" for line in diff("\n".join(lines[:MOST_DIFF_LINES]), columns - 4).split("\n")), *more]
    )


def _sentence(text: str, columns: int) -> list[str]:
    """For people to read, below the line of the call that it is about."""
    told = wrapped(paragraphs(visible(text), columns - 4), columns - 4)
    more = ["…"] if len(told) > MOST_REASON_LINES else []
    return [styled(f"    {line}", YELLOW) for line in (*told[:MOST_REASON_LINES], *more)]


def _beneath(line: str, columns: int) -> str:
    """Below the line of its call."""
    return styled(cut(f"    {line}", columns), DIM)


def _indented(text: str) -> list[str]:
    lines = visible(text).split("\n")
    left = len(lines) - MOST_ARGUMENT_LINES
    return [f"    {line}" for line in lines[:MOST_ARGUMENT_LINES]] + ([f"    … {left} more lines"] if left > 0 else [])


def _flat(text: str) -> str:
    return visible(" ".join(text.split()))


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
