"""Exit codes.

0 success · 1 internal error · 2 bad input or settings · 3 the provider failed · 4 the store cannot be used
5 a limit was reached · 6 answered, but a call was refused because nobody could be asked · 130 interrupted
"""

from talaria.core.errors import (
    Fenced,
    LimitReached,
    ProviderFailure,
    StoreDamaged,
    StoreTooNew,
    StoreUnavailable,
    TalariaError,
)

DONE, BUG, BAD_INPUT, PROVIDER_FAILED, STORE_FAILED, LIMIT_REACHED, REFUSED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 130


def of_all(before: int, last: int) -> int:
    """For several turns: the last failure counts, and a refusal only if nothing failed."""
    return before if last == DONE or (last == REFUSED and before != DONE) else last


def code_for(error: TalariaError) -> int:
    if isinstance(error, ProviderFailure):
        return PROVIDER_FAILED
    if isinstance(error, StoreUnavailable | StoreDamaged | StoreTooNew | Fenced):
        return STORE_FAILED
    if isinstance(error, LimitReached):
        return LIMIT_REACHED
    return BAD_INPUT
