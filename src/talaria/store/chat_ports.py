"""The ports for work that comes from chats: mail in and out, which session a chat is about,
handoffs.

A message is new → taken → done; a reply is pending → started → sent, and `started` is on the disk
before the wire is touched.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from talaria.core.ids import InboxId, OutboxId, SessionId, TurnId

InboxState = Literal["new", "taken", "done"]


class Inbound(msgspec.Struct, frozen=True):
    """A message from a platform, unique by (platform, account, chat, message_id)."""

    platform: str
    account: str
    chat: str
    message_id: str
    session: SessionId
    """Where it belongs or, if its chat is bound to a session already, where it would."""
    body: str
    key: str = ""
    """Of the chat whose binding decides the session; empty: the session is given."""
    id: InboxId = InboxId(0)
    """Given by the store, as is all that follows."""
    state: InboxState = "new"
    turn: TurnId | None = None
    """That has taken it."""


class Cursor(msgspec.Struct, frozen=True):
    """How far a platform's stream has been read; moves in the transaction that accepts its
    messages.

    What else the next run must know of a platform is kept as one of an account that none has.
    """

    platform: str
    account: str
    value: str


class InboxTaken(msgspec.Struct, frozen=True):
    turn: TurnId
    ids: tuple[InboxId, ...]


class InboxDone(msgspec.Struct, frozen=True):
    ids: tuple[InboxId, ...]


class Outgoing(msgspec.Struct, frozen=True):
    """One part of a reply, to be delivered; `key` makes the delivery idempotent.

    With the key of a row that is there it says how that one should read in the end: what has been
    sent is edited.
    """

    target: str
    body: str
    key: str
    expires_at: float


class Inbox(Protocol):
    """Mail beside the turns; those take theirs with `Journal.record`."""

    async def accept(self, inbounds: Sequence[Inbound], cursor: Cursor | None = None) -> Sequence[Inbound | None]:
        """Each message that is new, as it is kept; None for one that was known. Binds chats that
        were not bound.

        Only after this may the platform be told that we have them.
        """
        ...

    async def cursor(self, platform: str, account: str) -> str | None: ...
    async def list_pending(self, session: SessionId, limit: int = 1000) -> Sequence[Inbound]:
        """Accepted and not done, oldest first."""
        ...

    async def list_sessions(self) -> Sequence[SessionId]:
        """Sessions with mail that is not done, oldest mail first."""
        ...

    async def find(self, platform: str, account: str, chat: str, message_id: str) -> Inbound | None: ...
    async def take(self, id: InboxId) -> SessionId | None:
        """For what needs no turn, or not yet: the session that it belongs to now, exactly once;
        else None."""
        ...

    async def finish(self, session: SessionId, ids: Sequence[InboxId], replies: Sequence[Outgoing] = ()) -> None:
        """What was taken is done, and these are the replies: one transaction."""
        ...

    async def prune(self, before: float) -> int:
        """Forget what was done and received before; how many."""
        ...


OutboxState = Literal["pending", "started", "sent", "failed", "expired"]


class OutboxRow(msgspec.Struct, frozen=True):
    id: OutboxId
    session: SessionId
    target: str
    body: str
    key: str
    created_at: float
    expires_at: float
    state: OutboxState
    attempts: int
    started_at: float | None
    """When the wire was first touched for it."""
    sent_id: str | None
    """Set and not `sent`: what was sent is to be edited."""
    error: str


class Outbox(Protocol):
    async def list_targets(self) -> Sequence[str]:
        """Those to which something is pending or started, the longest waiting first."""
        ...

    async def list_due(self, target: str, limit: int = 20) -> Sequence[OutboxRow]:
        """Pending and started rows for it, in the order in which they were written."""
        ...

    async def add(self, session: SessionId, outgoing: Sequence[Outgoing]) -> None:
        """Beside a turn; those of a turn come with `Journal.record`."""
        ...

    async def begin(self, session: SessionId, draft: Outgoing) -> OutboxRow | None:
        """A new row that is started already: the first words of an answer that is being written.

        None: a row with this key is there.
        """
        ...

    async def start(self, row: OutboxId) -> OutboxRow | None:
        """Committed before the wire is touched: send what this answers. None: somebody else has
        finished it."""
        ...

    async def start_due(
        self, target: str, limit: int, is_wanted: Callable[[OutboxRow], bool]
    ) -> tuple[OutboxRow | None, Sequence[OutboxRow]]:
        """What is due, and in the same commit the start of the first, if it is pending and wanted:
        it, and the others.

        `is_wanted` runs inside the transaction, on another thread: quick and pure.
        """
        ...

    async def mark_sent(self, row: OutboxId, sent_id: str) -> None: ...
    async def defer(self, row: OutboxId, error: str) -> None:
        """The wire surely did not take it: back to pending."""
        ...

    async def fail(self, row: OutboxId, error: str) -> None:
        """It will never be delivered. Pending or started → failed."""
        ...

    async def expire(self, row: OutboxId) -> None:
        """Its time is over. Pending or started → expired."""
        ...

    async def retry(self, row: OutboxId, expires_at: float) -> bool:
        """Failed or expired → pending, because a person wants it. False: it is neither."""
        ...

    async def move(self, target: str, to: str) -> None:
        """The chat has another address: all that is due goes there."""
        ...

    async def rows(self, session: SessionId) -> Sequence[OutboxRow]: ...
    async def find(self, key: str) -> OutboxRow | None: ...
    async def count(self) -> Mapping[OutboxState, int]:
        """How many rows there are in each state; a state without rows may be left out."""
        ...

    async def list(self, states: Sequence[OutboxState], limit: int = 100) -> Sequence[OutboxRow]:
        """Newest first."""
        ...

    async def prune(self, before: float) -> int:
        """Forget what was sent before; how many."""
        ...


BusyMode = Literal["queue", "steer", "interrupt"]


class ChatRow(msgspec.Struct, frozen=True):
    key: str
    """`agent:main:telegram:dm:42`."""
    session: SessionId
    address: str
    """Where replies to it go; empty until something was said there."""
    busy_mode: BusyMode | None = None
    """None: as the settings say."""


class Chats(Protocol):
    async def get(self, key: str) -> ChatRow | None: ...
    async def bind(self, key: str, session: SessionId, address: str) -> SessionId | None:
        """From now on the chat is about this session; its mail that is still new follows. The
        session it was before."""
        ...

    async def list_for(self, session: SessionId) -> Sequence[ChatRow]:
        """The chats that are about it, the latest bound first."""
        ...

    async def move(self, key: str, to_key: str, address: str, to: str) -> None:
        """A chat is called otherwise now: `key`, and those of its people, begin with `to_key`;
        `address` is `to`.

        A chat that has the new key already keeps it.
        """
        ...

    async def set_busy_mode(self, key: str, mode: BusyMode | None) -> None: ...
    async def home(self, platform: str) -> str | None:
        """The address that a person has chosen."""
        ...

    async def home_person(self, platform: str) -> str:
        """The id of whoever chose that address; empty: nobody has, or it is not known."""
        ...

    async def set_home(self, platform: str, address: str, person: str = "") -> None: ...


HandoffStage = Literal["pending", "running", "completed", "failed"]
MAX_REASON_CHARS = 500


class HandoffState(msgspec.Struct, frozen=True):
    state: HandoffStage | None
    platform: str | None
    error: str | None


class HandoffRequest(msgspec.Struct, frozen=True):
    """A handoff that is running."""

    id: str
    """Differs from request to request."""
    platform: str
    address: str = ""
    """Of the chats that are bound for it; empty: none are yet."""


class Handoffs(Protocol):
    """A session on its way from the terminal to a platform: pending → running → completed | failed."""

    async def request(self, session: SessionId, platform: str) -> bool: ...
    async def state(self, session: SessionId) -> HandoffState | None: ...
    async def list_pending(self) -> Sequence[SessionId]:
        """Oldest session first."""
        ...

    async def claim(self, session: SessionId) -> bool: ...
    async def find_running(self, session: SessionId) -> HandoffRequest | None:
        """None: it is not running, or not any more."""
        ...

    async def bind(self, session: SessionId, keys: Sequence[str], address: str) -> bool:
        """These chats are about the session from now on; what they were about is kept, for a
        failure.

        Their mail that is still new follows. False: the handoff is not running, and nothing was
        changed.
        """
        ...

    async def complete(self, session: SessionId) -> bool:
        """False: it was not running."""
        ...

    async def fail(self, session: SessionId, reason: str) -> bool:
        """Its chats are about what they were about before. False: it had ended already."""
        ...

    async def list_unsettled(self) -> Mapping[SessionId, str]:
        """Failed ones of which something may be left to undo, and the ids of their requests."""
        ...

    async def settle(self, session: SessionId) -> None:
        """Nothing of its failure is left to undo."""
        ...

    async def reclaim(self) -> Sequence[SessionId]:
        """Running rows that a crash left behind are pending again."""
        ...
