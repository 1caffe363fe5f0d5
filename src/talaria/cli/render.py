"""How a turn is shown: text as it comes, or as JSON. stdout carries only the answer; everything else goes to stderr."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal, Protocol

import msgspec

from talaria.cli import exits
from talaria.cli.notices import say
from talaria.cli.safe import printable
from talaria.model.errors import TalariaError
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

Format = Literal["text", "json", "stream-json"]
MAX_ARGUMENT_CHARS = 100

_encode = msgspec.json.Encoder().encode


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
                say(f"● {name} {_short(arguments)}")
            case ToolEnded(result, seconds):
                say(f"  {'failed' if result.is_error else 'done'} in {seconds:.1f} s")
            case Notice() | RouteSwitched():
                self._end_line()
                say(_notice(event))
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


class JsonView:
    """One document at the end."""

    def show(self, event: Event) -> None:
        if isinstance(event, Notice | RouteSwitched):
            say(_notice(event))

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
                **({"error": error_document(report.error)} if report.error else {}),
            }
        )


class StreamJsonView:
    """Every event as a line."""

    def show(self, event: Event) -> None:
        sys.stdout.write(_encode(event).decode() + "\n")
        sys.stdout.flush()

    def finish(self, report: Report) -> None:
        """`TurnDone` has said it."""


def view_for(format: Format) -> View:
    match format:
        case "text":
            return TextView()
        case "json":
            return JsonView()
        case "stream-json":
            return StreamJsonView()


def print_json(document: object) -> None:
    sys.stdout.write(_encode(document).decode() + "\n")
    sys.stdout.flush()


def print_failure(error: TalariaError) -> None:
    """Of a command that has nothing else to print."""
    print_json({"ok": False, "error": error_document(error), "exit_code": exits.code_for(error)})


@contextmanager
def told(*, as_json: bool) -> Generator[None]:
    """A failure inside is printed as JSON, too, if JSON was asked for."""
    try:
        yield
    except TalariaError as error:
        if as_json:
            print_failure(error)
        raise


def error_document(error: TalariaError) -> dict[str, str]:
    return {"type": type(error).__name__, "message": str(error)}


def _notice(event: Notice | RouteSwitched) -> str:
    return event.text if isinstance(event, Notice) else f"{event.reason} Going on with {event.model}."


def _short(arguments: str) -> str:
    flat = " ".join(arguments.split())
    return flat if len(flat) <= MAX_ARGUMENT_CHARS else flat[:MAX_ARGUMENT_CHARS] + "…"
