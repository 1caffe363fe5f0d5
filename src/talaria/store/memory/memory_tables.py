"""The tables of the store in memory, and spending. Rows are frozen values; a transaction changes a
copy, which takes over only if everything went well.
"""

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, fields
from typing import assert_never

from talaria.core.clock import Clock
from talaria.core.entries import Recorded
from talaria.core.ids import ApprovalId, CallId, Epoch, GrantId, HoldId, OutboxId, OwnerId, SessionId
from talaria.core.messages import NO_USAGE
from talaria.store.api_ports import ApiToken, HistoryPoint
from talaria.store.base import Amount, CallRow, HoldReleased, Session, Spent, Totals, UsageKey, UsageRow
from talaria.store.chat_ports import ChatRow, HandoffState, Inbound, OutboxRow
from talaria.store.permission_ports import Approval, Grant, Member, PairingRequest
from talaria.store.session_rules import local_day, unknown_session
from talaria.store.signal_port import Signal, SignalId

MessageKey = tuple[str, str, str, str]
"""Platform, account, chat and message id."""

User = tuple[str, str]
"""Platform and user."""

NEVER_SEIZED = Epoch(0)
NO_HANDOFF = HandoffState(None, None, None)


@dataclass(frozen=True, slots=True)
class HandoffChat:
    """Bound by a running handoff."""

    key: str
    address: str
    before: SessionId | None
    """What it was about."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    session: Session
    owner: OwnerId | None = None
    epoch: Epoch = NEVER_SEIZED
    entries: tuple[Recorded, ...] = ()
    places: tuple[int, ...] = ()
    """Where each entry stands in the order over all sessions."""
    calls: dict[CallId, CallRow] = field(default_factory=dict[CallId, CallRow])
    """In the model's order."""
    handoff: HandoffState = NO_HANDOFF
    handoff_id: str = ""
    handoff_chats: tuple[HandoffChat, ...] = ()
    histories: frozenset[tuple[int, HistoryPoint]] = frozenset()
    """With the last entry of each."""


@dataclass(frozen=True, slots=True)
class InboxRow:
    inbound: Inbound
    received_at: float


@dataclass(frozen=True, slots=True)
class SpendingRow:
    session: SessionId
    at: float
    day: str
    spent: Spent

    @property
    def person(self) -> str:
        return self.spent.person

    @property
    def amount(self) -> Amount:
        return Amount(self.spent.usage.total, self.spent.cost_usd or 0.0)


@dataclass(frozen=True, slots=True)
class HoldRow:
    session: SessionId
    person: str
    owner: OwnerId
    amount: Amount


@dataclass(slots=True)
class Tables:
    sessions: dict[SessionId, SessionRow] = field(default_factory=dict[SessionId, SessionRow])
    inbox: dict[MessageKey, InboxRow] = field(default_factory=dict[MessageKey, InboxRow])
    cursors: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    outbox: dict[OutboxId, OutboxRow] = field(default_factory=dict[OutboxId, OutboxRow])
    reworded: frozenset[OutboxId] = frozenset()
    """Another text came for these while they were started."""
    chats: dict[str, ChatRow] = field(default_factory=dict[str, ChatRow])
    """By key, in the order of binding."""
    homes: dict[str, str] = field(default_factory=dict[str, str])
    home_people: dict[str, str] = field(default_factory=dict[str, str])
    """Who chose each of them."""
    members: dict[User, Member] = field(default_factory=dict[User, Member])
    requests: dict[User, PairingRequest] = field(default_factory=dict[User, PairingRequest])
    failures: dict[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    """When wrong codes were given, by platform."""
    spending: tuple[SpendingRow, ...] = ()
    holds: dict[HoldId, HoldRow] = field(default_factory=dict[HoldId, HoldRow])
    approvals: dict[ApprovalId, Approval] = field(default_factory=dict[ApprovalId, Approval])
    grants: dict[GrantId, Grant] = field(default_factory=dict[GrantId, Grant])
    signals: dict[SignalId, Signal] = field(default_factory=dict[SignalId, Signal])
    tokens: dict[str, ApiToken] = field(default_factory=dict[str, ApiToken])
    owners: frozenset[OwnerId] = frozenset()
    last_id: int = 0

    def copy(self) -> "Tables":
        return Tables(*(copy(getattr(self, column.name)) for column in fields(self)))

    def next_id(self) -> int:
        self.last_id += 1
        return self.last_id

    def row(self, session: SessionId) -> SessionRow:
        if session not in self.sessions:
            raise unknown_session(session)
        return self.sessions[session]

    def holder(self, title: str) -> SessionId | None:
        return next((row.session.id for row in self.sessions.values() if row.session.title == title), None)


class MemoryDatabase:
    def __init__(self) -> None:
        self.tables = Tables()

    @contextmanager
    def transaction(self) -> Generator[Tables]:
        draft = self.tables.copy()
        yield draft
        self.tables = draft


class Spending:
    def __init__(self, memory: MemoryDatabase, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock

    async def hold(self, session: SessionId, person: str, owner: OwnerId, decide: Callable[[Totals], Amount]) -> HoldId:
        with self._memory.transaction() as tables:
            tables.holds = {id: row for id, row in tables.holds.items() if row.owner in tables.owners}
            today = local_day(self._clock.now())
            # What is held counts for today, whenever it was set aside: it will be spent today.
            all_time = (*tables.spending, *tables.holds.values())
            of_today = (*(row for row in tables.spending if row.day == today), *tables.holds.values())
            totals = Totals(
                session=_add_up(row.amount for row in all_time if row.session == session),
                day=_add_up(row.amount for row in of_today),
                person=_add_up(row.amount for row in of_today if row.person == person),
            )
            amount = decide(totals)
            hold = HoldId(tables.next_id())
            tables.holds[hold] = HoldRow(session, person, owner, amount)
        return hold

    async def add(self, session: SessionId, writes: Sequence[Spent | HoldReleased]) -> None:
        with self._memory.transaction() as tables:
            now = self._clock.now()
            for write in writes:
                record_spending(tables, session, write, now)

    async def usage(self, by: UsageKey, since: float = 0.0) -> Sequence[UsageRow]:
        oldest_first = sorted(self._memory.tables.spending, key=lambda row: row.at)
        groups: dict[str, list[SpendingRow]] = {}
        for row in reversed(oldest_first):
            if row.at >= since:
                key = {"day": row.day, "model": row.spent.model, "session": row.session}[by]
                groups.setdefault(key, []).append(row)
        found: list[UsageRow] = []
        for key, rows in groups.items():
            prices = [row.spent.cost_usd for row in rows]
            total = sum((row.spent.usage for row in rows), start=NO_USAGE)
            found.append(UsageRow(key, len(rows), total, math.fsum(filter(None, prices)), prices.count(None)))
        match by:
            case "day":
                return sorted(found, key=lambda row: row.key, reverse=True)
            case "model":
                return sorted(found, key=lambda row: (-row.cost_usd, -row.usage.total, row.key))
            case "session":
                return found


def record_spending(tables: Tables, session: SessionId, write: Spent | HoldReleased, now: float) -> None:
    match write:
        case Spent():
            tables.spending = (*tables.spending, SpendingRow(session, now, local_day(now), write))
        case HoldReleased(hold):
            tables.holds.pop(hold, None)
        case _:
            assert_never(write)


def _add_up(parts: Iterable[Amount]) -> Amount:
    known = tuple(parts)
    return Amount(sum(part.tokens for part in known), math.fsum(part.cost_usd for part in known))
