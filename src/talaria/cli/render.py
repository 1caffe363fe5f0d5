"""How a turn is shown: text as it comes, or as JSON. stdout carries only the answer; everything else goes to stderr."""

import sys
from typing import Protocol

from talaria.cli.checklist import TOOL, read_steps
from talaria.cli.json_output import JsonView, StreamJsonView, in_words
from talaria.cli.notices import say
from talaria.cli.options import Format
from talaria.cli.safe import brief, printable
from talaria.model.events import (
    AnswerRestarted,
    Event,
    Notice,
    RoundEnded,
    RouteSwitched,
    TextDelta,
    ToolBegan,
    ToolEnded,
)
from talaria.runtime.turn import Report

MAX_ARGUMENT_CHARS = 100


class View(Protocol):
    def show(self, event: Event) -> None: ...
    def finish(self, report: Report) -> None: ...


class TextView:
    """On a terminal words appear as they come; into a pipe goes the final answer alone."""

    def __init__(self) -> None:
        self._is_live = sys.stdout.isatty()
        self._has_open_line = False
        self._has_shown_words = False

    def show(self, event: Event) -> None:
        match event:
            case TextDelta(text) if self._is_live:
                self._has_shown_words = True
                self._write(printable(text))
            case AnswerRestarted():
                if self._has_open_line:
                    self._write(" […]\n")
                self._has_shown_words = False
            case RoundEnded(message):
                if self._is_live and message.text and not self._has_shown_words:  # it came whole
                    self._write(printable(message.text))
                self._has_shown_words = False
                self._end_line()
            case ToolBegan(_, name, arguments):
                say(f"● {name}" if name == TOOL else f"● {name} {brief(arguments, MAX_ARGUMENT_CHARS)}")
            case ToolEnded(result, seconds):
                for step in read_steps(result.text) if result.name == TOOL else ():
                    say(f"  {step.mark} {printable(step.text)}{' (cancelled)' if step.is_cancelled else ''}")
                say(f"  {'failed' if result.is_error else 'done'} in {seconds:.1f} s")
            case Notice() | RouteSwitched():
                self._end_line()
                say(in_words(event))
            case _:
                pass

    def finish(self, report: Report) -> None:
        self._end_line()
        if not self._is_live and report.outcome == "completed":
            sys.stdout.write(f"{report.text}\n")
        sys.stdout.flush()

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
        self._has_open_line = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._has_open_line:
            self._write("\n")


def view_for(format: Format) -> View:
    match format:
        case "text":
            return TextView()
        case "json":
            return JsonView()
        case "stream-json":
            return StreamJsonView()
