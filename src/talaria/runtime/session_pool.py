"""The live sessions that are kept between messages, least recently used first. Evicting one does no I/O: its shell,
processes and browser stay, and the next message builds a new live session."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from talaria.agent.hooks import LeaveReason
from talaria.core.clock import Clock
from talaria.core.ids import SessionId
from talaria.runtime.session import LiveSession
from talaria.runtime.session_config import SessionConfig

CAP = 128
IDLE_S = 3600.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _PoolEntry:
    live: LiveSession
    used_at: float | None = None
    """When its last turn ended; None: it has had none here."""


class SessionPool:
    def __init__(self, clock: Clock, *, cap: int = CAP, idle_s: float = IDLE_S) -> None:
        self._clock = clock
        self._cap = cap
        self._idle_s = idle_s
        self._entries: OrderedDict[SessionId, _PoolEntry] = OrderedDict()
        self._has_warned = False
        """The log says that the cap cannot be kept."""

    def set_bounds(self, *, cap: int, idle_s: float) -> None:
        """A lower cap applies at once, another idle time at the next sweep."""
        self._cap = cap
        self._idle_s = idle_s
        self._keep_within_cap()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[SessionId]:
        """The least recently used first."""
        return iter(tuple(self._entries))

    def get(self, session: SessionId, config: SessionConfig, build: Callable[[], LiveSession]) -> LiveSession:
        """The kept session if its config is the same, else a new one in its place."""
        kept = self._entries.get(session)
        if kept is not None and (kept.live.is_busy or kept.live.config == config):
            self._entries.move_to_end(session)
            return kept.live
        live = build()
        if kept is not None:
            del self._entries[session]
            live.take_over(kept.live)
        self._entries[session] = _PoolEntry(live)
        self._keep_within_cap()
        return live

    def find(self, session: SessionId) -> LiveSession | None:
        kept = self._entries.get(session)
        return kept.live if kept else None

    def touch(self, session: SessionId) -> None:
        """One of its turns has ended: it counts as used last, and others may be evicted for it."""
        if (kept := self._entries.get(session)) is not None:
            kept.used_at = self._clock.monotonic()
            self._entries.move_to_end(session)
            self._keep_within_cap()

    def evict(self, session: SessionId) -> bool:
        """False: it stays, because it is in a turn or holds the lease for the next one."""
        kept = self._entries.get(session)
        if kept is None or kept.live.is_in_use:
            return False
        del self._entries[session]
        kept.live.unload()
        return True

    async def close(self, session: SessionId, reason: LeaveReason = "end") -> None:
        """For good: its shell, processes and browser end, too. Raises `SessionBusy` in a turn, and then it stays."""
        kept = self._entries.get(session)
        if kept is None:
            return
        kept.live.check_idle()
        del self._entries[session]
        await kept.live.close(reason)

    def sweep(self) -> int:
        """Evict sessions that have been idle for too long; how many."""
        oldest = self._clock.monotonic() - self._idle_s
        idle = [
            session for session, kept in self._entries.items() if kept.used_at is not None and kept.used_at < oldest
        ]
        return sum(self.evict(session) for session in idle)

    def _keep_within_cap(self) -> None:
        """Evict only the oldest, as many as are over the cap; if one is in a turn, no newer one goes in its place."""
        beyond = max(0, len(self._entries) - self._cap)
        for session in tuple(islice(self._entries, beyond)):
            self.evict(session)
        left = len(self._entries) - self._cap
        if 0 < left == beyond and not self._has_warned:
            log.warning("%d live sessions, %d over the cap: all that could go are mid-turn", len(self._entries), left)
            self._has_warned = True
        elif left <= 0:
            self._has_warned = False
