"""The JSON that commands print with `--json`, and questions before anything that cannot be undone."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import msgspec

from talaria.cli import exits
from talaria.cli.safe import escape_json, visible
from talaria.core.errors import BadInput, TalariaError

P = ParamSpec("P")
T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


def print_json(document: object) -> None:
    sys.stdout.write(escape_json(_encode(document)).decode() + "\n")
    sys.stdout.flush()


def print_failure(error: TalariaError, *, is_line: bool = False) -> None:
    """For a command that failed. In a stream every line has a type."""
    kind = {"type": "error"} if is_line else {}
    print_json({**kind, "ok": False, "error": error_document(error), "exit_code": exits.code_for(error)})


def error_document(error: TalariaError) -> dict[str, str]:
    return {"type": type(error).__name__, "message": str(error)}


def json_option(work: Callable[P, T]) -> Callable[P, T]:
    """Adds `--json`, which `work` gets as `as_json`. Errors are then printed as JSON, too."""

    @wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(*args, **kwargs)
        except TalariaError as error:
            if kwargs["as_json"]:
                print_failure(error)
            raise

    import click  # noqa: PLC0415  (a question in `-q` does without it)

    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(run)


def yes_option(work: Callable[P, T]) -> Callable[P, T]:
    import click  # noqa: PLC0415

    return click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")(work)


def confirm(question: str, what: str, *, as_json: bool = False) -> bool:
    """Raises `BadInput` if nobody can be asked; `what` completes "Nobody can be asked whether"."""
    if as_json or sys.stdin is None or not sys.stdin.isatty():
        raise BadInput(f"Nobody can be asked whether {what}: add --yes.")
    import click  # noqa: PLC0415

    return click.confirm(visible(question), err=True)
