"""Exit codes, and the border where every error becomes one sentence on stderr.

0 done · 1 a bug · 2 bad input or settings · 3 the provider failed · 4 the store cannot be used
5 a limit was reached · 130 interrupted
"""

import logging
import os
import sys
from collections.abc import Callable

import click

from talaria.cli.notices import complain
from talaria.model.errors import (
    Fenced,
    LimitReached,
    ProviderFailure,
    StoreDamaged,
    StoreTooNew,
    StoreUnavailable,
    TalariaError,
)

DONE, BUG, BAD_INPUT, PROVIDER_FAILED, STORE_FAILED, LIMIT_REACHED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130

log = logging.getLogger(__name__)


def code_for(error: TalariaError) -> int:
    if isinstance(error, ProviderFailure):
        return PROVIDER_FAILED
    if isinstance(error, StoreUnavailable | StoreDamaged | StoreTooNew | Fenced):
        return STORE_FAILED
    if isinstance(error, LimitReached):
        return LIMIT_REACHED
    return BAD_INPUT


def guarded(work: Callable[[], object]) -> int:
    """Run a command; its int result, if any, is the exit code. No traceback reaches a person."""
    try:
        result = work()
    except TalariaError as error:
        complain(str(error))
        return code_for(error)
    except click.ClickException as error:
        error.show()
        return BAD_INPUT
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except (KeyboardInterrupt, click.Abort):
        complain("Interrupted.")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read our output has left
        return DONE
    except Exception as fault:
        log.exception("a command broke")
        complain(f"Something broke inside Talaria ({type(fault).__name__}: {fault}). `talaria doctor` may tell more.")
        return BUG
    return result if isinstance(result, int) else DONE
