"""What programs read: a turn as one document or as a line per event, and what a command answers with `--json`.

Questions before something is done for good.
"""

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import click
import msgspec

from talaria.cli import exits
from talaria.cli.notices import say
from talaria.cli.safe import escaped_json, visible
from talaria.cli.tool_outcomes import outcome, refusal
from talaria.core.errors import BadInput, TalariaError
from talaria.core.events import Event, Notice, RouteSwitched, ToolEnded, TurnBegan
from talaria.core.messages import ToolResult
from talaria.runtime.turn_runner import Report

P = ParamSpec("P")
T = TypeVar("T")

SCHEMA = 1
"""Grows when a line or a field is taken away or means something else; more of them may come without that."""

_encode = msgspec.json.Encoder().encode


class JsonView:
    """One document at the end."""

    def __init__(self) -> None:
        self._refused: list[ToolResult] = []

    def show(self, event: Event) -> None:
        match event:
            case Notice() | RouteSwitched():
                say(in_words(event))
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
                "refused": [_refusal_document(result) for result in self._refused],
                **({"error": error_document(report.error)} if report.error else {}),
            }
        )


class StreamJsonView:
    """Every event as a line, as docs/reference/stream-json.md tells; each turn begins with the version of that."""

    def show(self, event: Event) -> None:
        print_json({**msgspec.to_builtins(event), "schema": SCHEMA} if isinstance(event, TurnBegan) else event)
        if isinstance(event, ToolEnded) and outcome(event.result).kind == "refused":
            say(refusal(event.result))

    def finish(self, report: Report) -> None:
        """`TurnDone` has said it."""


def print_json(document: object) -> None:
    sys.stdout.write(escaped_json(_encode(document)).decode() + "\n")
    sys.stdout.flush()


def print_failure(error: TalariaError, *, is_line: bool = False) -> None:
    """Of a command that has nothing else to print; in a stream every line has a type."""
    kind = {"type": "error"} if is_line else {}
    print_json({**kind, "ok": False, "error": error_document(error), "exit_code": exits.code_for(error)})


def json_option(work: Callable[P, T]) -> Callable[P, T]:
    """`--json`, which `work` gets as `as_json`; a failure of it is then told as JSON, too."""

    @wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(*args, **kwargs)
        except TalariaError as error:
            if kwargs["as_json"]:
                print_failure(error)
            raise

    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(run)


def _refusal_document(result: ToolResult) -> dict[str, str]:
    how = outcome(result)
    return {"call": result.call_id, "name": result.name, "reason": how.words, "by": how.refused_by}


def error_document(error: TalariaError) -> dict[str, str]:
    return {"type": type(error).__name__, "message": str(error)}


def in_words(event: Notice | RouteSwitched) -> str:
    return event.text if isinstance(event, Notice) else f"{event.reason} Going on with {event.model}."


yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def confirmed(question: str, what: str, *, as_json: bool = False) -> bool:
    """Raises `BadInput` where nobody can be asked; `what` completes "There is nobody to ask whether"."""
    if as_json or sys.stdin is None or not sys.stdin.isatty():
        raise BadInput(f"There is nobody to ask whether {what}: add --yes.")
    return click.confirm(visible(question), err=True)
