"""What the store holds. Rows are frozen values; a transaction changes a copy that takes over only if all went well."""

from collections.abc import Generator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, fields

from talaria.core.entries import Recorded
from talaria.core.ids import ApprovalId, CallId, Epoch, GrantId, HoldId, OutboxId, OwnerId, SessionId
from talaria.store.access import Member, PairingRequest
from talaria.store.base import Amount, CallRow, HandoffState, Session, Spent
from talaria.store.chats import ChatRow
from talaria.store.mail import Inbound, OutboxRow
from talaria.store.permissions import Approval, Grant
from talaria.store.sessions import unknown_session

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
