"""For which conversation code runs: known to all that a turn calls, in whatever thread that is."""

from collections.abc import Callable
from contextvars import ContextVar

import msgspec

from talaria.core.ids import SessionId
from talaria.tools.executor import Executor


class Serving(msgspec.Struct, frozen=True):
    session: SessionId
    conversation: str
    platform: str
    person: str
    tools: Callable[[], Executor]
    """As they are now."""


serving: ContextVar[Serving | None] = ContextVar("serving", default=None)
