"""How a turn is shown without a screen: text as it arrives, or JSON. stdout carries only the answer; everything else
goes to stderr.

An answer goes into a pipe or a file line by line. If nothing goes wrong, the output is the answer and a line break,
as if it had been printed at once. Printed text cannot be taken back, so a line is printed once it is complete: the
words with which a model announces a tool call are usually one line, and are dropped. When a model is asked again, the
new answer continues after the part that both have in common, or starts on its own line; then stderr says that the
text before is void.
"""

import sys
from typing import Protocol, TextIO

import msgspec

from talaria.cli.command_output import error_document, print_json
from talaria.cli.notices import say
from talaria.cli.options import Format
from talaria.cli.safe import PrintableStream, brief, printable, visible
from talaria.cli.tool_outcomes import CHECKLIST_TOOL, Excerpt, outcome, read_steps, refusal
from talaria.core.events import (
    AnswerRestarted,
    Event,
    Notice,
    RoundEnded,
    RouteSwitched,
    TextDelta,
    ToolBegan,
    ToolEnded,
    TurnBegan,
)
from talaria.core.messages import ToolResult
from talaria.runtime.turn_runner import Report

SCHEMA = 1
"""Raised when a line or a field is removed or changes its meaning, not when one is added."""
MAX_HELD_CHARS = 1_000
"""A longer line is printed as it arrives."""
VOID = "Ignore what was printed so far: the whole answer follows."
NOT_YET = "What was printed so far was not the answer; it follows."
MAX_ARGUMENT_CHARS = 100
MAX_OUTPUT_LINES = 5


class AnswerView(Protocol):
    def show(self, event: Event) -> None: ...
    def finish(self, report: Report) -> None: ...


def view_for(format: Format) -> AnswerView:
    match format:
        case "text":
            return TextView()
        case "json":
            return JsonView()
        case "stream-json":
            return StreamJsonView()


class TextView:
    """Word by word on a terminal; line by line into a pipe."""

    def __init__(self) -> None:
        self._is_live = sys.stdout.isatty()
        self._piped = None if self._is_live else PipedAnswer(sys.stdout)
        self._has_open_line = False
        self._has_shown_words = False
        self._words = PrintableStream()

    def show(self, event: Event) -> None:
        if self._piped is not None:
            self._piped.show(event)
        match event:
            case TextDelta(text) if self._is_live:
                self._has_shown_words = True
                self._write(self._words.add(text))
            case AnswerRestarted():
                self._write(self._words.end())
                if self._has_open_line:
                    self._write(" […]\n")
                self._has_shown_words = False
            case RoundEnded(message):
                self._write(self._words.end())
                if self._is_live and message.text and not self._has_shown_words:  # it came whole
                    self._write(printable(message.text))
                self._has_shown_words = False
                self._end_line()
            case ToolBegan(_, name, arguments):
                say(
                    f"● {name}"
                    if name == CHECKLIST_TOOL
                    else f"● {name} {visible(brief(arguments, MAX_ARGUMENT_CHARS))}"
                )
            case ToolEnded(result, seconds):
                _report_call(result, seconds)
            case Notice() | RouteSwitched():
                self._end_line()
                say(notice_text(event))
            case _:
                pass

    def finish(self, report: Report) -> None:
        self._write(self._words.end())
        self._end_line()
        if self._piped is not None:
            self._piped.finish(report)
        sys.stdout.flush()

    def _write(self, text: str) -> None:
        if not text:
            return
        sys.stdout.write(text)
        sys.stdout.flush()
        self._has_open_line = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._has_open_line:
            self._write("\n")


def _report_call(result: ToolResult, seconds: float) -> None:
    for step in read_steps(result.text) if result.name == CHECKLIST_TOOL else ():
        say(f"  {step.mark} {printable(step.text)}{' (cancelled)' if step.is_cancelled else ''}")
    how = outcome(result)
    if how.kind == "refused":
        say(refusal(result))
        return
    label = "stopped" if how.kind == "cancelled" else how.kind
    took = f" {'after' if label == 'stopped' else 'in'} {seconds:.1f} s" if result.disposition != "none" else ""
    words = f": {how.words}" if how.words not in ("", "exit 0", label) else ""
    say(f"  {label}{took}{words}")
    excerpt = Excerpt(result.text[: how.output_chars], MAX_OUTPUT_LINES, is_failed=how.kind != "done")
    for line in (*excerpt.lines, *filter(None, [excerpt.more])):
        say(f"    {line}")


