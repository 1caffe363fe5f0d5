"""How a turn is shown: text as it comes, or as JSON. stdout carries only the answer; everything else goes to stderr."""

import sys
from typing import Protocol

from talaria.cli.checklist import TOOL, read_steps
from talaria.cli.json_output import JsonView, StreamJsonView, in_words
from talaria.cli.notices import say
from talaria.cli.options import Format
from talaria.cli.output_lines import Excerpt
from talaria.cli.piped_answer import PipedAnswer
from talaria.cli.safe import PrintableStream, brief, printable, visible
from talaria.cli.tool_outcomes import outcome, refusal
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
