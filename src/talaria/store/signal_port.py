"""The port for signals: what people ask of a turn that runs, perhaps in another process.

Whoever runs the session obeys them: new → obeyed | late. A signal is for one turn; it never touches
the next. Only a queued line is for what comes after: it stays new until it is asked, or until
somebody takes it back (late).
"""

from collections.abc import Collection, Sequence
from typing import Literal, NewType, Protocol

import msgspec

from talaria.core.ids import SessionId, TurnId

SignalId = NewType("SignalId", int)
SignalKind = Literal["stop", "steer", "answer", "queue"]
SignalState = Literal["new", "obeyed", "late"]


class NewSignal(msgspec.Struct, frozen=True):
    key: str
    """Unique: whoever repeats a signal, because they do not know whether it was taken, repeats its
    key."""
    session: SessionId
    turn: TurnId
    """Of a queued line: the one that ran when it was queued; empty if none did."""
    kind: SignalKind
    by: str
    """The person, such as `local` or `telegram:42`."""
    surface: str
    """Where they did it, in a word: `terminal`, `telegram`."""
    text: str = ""
    """Of a steer: what the model reads. Of an answer: what to do instead, or the person's own
    words. Of a queued line: the message."""
    question: str = ""
    """Of an answer: which question."""
    answer: str = ""
    """Of an answer: what was chosen."""


class Signal(NewSignal, frozen=True):
    id: SignalId = SignalId(0)
    state: SignalState = "new"
    created_at: float = 0.0
    outcome: str = ""
    """A sentence for whoever sent it, once it is not new."""


class SignalObeyed(msgspec.Struct, frozen=True):
    """Of a record: what the signal asked for is in this very transaction. It must be new, and of
    this session."""

    id: SignalId


class Signals(Protocol):
    async def send(self, new: NewSignal) -> Signal:
        """As it is kept; if its key is known, the one that was sent first, as it is now.

        Raises `UnknownSession`.
        """
        ...

    async def list_new(self, sessions: Collection[SessionId]) -> Sequence[Signal]:
        """Oldest first."""
        ...

    async def settle(self, id: SignalId, state: Literal["obeyed", "late"], outcome: str = "") -> bool:
        """True exactly once."""
        ...

    async def find(self, key: str) -> Signal | None: ...
    async def prune(self, before: float) -> int:
        """Forget those that were sent before and are not new; how many."""
        ...
