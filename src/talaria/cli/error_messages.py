"""The border where every error becomes one sentence on stderr, and an exit code. No traceback reaches a person."""

import logging
from collections.abc import Callable

import click

from talaria.cli.exits import BAD_INPUT, BUG, DONE, INTERRUPTED, code_for
from talaria.cli.notices import complain, discard_output
from talaria.core.errors import TalariaError

log = logging.getLogger(__name__)


def run_guarded(work: Callable[[], object]) -> int:
    """Run a command; its int result, if any, is the exit code."""
    try:
        result = work()
    except (Exception, KeyboardInterrupt) as fault:  # noqa: BLE001  (told)
        return report_error(fault)
    return result if isinstance(result, int) else DONE


def report_error(fault: BaseException) -> int:
    match fault:
        case TalariaError():
            complain(str(fault))
            return code_for(fault)
        case click.exceptions.Exit():
            return fault.exit_code
        case click.ClickException():
            fault.show()
            return BAD_INPUT
        case KeyboardInterrupt() | click.Abort():
            complain("Interrupted.")
            return INTERRUPTED
        case BrokenPipeError():
            discard_output()
            return DONE
        case _:
            log.error("a command broke", exc_info=fault)
            complain(
                f"Something broke inside Talaria ({type(fault).__name__}: {fault}). `talaria doctor` may tell more."
            )
            return BUG
