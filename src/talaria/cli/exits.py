"""Exit codes.

0 done · 1 a bug · 2 bad input or settings · 3 the provider failed · 4 the store cannot be used
5 a limit was reached · 130 interrupted
"""

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


def code_for(error: TalariaError) -> int:
    if isinstance(error, ProviderFailure):
        return PROVIDER_FAILED
    if isinstance(error, StoreUnavailable | StoreDamaged | StoreTooNew | Fenced):
        return STORE_FAILED
    if isinstance(error, LimitReached):
        return LIMIT_REACHED
    return BAD_INPUT
