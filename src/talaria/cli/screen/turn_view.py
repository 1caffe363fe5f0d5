"""A turn on the screen: what is complete goes into the scrollback; what is being written or done is drawn below it.

A tool call is one line: what it is about, how it ended, and how long it took. Below it are its most informative lines.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import msgspec

from talaria.cli.safe import drop_unfinished, readable, visible
from talaria.cli.screen.painting import (
    BOLD,
    CYAN,
    DIM,
    GREEN,
    RED,
    YELLOW,
    BlockSplitter,
    MarkdownBlock,
    render_checklist,
    render_diff,
    render_file_change,
    render_markdown,
    style,
)
from talaria.cli.screen.width import cut, width, wrap, wrap_words
from talaria.cli.tool_outcomes import CHECKLIST_TOOL, Excerpt, outcome, output_lines, read_steps, summarise
from talaria.core.clock import Clock
from talaria.core.events import (
    AnswerRestarted,
    Event,
    Notice,
    QuestionAsked,
    QuestionClosed,
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
from talaria.core.messages import Outcome, ToolResult, Usage

_KEY_ARGUMENTS = ("command", "path", "query", "url", "pattern", "code", "question", "action", "name")
MAX_DIFF_LINES = 24
MAX_ARGUMENT_LINES = 200
MAX_OUTPUT_LINES = 5
MAX_NOTE_LINES = 3
MAX_END_COLUMNS = 30
_SANDBOX_NOTE = "[sandbox: "
_STOPPED = Outcome("cancelled", "stopped")
_COLOURS = {"done": GREEN, "failed": RED, "invalid": RED, "refused": YELLOW, "cancelled": YELLOW}


class ToolCallLines(msgspec.Struct, frozen=True):
    """A call. Without a result, it is running or was stopped."""

    name: str
    arguments: str
    result: ToolResult | None = None
    seconds: float | None = None
    """None if it is not known."""

    def render_running(self, columns: int, mark: str, colour: str, output: Sequence[str] = ()) -> str:
        """Includes the last lines of its output."""
        took = f"{self.seconds:.0f} s" if self.seconds and self.seconds >= 1 else ""
        lines = [self._headline(columns, mark, colour, "", took)]
        lines += [_detail_line(line, columns) for line in output[-MAX_OUTPUT_LINES:]]
        return "\n".join(lines)

    def render_ended(self, columns: int) -> str:
        """Includes its output, its error, or its file changes."""
        how = self._outcome
        label, reason = _end_label(how, columns)
        has_run = self.result is None or self.result.disposition != "none"
        took = f"{self.seconds:.1f} s" if self.seconds is not None and has_run else ""
        steps = read_steps(self.result.text) if self.result is not None and self.name == CHECKLIST_TOOL else []
        call = msgspec.structs.replace(self, arguments=summarise(steps)) if steps else self
        mark = "✓" if how.kind == "done" else "✗"
        lines = [call._headline(columns, mark, _COLOURS[how.kind], label, took)]  # noqa: SLF001  (of this class)
        lines += _note_lines(reason, columns) if reason else []
        if self.result is None:
            return "\n".join(lines)
        excerpt = Excerpt(self.result.text[: how.output_chars], MAX_OUTPUT_LINES, is_failed=how.kind != "done")
        lines += [_detail_line(line, columns) for line in excerpt.lines]
        lines += [_detail_line(f"{excerpt.more}: Ctrl-O", columns)] if excerpt.more else []
        if how.words:  # below how it ended are notes of the sandbox, such as hosts that could not be reached
            ours = self.result.text[how.output_chars :].strip("\n").partition("\n\n")[0].split("\n")
            has_ended = ours[0].startswith("[")  # otherwise it was started in the background
            for line in ours[1:]:
                if has_ended or line.startswith(_SANDBOX_NOTE):
                    lines += _note_lines(line.removeprefix("[").removesuffix("]"), columns)
        lines += _change_lines(self.result, how, columns)
        if steps:
            lines += [f"    {row}" for row in render_checklist(self.result.text, columns - 4).split("\n")]
        return "\n".join(lines)

    def render_details(self, columns: int) -> str:
        """Everything that is kept of it."""
        how = self._outcome
        arguments = visible(self.arguments).split("\n")
        left = len(arguments) - MAX_ARGUMENT_LINES
        lines = [style(f"● {visible(self.name)}", BOLD)]
        lines += [f"    {line}" for line in arguments[:MAX_ARGUMENT_LINES]]
        lines += [f"    … {left} more lines"] if left > 0 else []
        lines += [style(f"  ─ {visible(how.words or how.kind)}" if how.kind != "done" or how.words else "  ─", DIM)]
        if self.result is not None:
            text = self.result.text
            printed, ours = text[: how.output_chars], text[how.output_chars :].lstrip("\n")
            output = output_lines(printed.rstrip("\n")) if printed else []
            lines += [f"    {line}" for line in (*output, *readable(ours).split("\n"))]
            for change in self.result.changes:
                rows = render_file_change(change, columns - 4, max_lines=None).split("\n")
                lines += [f"    {row}" for row in rows]
        return "\n".join(lines)

    @property
    def _outcome(self) -> Outcome:
        return _STOPPED if self.result is None else outcome(self.result)

    def _headline(self, columns: int, mark: str, colour: str, label: str, took: str) -> str:
        gap = " · " if label and took else ""
        end = f"  {style(label, colour)}{style(f'{gap}{took}', DIM)}" if label or took else ""
        room = columns - width(f"  {label}{gap}{took}")
        name = cut(visible(self.name), max(1, room - width(f"  {mark} ")))
        about = cut(summarise_arguments(self.arguments), max(0, room - width(f"  {mark} {name}  ")))
        return f"  {style(mark, colour)} {style(name, BOLD)}{f'  {style(about, DIM)}' if about else ''}{end}"


def _end_label(how: Outcome, columns: int) -> tuple[str, str]:
    """The label at the end of the line, and the reason, which goes below the line if it is too long for the label."""
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
    fits = bool(words) and width(full) <= min(MAX_END_COLUMNS, columns // 3)
    return (full, "") if fits else (label, words)


def _change_lines(result: ToolResult, how: Outcome, columns: int) -> list[str]:
    if result.changes:
        lines = list[str]()
        for change in result.changes:
            rows = render_file_change(change, columns - 4, max_lines=MAX_DIFF_LINES).split("\n")
            lines += [f"    {row}" for row in rows]
        more = result.more_changes
        return [*lines, *([_detail_line(f"and {more:,} more file{'s' if more > 1 else ''}", columns)] if more else [])]
    is_command = how.words or how.output_chars
    diff = "" if result.is_error or is_command else find_diff(result.text)  # results of earlier versions
    if not diff:
        return []
    lines = diff.rstrip("\n").split("\n")
    left = len(lines) - MAX_DIFF_LINES
    shown = render_diff("\n".join(lines[:MAX_DIFF_LINES]), columns - 4).split("\n")
    more_lines = [style(f"    … {left} more lines: Ctrl-O", DIM)] if left > 0 else []
    return [*(f"    {line}" for line in shown), *more_lines]


def summarise_arguments(arguments: str) -> str:
    """The most informative argument, on one line."""
    try:
        given: Any = json.loads(arguments)
    except (ValueError, RecursionError):
        return _one_line(arguments)
    if not isinstance(given, dict):
        return _one_line(arguments)
    named = cast("dict[str, Any]", given)
    key = [named[name] for name in _KEY_ARGUMENTS if isinstance(named.get(name), str)]
    if key:
        return _one_line(str(key[0]))
    texts = list[str]()
    for name, value in named.items():
        if isinstance(value, list):
            count = len(cast("list[Any]", value))
            value = f"{count} item{'' if count == 1 else 's'}"  # noqa: PLW2901
        texts.append(f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
    return _one_line(", ".join(texts))


def find_diff(text: str) -> str:
    """The diff at the end of a result; empty if there is none."""
    lines = text.split("\n")
    for place, line in enumerate(lines[:-1]):
        if line.startswith("--- ") and lines[place + 1].startswith("+++ "):
            return "\n".join(lines[place + 2 :])
    return ""


def _note_lines(text: str, columns: int) -> list[str]:
    """Prose below the line of the call."""
    lines = wrap(wrap_words(visible(text), columns - 4), columns - 4)
    more = ["…"] if len(lines) > MAX_NOTE_LINES else []
    return [style(f"    {line}", YELLOW) for line in (*lines[:MAX_NOTE_LINES], *more)]


def _detail_line(line: str, columns: int) -> str:
    return style(cut(f"    {line}", columns), DIM)


def _one_line(text: str) -> str:
    return visible(" ".join(text.split()))


_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
SPINS_PER_S = 8
_ROUND = "\n\n"
"""Between the thinking of one round and the next."""
OnUsage = Callable[[int, int | None], None]
"""Called with the tokens that the conversation takes, and the size of the window, if known."""


class TurnOutput(Protocol):
    """Where a turn is printed: the screen, or a list of lines."""

    @property
    def columns(self) -> int: ...
    @property
    def menu(self) -> object | None: ...
    def print(self, text: str) -> None: ...


class _RunningCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str
    began: float
    output: Sequence[str] = ()
    """The last lines."""


class TurnView:
    def __init__(self, screen: TurnOutput, clock: Clock, on_usage: OnUsage, stop_hint: str = "Ctrl-C stops") -> None:
        self._screen = screen
        self._stop_hint = stop_hint
        self._clock = clock
        self._on_usage = on_usage
        self._began = clock.monotonic()
        self._blocks = BlockSplitter()
        self._thoughts: list[str] = []
        self._has_written = False
        self._running: dict[CallId, _RunningCall] = {}
        self._ended: list[ToolCallLines] = []
        self._window: int | None = None
        self._render_cache = ("", 0, "")
        """The unfinished block, the columns, and the rendered block."""
        self._needs_gap = True
        self._notes: list[str] = []
        """Printed at the end of a block."""

    def show(self, event: Event) -> None:  # noqa: C901  (a case for each kind of event)
        match event:
            case TurnBegan(window=window):
                self._window = window
            case TextDelta(text):
                self._write(text)
            case ThinkingDelta(text):
                self._thoughts.append(text)
            case AnswerRestarted():  # a notice says why
                self._blocks = BlockSplitter()
                if self._has_written:
                    self._note("[…]")
                self._has_written = False
                self._thoughts.append(_ROUND)
            case RoundEnded(message):
                if message.text and not self._has_written:  # it was not streamed
                    self._write(message.text)
                self._end_text()
                self._has_written = False
                self._thoughts.append(_ROUND)
                self._report_usage(message.usage)
            case ToolBegan(call, name, arguments):
                self._end_text()
                self._running[call] = _RunningCall(name, arguments, self._clock.monotonic())
            case ToolOutput(call, tail):  # drawn at the next tick, however much arrives
                if call in self._running:
                    lines = [line for line in output_lines(tail) if line.strip()]
                    self._running[call] = msgspec.structs.replace(self._running[call], output=lines)
            case ToolEnded(result, seconds):
                began = self._running.pop(result.call_id, None)
                self._end_tool(ToolCallLines(result.name, began.arguments if began else "", result, seconds))
            case Notice(text):
                self._note(text)
            case RouteSwitched(_, model, reason, window):
                self._window = window
                self._note(f"{reason} Continuing with {model}.")
            case QuestionAsked() | QuestionClosed():
                pass  # shown where they can be answered
            case TurnDone():
                self.end()

    def end(self) -> None:
        """If the turn has not ended, its text so far stays, and running calls count as stopped."""
        self._end_text()
        for running in self._running.values():
            self._end_tool(ToolCallLines(running.name, running.arguments))
        self._running.clear()

    def add_note(self, text: str) -> None:
        """Print the person's note after the block that is being written."""
        self._notes.append(text)
        if not self._blocks.rest:
            self._print_notes()

    def render_live(self, columns: int) -> str:
        """What still changes, and the progress line."""
        parts = list[str]()
        if self._blocks.rest:
            tail = self._blocks.tail
            if self._render_cache[:2] != (tail, columns):
                self._render_cache = (tail, columns, render_markdown(drop_unfinished(tail), columns))
            parts.append(("\n" if self._needs_gap else "") + self._render_cache[2])
        parts += self._notes
        now = self._clock.monotonic()
        for one in self._running.values():
            call = ToolCallLines(one.name, one.arguments, seconds=now - one.began)
            parts.append(call.render_running(columns, self._spinner, CYAN, one.output))
        if self._screen.menu is not None:
            progress = f"{self._spinner} Waiting for your answer … {self.seconds:.0f} s"
        else:
            doing = "Writing" if self._blocks.rest else "Working" if self._running else "Thinking"
            progress = f"{self._spinner} {doing} … {self.seconds:.0f} s · {self._stop_hint}"
            if doing == "Thinking" and (thoughts := "".join(self._thoughts[-40:]).rpartition("\n")[2].strip()):
                progress += f" · {readable(thoughts)}"
        return "\n".join([*parts, style(cut(progress, columns), DIM)])

    def render_details(self) -> str:
        """All the thinking and all the calls of the turn."""
        thought = readable("".join(self._thoughts).strip())
        parts = [style("✻ Thinking:\n", DIM) + style(thought, DIM)] if thought else []
        return "\n".join([*parts, *(call.render_details(self._screen.columns) for call in self._ended)])

    @property
    def seconds(self) -> float:
        return self._clock.monotonic() - self._began

    @property
    def _spinner(self) -> str:
        return _SPINNER[int(self.seconds * SPINS_PER_S) % len(_SPINNER)]

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
        self._screen.print(gap + render_markdown(block.text, self._screen.columns))
        self._needs_gap = not block.is_continued
        if not block.is_continued:
            self._print_notes()

    def _print_notes(self) -> None:
        notes, self._notes = self._notes, []
        for note in notes:
            self._screen.print(note)

    def _end_tool(self, call: ToolCallLines) -> None:
        self._ended.append(call)
        gap = "\n" if self._needs_gap and len(self._ended) == 1 else ""
        self._screen.print(gap + call.render_ended(self._screen.columns))
        self._needs_gap = True

    def _report_usage(self, usage: Usage | None) -> None:
        if usage is not None and (tokens := usage.prompt + usage.output):
            self._on_usage(tokens, self._window)

    def _note(self, text: str) -> None:
        self._end_text()
        self._screen.print(style(wrap_words(f"  {readable(text)}", self._screen.columns), YELLOW))
