"""How a turn is shown: text as it comes, or as JSON. stdout carries only the answer; everything else goes to stderr.

An answer into a pipe or a file: line by line, as it comes. At the end of a turn without mishaps the output is the
answer and a line break, as if it had been printed at once.

What is printed cannot be taken back. So a line is printed once it is complete: the words with which a model announces a
tool call are mostly one line, and those are dropped. When a model is asked again, the new answer goes on after what it
has in common with the old one, or begins on a line of its own; then stderr says that what came before is void.
"""

import sys
from typing import Protocol, TextIO

from talaria.cli.notices import say
from talaria.cli.options import Format
from talaria.cli.output import JsonView, StreamJsonView, in_words
from talaria.cli.safe import PrintableStream, brief, printable, visible
from talaria.cli.tool_outcomes import TOOL, Excerpt, outcome, read_steps, refusal
from talaria.core.events import (
    AnswerRestarted,
    Event,
    Notice,
    RoundEnded,
    RouteSwitched,
    TextDelta,
    ToolBegan,
    ToolEnded,
)
from talaria.core.messages import ToolResult
from talaria.runtime.turn_runner import Report

LONGEST_HELD_CHARS = 1_000
"""A line that becomes longer is printed as it comes."""
VOID = "What was printed of the answer so far is void; the whole answer follows."
NOT_YET = "What was printed so far was not the answer yet; it follows."


class PipedAnswer:
    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._text = ""
        """Of the round that is under way, or was the last."""
        self._printed_chars = 0
        """Of `_text`."""
        self._void = ""
        """What was printed of an answer that is given again."""
        self._is_round_over = False

    def show(self, event: Event) -> None:
        match event:
            case TextDelta(text):
                if self._is_round_over:
                    self._disown(NOT_YET)
                self._add(text)
            case AnswerRestarted():
                self._void = self._void or self._text[: self._printed_chars]
                self._text, self._printed_chars, self._is_round_over = "", 0, False
            case RoundEnded(message) if message.calls:
                self._disown(NOT_YET)
            case RoundEnded():
                self._is_round_over = True
            case _:
                pass

    def finish(self, report: Report) -> None:
        """A turn that did not come to its end leaves what was printed, to the end of what came."""
        printed = self._void or self._text[: self._printed_chars]
        if report.outcome != "completed":
            if self._printed_chars:
                self._write(self._text[self._printed_chars :])
                self._printed_chars = len(self._text)
            self._end_line()
        elif report.text.startswith(printed):
            self._write(f"{report.text[len(printed) :]}\n")
        else:
            self._disown(VOID)
            self._write(f"{report.text}\n")

    def _add(self, text: str) -> None:
        self._text += text
        if self._void:
            if not self._void.startswith(self._text[: len(self._void)]):
                text = self._text
                self._disown(VOID)
                self._text = text
            elif len(self._text) < len(self._void):
                return  # says the same again, so far
            else:
                self._printed_chars, self._void = len(self._void), ""
        end = self._text.rfind("\n", self._printed_chars) + 1
        if not end and len(self._text) - self._printed_chars > LONGEST_HELD_CHARS:
            end = len(self._text)
        if end:
            self._write(self._text[self._printed_chars : end])
            self._printed_chars = end

    def _disown(self, why: str) -> None:
        """The next text is another one; whoever has seen something of this one is told."""
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


MAX_ARGUMENT_CHARS = 100
MOST_OUTPUT_LINES = 5


class AnswerView(Protocol):
    def show(self, event: Event) -> None: ...
    def finish(self, report: Report) -> None: ...


class TextView:
    """On a terminal words appear as they come; into a pipe goes the answer, line by line."""

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
                say(f"● {name}" if name == TOOL else f"● {name} {visible(brief(arguments, MAX_ARGUMENT_CHARS))}")
            case ToolEnded(result, seconds):
                self._end_call(result, seconds)
            case Notice() | RouteSwitched():
                self._end_line()
                say(in_words(event))
            case _:
                pass

    def _end_call(self, result: ToolResult, seconds: float) -> None:
        for step in read_steps(result.text) if result.name == TOOL else ():
            say(f"  {step.mark} {printable(step.text)}{' (cancelled)' if step.is_cancelled else ''}")
        how = outcome(result)
        if how.kind == "refused":
            say(refusal(result))
            return
        label = "stopped" if how.kind == "cancelled" else how.kind
        took = f" {'after' if label == 'stopped' else 'in'} {seconds:.1f} s" if result.disposition != "none" else ""
        words = f": {how.words}" if how.words not in ("", "exit 0", label) else ""
        say(f"  {label}{took}{words}")
        excerpt = Excerpt(result.text[: how.output_chars], MOST_OUTPUT_LINES, is_failed=how.kind != "done")
        for line in (*excerpt.lines, *filter(None, [excerpt.more])):
            say(f"    {line}")

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


def view_for(format: Format) -> AnswerView:
    match format:
        case "text":
            return TextView()
        case "json":
            return JsonView()
        case "stream-json":
            return StreamJsonView()
