"""What has arrived for each session. Of one that had no mail before it is all there is, and need not be looked up: what
is not on the disk any more by then is refused there, when it is taken."""

from collections.abc import Sequence

from talaria.core.clock import Clock
from talaria.core.ids import SessionId
from talaria.gateway.burst import Mail
from talaria.gateway.envelope import Received
from talaria.store.mail import Inbound

MOST_KNOWN = 4096
"""Sessions whose mail need not be looked up; beyond that, all of it is, once."""


class Arrivals:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_at: dict[SessionId, float] = {}
        self._known: dict[SessionId, list[Mail]] = {}
        self._unseen: set[SessionId] = set()
        """Sessions for which something has come after the last look."""

    def note(self, row: Inbound, received: Received) -> None:
        self._last_at[row.session] = self._clock.monotonic()
        if (known := self._known.get(row.session)) is not None:
            known.append((row, received))
        else:
            self._unseen.add(row.session)

    def loud_s(self, session: SessionId, quiet_s: float) -> float:
        """How long it takes until nothing has come for so long; not more than 0: it has been quiet."""
        return self._last_at.get(session, 0.0) + quiet_s - self._clock.monotonic()

    def take(self, session: SessionId) -> Sequence[Mail]:
        """Empty: it must be looked up, at once."""
        self._unseen.discard(session)
        return self._known.pop(session, ())

    def note_empty(self, session: SessionId) -> None:
        """It has no mail, but for what has come after the last look."""
        if session in self._unseen:
            return
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[session] = []

    def forget(self, session: SessionId) -> None:
        """Its mail may change by other ways than by arriving."""
        self._known.pop(session, None)

    def note_seen_to(self, session: SessionId) -> None:
        self._last_at.pop(session, None)