class PipedAnswer:
    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._text = ""
        """The text of the current round, or the last one."""
        self._printed_chars = 0
        """How much of `_text` is printed."""
        self._void = ""
        """The printed part of an answer that was restarted."""
        self._is_round_over = False

    def show(self, event: Event) -> None:
        match event:
            case TextDelta(text):
                if self._is_round_over:
                    self._discard(NOT_YET)
                self._add(text)
            case AnswerRestarted():
                self._void = self._void or self._text[: self._printed_chars]
                self._text, self._printed_chars, self._is_round_over = "", 0, False
            case RoundEnded(message) if message.calls:
                self._discard(NOT_YET)
            case RoundEnded():
                self._is_round_over = True
            case _:
                pass

    def finish(self, report: Report) -> None:
        """If the turn did not complete, everything that arrived of its answer is printed."""
        printed = self._void or self._text[: self._printed_chars]
        if report.outcome != "completed":
            if self._printed_chars:
                self._write(self._text[self._printed_chars :])
                self._printed_chars = len(self._text)
            self._end_line()
        elif report.text.startswith(printed):
            self._write(f"{report.text[len(printed) :]}\n")
        else:
            self._discard(VOID)
            self._write(f"{report.text}\n")

    def _add(self, text: str) -> None:
        self._text += text
        if self._void:
            if not self._void.startswith(self._text[: len(self._void)]):
                text = self._text
                self._discard(VOID)
                self._text = text
            elif len(self._text) < len(self._void):
                return  # the same text again, so far
            else:
                self._printed_chars, self._void = len(self._void), ""
        end = self._text.rfind("\n", self._printed_chars) + 1
        if not end and len(self._text) - self._printed_chars > MAX_HELD_CHARS:
            end = len(self._text)
        if end:
            self._write(self._text[self._printed_chars : end])
            self._printed_chars = end

    def _discard(self, why: str) -> None:
        """Discard the text of this round, and say so if any of it was printed."""
        if self._void or self._printed_chars:
            self._end_line()
            say(why)
        self._text, self._printed_chars, self._void, self._is_round_over = "", 0, "", False

    def _end_line(self) -> None:
        printed = self._void or self._text[: self._printed_chars]
        if printed and not printed.endswith("\n"):
            self._write("\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


class JsonView:
    """One document at the end of the turn."""

    def __init__(self) -> None:
        self._refused: list[ToolResult] = []

    def show(self, event: Event) -> None:
        match event:
            case Notice() | RouteSwitched():
                say(notice_text(event))
            case ToolEnded(result) if outcome(result).kind == "refused":
                self._refused.append(result)
                say(refusal(result))
            case _:
                pass

    def finish(self, report: Report) -> None:
        print_json(
            {
                "ok": report.outcome == "completed",
                "session": report.session,
                "turn": report.turn,
                "outcome": report.outcome,
                "model": report.model,
                "text": report.text,
                "usage": {**msgspec.structs.asdict(report.usage), "total": report.usage.total},
                "refused": [
                    {"call": result.call_id, "name": result.name, "reason": how.words, "by": how.refused_by}
                    for result in self._refused
                    for how in (outcome(result),)
                ],
                **({"error": error_document(report.error)} if report.error else {}),
            }
        )


class StreamJsonView:
    """Every event as a line (docs/reference/stream-json.md). The first of each turn has the schema version."""

    def show(self, event: Event) -> None:
        print_json({**msgspec.to_builtins(event), "schema": SCHEMA} if isinstance(event, TurnBegan) else event)
        if isinstance(event, ToolEnded) and outcome(event.result).kind == "refused":
            say(refusal(event.result))

    def finish(self, report: Report) -> None:
        """`TurnDone` was the last line."""


def notice_text(event: Notice | RouteSwitched) -> str:
    return event.text if isinstance(event, Notice) else f"{event.reason} Continuing with {event.model}."
