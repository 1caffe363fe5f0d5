"""The ports for work that comes from chats: mail in and out, which session a chat is about, and handoffs.

A message is new → taken → done; a reply is pending → started → sent, and `started` is on the disk before anything is
sent.
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
    """The session it belongs to, unless its chat is already bound to another one."""
    body: str
    key: str = ""
    """The key of the chat whose binding decides the session; empty: `session` decides."""
    id: InboxId = InboxId(0)
    """Set by the store, like the fields below."""
    state: InboxState = "new"
    turn: TurnId | None = None
    """The turn that has taken it."""


class Cursor(msgspec.Struct, frozen=True):
    """How far a platform's stream has been read; moves in the transaction that accepts its messages.

    Anything else that the next run must know about a platform is the cursor of an account that does not exist.
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

    If there is a row with this key, it should read like this in the end: if it has been sent, it is edited.
    """

    target: str
    body: str
    key: str
    expires_at: float


class Inbox(Protocol):
    """Mail outside turns, which take theirs with `Journal.record`."""

    async def accept(self, inbounds: Sequence[Inbound], cursor: Cursor | None = None) -> Sequence[Inbound | None]:
        """The row of each new message, and None for each known one. Binds chats that are not bound yet.

        Only after this may they be acknowledged to the platform.
        """
        ...

    async def cursor(self, platform: str, account: str) -> str | None: ...
    async def list_pending(self, session: SessionId, limit: int = 1000) -> Sequence[Inbound]:
        """Messages that are not done, oldest first."""
        ...

    async def list_sessions(self) -> Sequence[SessionId]:
        """Sessions with messages that are not done, oldest message first."""
        ...

    async def find(self, platform: str, account: str, chat: str, message_id: str) -> Inbound | None: ...
    async def list_from(self, platform: str, account: str, chat: str, limit: int = 50) -> Sequence[Inbound]:
        """The last messages from a chat that are still kept, newest first, whatever their state."""
        ...

    async def take(self, id: InboxId) -> SessionId | None:
        """For a message that needs no turn, or none yet: the session that it belongs to now. None after the first
        call."""
        ...

    async def finish(self, session: SessionId, ids: Sequence[InboxId], replies: Sequence[Outgoing] = ()) -> None:
        """Mark what was taken as done, and add the replies, in one transaction."""
        ...

    async def prune(self, before: float) -> int:
        """Delete messages that are done and were received before then; how many."""
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
    """When sending was first tried."""
    sent_id: str | None
    """If set while the state is not `sent`, the sent message is to be edited."""
    error: str


class Outbox(Protocol):
    async def list_targets(self) -> Sequence[str]:
        """Targets with pending or started rows, the longest waiting first."""
        ...

    async def list_due(self, target: str, limit: int = 20) -> Sequence[OutboxRow]:
        """Its pending and started rows, in the order in which they were written."""
        ...

    async def add(self, session: SessionId, outgoing: Sequence[Outgoing]) -> None:
        """For replies outside a turn; those of a turn come with `Journal.record`."""
        ...

    async def begin(self, session: SessionId, draft: Outgoing) -> OutboxRow | None:
        """A new row that is started at once: the beginning of an answer that is still being written.

        None: there is a row with this key.
        """
        ...

    async def start(self, row: OutboxId) -> OutboxRow | None:
        """Call this before sending, and send what it returns. None: somebody else has finished the row."""
        ...

    async def start_due(
        self, target: str, limit: int, is_wanted: Callable[[OutboxRow], bool]
    ) -> tuple[OutboxRow | None, Sequence[OutboxRow]]:
        """Lists what is due and, in the same transaction, starts the first row if it is pending and wanted. Returns
        that row, and the others.

        `is_wanted` runs inside the transaction, on another thread, so it must be quick and pure.
        """
        ...

    async def mark_sent(self, row: OutboxId, sent_id: str) -> None: ...
    async def defer(self, row: OutboxId, error: str) -> None:
        """The platform certainly did not accept it: started → pending."""
        ...

    async def fail(self, row: OutboxId, error: str) -> None:
        """It will never be delivered. Pending or started → failed."""
        ...

    async def expire(self, row: OutboxId) -> None:
        """It could not be delivered in time. Pending or started → expired."""
        ...

    async def retry(self, row: OutboxId, expires_at: float) -> bool:
        """Failed or expired → pending, because a person asked for it. False: it is neither."""
        ...

    async def move(self, target: str, to: str) -> None:
        """The chat has a new address: send there what is due."""
        ...

    async def rows(self, session: SessionId) -> Sequence[OutboxRow]: ...
    async def find(self, key: str) -> OutboxRow | None: ...
    async def count(self) -> Mapping[OutboxState, int]:
        """The number of rows in each state; states without rows may be left out."""
        ...

    async def list(self, states: Sequence[OutboxState], limit: int = 100) -> Sequence[OutboxRow]:
        """Newest first."""
        ...

    async def prune(self, before: float) -> int:
        """Delete rows that were sent before then; how many."""
        ...


BusyMode = Literal["queue", "steer", "interrupt"]


class ChatRow(msgspec.Struct, frozen=True):
    key: str
    """`agent:main:telegram:dm:42`."""
    session: SessionId
    address: str
    """Where replies go; empty until somebody writes there."""
    busy_mode: BusyMode | None = None
    """None: as the settings say."""


class Chats(Protocol):
    async def get(self, key: str) -> ChatRow | None: ...
    async def bind(self, key: str, session: SessionId, address: str) -> SessionId | None:
        """From now on the chat is about this session, to which its new mail moves. Returns the session before."""
        ...

    async def list_for(self, session: SessionId) -> Sequence[ChatRow]:
        """The chats that are about it, the last bound first."""
        ...

    async def move(self, key: str, to_key: str, address: str, to: str) -> None:
        """A chat has moved: `key`, also as the beginning of its people's keys, becomes `to_key`, and `address` becomes
        `to`.

        A chat that already has the new key keeps it.
        """
        ...

    async def set_busy_mode(self, key: str, mode: BusyMode | None) -> None: ...
    async def home(self, platform: str) -> str | None:
        """The address that a person chose."""
        ...

    async def home_person(self, platform: str) -> str:
        """The id of the person who chose that address; empty if nobody did, or if it is unknown."""
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
    """Different for each request."""
    platform: str
    address: str = ""
    """The address of the chats that are bound for it; empty if none are yet."""


class Handoffs(Protocol):
    """A session on its way from the terminal to a platform: pending → running → completed | failed."""

    async def request(self, session: SessionId, platform: str) -> bool: ...
    async def state(self, session: SessionId) -> HandoffState | None: ...
    async def list_pending(self) -> Sequence[SessionId]:
        """Oldest session first."""
        ...

    async def claim(self, session: SessionId) -> bool: ...
    async def find_running(self, session: SessionId) -> HandoffRequest | None:
        """None: it is not running."""
        ...

    async def bind(self, session: SessionId, keys: Sequence[str], address: str) -> bool:
        """From now on these chats are about the session, to which their new mail moves. `fail` reverses that.

        False: the handoff is not running, and nothing was changed.
        """
        ...

    async def complete(self, session: SessionId) -> bool:
        """False: it was not running."""
        ...

    async def fail(self, session: SessionId, reason: str) -> bool:
        """Its chats are again about what they were about before. False: it has already ended."""
        ...

    async def list_unsettled(self) -> Mapping[SessionId, str]:
        """Failed handoffs that may have left something to undo, and the ids of their requests."""
        ...

    async def settle(self, session: SessionId) -> None:
        """Its failure has left nothing to undo."""
        ...

    async def reclaim(self) -> Sequence[SessionId]:
        """Make running handoffs that a crash left behind pending again."""
        ...
