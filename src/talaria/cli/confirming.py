"""Questions before something is done for good."""

import sys

import click

from talaria.cli.safe import visible
from talaria.core.errors import BadInput

yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def confirmed(question: str, what: str, *, as_json: bool = False) -> bool:
    """Raises `BadInput` where nobody can be asked; `what` completes "There is nobody to ask whether"."""
    if as_json or sys.stdin is None or not sys.stdin.isatty():
        raise BadInput(f"There is nobody to ask whether {what}: add --yes.")
    return click.confirm(visible(question), err=True)
