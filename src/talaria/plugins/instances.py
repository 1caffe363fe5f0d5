"""One engine, or memory provider, per live session, made of what a plugin has registered. Off the event loop.

In this order: what it says itself (`clone_for_agent`), its class's own deep copy, `register` run again with a context
that only collects, a plain deep copy; and if none of that works, the registered one for all, which is told.
"""

import copy
import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from talaria.context.engine import ContextEngine
from talaria.plugins.rebinding import rebound
from talaria.plugins.registered import Registered
from talaria.runtime.commands import normalised

T = TypeVar("T")

log = logging.getLogger(__name__)


def fresh(is_one: Callable[[object], bool], registered: T, register_again: Callable[[], T | None]) -> T | None:
    """Another one; None if there is no way to one. A clone may be of another class."""
    for way, make in _ways(registered, register_again):
        try:
            made = make()
        except Exception:
            log.info("no instance of %s by %s", type(registered).__name__, way, exc_info=True)
            continue
        if made is not None and made is not registered and is_one(made):
            return made
    return None


def commands_of(engine: ContextEngine, first: Registered, run: Registered) -> dict[str, Callable[[str], Any]]:
    """The handlers of the slash commands that reach this engine: those of the run of `register` that made it or, if it
    is a clone or a copy, those of the `first` run, with this engine in place of the one that they were registered with.
    """
    copied = {normalised(one.name): rebound(one.handler, first.engine, engine) for one in reversed(first.commands)}
    if run is first:
        return copied
    return copied | {normalised(one.name): one.handler for one in reversed(run.commands)}


def _ways(registered: T, register_again: Callable[[], T | None]) -> Iterator[tuple[str, Callable[[], Any]]]:
    clone = getattr(registered, "clone_for_agent", None)
    if callable(clone):
        yield "clone_for_agent", clone
    if hasattr(type(registered), "__deepcopy__"):
        yield "its own deep copy", lambda: copy.deepcopy(registered)
    yield "register", register_again
    yield "deep copy", lambda: copy.deepcopy(registered)
