"""The garbage collector while a gateway runs. It stops all conversations at once, and nearly all that a turn leaves
behind is freed without it: so it looks at what is young, and rarely at the rest."""

import gc
from collections.abc import Generator
from contextlib import contextmanager

THRESHOLDS = (2_000, 200, 100)


@contextmanager
def rarely_collected() -> Generator[None]:
    """What is there already is not looked at any more."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
