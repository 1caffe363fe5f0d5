"""The store's ports. Each method that writes is one transaction, and returns once it survives a crash.

Safety rests on the epoch: every write of a turn carries the epoch under which the session was seized, and a writer
whose epoch is no longer the session's is `Fenced`.
"""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from talaria.core.entries import Entry, Recorded
from talaria.core.ids import CallId, Epoch, HoldId, OwnerId, SessionId, TurnId
from talaria.core.messages import NO_USAGE, ToolCall, ToolResult, Usage
from talaria.store.api_ports import ApiTokens, Histories, HistoryPoint
from talaria.store.chat_ports import Chats, Handoffs, Inbox, InboxDone, InboxTaken, Outbox, Outgoing
from talaria.store.permission_ports import Access, Approvals, Grants
from talaria.store.signal_port import SignalObeyed, Signals


class BrokenRuleError(RuntimeError):
    """A write that the order of commits forbids; always a bug in the caller."""


class NewSession(msgspec.Struct, frozen=True):
    id: SessionId
    source: str
    model: str = ""
    cwd: str = ""
    system_prompt: str = ""
    tools: str = "[]"
    """The tool schemas as JSON, built once and reused byte for byte."""
    title: str | None = None
    parent: SessionId | None = None
    person: str = "local"
    """Who started it."""


class Session(msgspec.Struct, frozen=True):
    id: SessionId
    source: str
    model: str
    cwd: str
    system_prompt: str
    tools: str
    title: str | None
    parent: SessionId | None
    created_at: float
    updated_at: float
    open_turn: TurnId | None
    message_count: int
    usage: Usage = NO_USAGE
    preview: str = ""
    """The start of the person's first message."""
    person: str = "local"


class Held(msgspec.Struct, frozen=True):
    """The session belongs to a living owner."""

    owner: OwnerId


# What one `record` may write besides entries.


class CallIntended(msgspec.Struct, frozen=True):
    turn: TurnId
    call: ToolCall


class CallStarted(msgspec.Struct, frozen=True):
    call_id: CallId


class CallEnded(msgspec.Struct, frozen=True):
    result: ToolResult


class Spent(msgspec.Struct, frozen=True):
    """A model call that somebody pays for. It remains counted when its session is deleted."""

    model: str
    """`provider:model`."""
    person: str
    purpose: str
    """`turn`, or what an auxiliary call was for."""
    usage: Usage
    cost_usd: float | None
    """None: the price is unknown."""


class HoldReleased(msgspec.Struct, frozen=True):
    """Frees what was reserved for a call, which has ended. What it used is `Spent`."""

    hold: HoldId


class SessionSeized(msgspec.Struct, frozen=True):
    """As the first write of a record: seizes the session in that transaction, under the record's epoch.

    That epoch must be the next one, and nobody may hold the session; otherwise `record` raises `Fenced`, and nothing is
    written.
    """

    owner: OwnerId


class SessionReleased(msgspec.Struct, frozen=True):
    """As the last write of a record: releases the session in that transaction, as `Journal.release` does."""

    leaves_mail: bool = False


Change = (
    CallIntended
    | CallStarted
    | CallEnded
    | InboxTaken
    | InboxDone
    | Outgoing
    | Spent
    | HoldReleased
    | SignalObeyed
    | HistoryPoint
    | SessionSeized
    | SessionReleased
)
Write = Entry | Change

CallState = Literal["intent", "started", "done"]


class CallRow(msgspec.Struct, frozen=True):
    turn: TurnId
    call: ToolCall
    state: CallState
    created_at: float
    result: ToolResult | None


class Journal(Protocol):
    async def seize(self, session: SessionId, owner: OwnerId) -> Epoch | Held:
        """Become the session's owner, unless a living one has it."""
        ...

    async def record(self, session: SessionId, epoch: Epoch, writes: Sequence[Write]) -> bool:
        """Write all or nothing. Raises `Fenced`. After a `CancelledError` the writes are durable.

        True: they also released the session. False: they did not ask for that, or mail has arrived.
        """
        ...

    async def release(self, session: SessionId, epoch: Epoch, *, leaves_mail: bool = False) -> bool:
        """False: mail has arrived, and you still own the session: continue. Raises `Fenced`.

        With `leaves_mail`, it is released anyway; another process handles the mail.
        """
        ...

    async def entries(self, session: SessionId, after: int = 0) -> Sequence[Recorded]: ...
    async def latest(self, session: SessionId, limit: int, before: int | None = None) -> Sequence[Recorded]:
        """The last entries, oldest first; with `before`, the last ones before that position. The cost does not grow
        with the journal."""
        ...

    async def calls(self, session: SessionId, turn: TurnId) -> Sequence[CallRow]:
        """The turn's tool calls, in the model's order."""
        ...

    async def holder(self, session: SessionId) -> OwnerId | None:
        """The living owner that runs the session now; None if nobody does, or it is unknown."""
        ...

    async def list_interrupted(self) -> Sequence[SessionId]:
        """Sessions with an open turn and no living owner, newest first."""
        ...


class Owners(Protocol):
    async def join(self, kind: str) -> OwnerId:
        """Become an owner, alive until `leave`, until this store is closed, or until the process ends."""
        ...

    async def leave(self, owner: OwnerId) -> None: ...


class Sessions(Protocol):
    async def create(self, new: NewSession) -> Session: ...
    async def get(self, session: SessionId) -> Session | None: ...
    async def find(self, name: str, person: str | None = None) -> Session:
        """By id, by a unique beginning of it, or by title; with `person`, only theirs. Raises `UnknownSession`."""
        ...

    async def list(
        self, limit: int = 50, person: str | None = None, after: SessionId | None = None
    ) -> Sequence[Session]:
        """Newest activity first; with `person`, only theirs; with `after`, only those that come after that one. Raises
        `UnknownSession` if that one is not among them."""
        ...

    async def latest(self, source: str) -> Session | None:
        """The session from `source` with the newest activity."""
        ...

    async def rename(self, session: SessionId, title: str) -> None: ...
    async def delete(self, session: SessionId) -> None:
        """Delete it with all that belongs to it. Raises `SessionBusy` while a living owner runs it."""
        ...

    async def fork(
        self, session: SessionId, new: SessionId, title: str | None = None, until: int | None = None
    ) -> Session:
        """A copy under a new id, without the open turn; with `until`, without what comes after that position, which is
        the end of a turn. Raises `BrokenRuleError` if it is inside one.

        The histories that end in what is copied are those of the copy, too.
        """
        ...

    async def adopt(
        self, new: NewSession, created_at: float, journal: Sequence[Recorded], history: HistoryPoint | None = None
    ) -> bool:
        """Add a session that began elsewhere, and keep its times. False: its id exists already, and nothing changes.
        `history` is the one with which it ends.

        An unknown parent is left out, and a title that is taken gets a number. Raises `BrokenRuleError` if a turn in
        the journal has not ended, because its calls would be missing.
        """
        ...


class Amount(msgspec.Struct, frozen=True):
    tokens: int = 0
    cost_usd: float = 0.0


class Totals(msgspec.Struct, frozen=True):
    """What has been spent, and what living owners have reserved for calls in progress."""

    session: Amount = Amount()
    day: Amount = Amount()
    """By everybody, today (in local time)."""
    person: Amount = Amount()
    """By this person, today."""


UsageKey = Literal["day", "model", "session"]


class UsageRow(msgspec.Struct, frozen=True):
    key: str
    """A day (2026-01-31), `provider:model`, or a session's id."""
    calls: int
    usage: Usage
    cost_usd: float
    unpriced_calls: int
    """Calls whose price is unknown; `cost_usd` does not include them."""


class Spending(Protocol):
    async def hold(self, session: SessionId, person: str, owner: OwnerId, decide: Callable[[Totals], Amount]) -> HoldId:
        """Reserve the amount that `decide` returns for the present totals; nothing if it raises, or if cancelled.

        `decide` runs inside the transaction, on another thread, so it must be quick and pure. The hold lasts until
        `HoldReleased`, or until the owner is gone.
        """
        ...

    async def add(self, session: SessionId, writes: Sequence[Spent | HoldReleased]) -> None:
        """For calls outside a turn; those of a turn come with `Journal.record`."""
        ...

    async def usage(self, by: UsageKey, since: float = 0.0) -> Sequence[UsageRow]:
        """Days and sessions newest first, models most expensive first."""
        ...


class SearchHit(msgspec.Struct, frozen=True):
    session: SessionId
    title: str | None
    at: float
    role: str
    snippet: str


class Search(Protocol):
    async def search(self, query: str, limit: int = 20, person: str | None = None) -> Sequence[SearchHit]:
        """Messages that contain all words of the query, newest first; with `person`, only from their sessions."""
        ...

    async def rebuild(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Rebuild the index; returns the number of messages in it. `progress` is called with the number of entries done
        and the number of all."""
        ...


class Store(Protocol):
    @property
    def trouble(self) -> str:
        """Why the last write failed, in a sentence; empty if it succeeded."""
        ...

    async def version(self) -> int:
        """Changes whenever another process commits something; quick enough to read ten times a second."""
        ...

    @property
    def journal(self) -> Journal: ...
    @property
    def inbox(self) -> Inbox: ...
    @property
    def chats(self) -> Chats: ...
    @property
    def access(self) -> Access: ...
    @property
    def owners(self) -> Owners: ...
    @property
    def sessions(self) -> Sessions: ...
    @property
    def outbox(self) -> Outbox: ...
    @property
    def handoffs(self) -> Handoffs: ...
    @property
    def search(self) -> Search: ...
    @property
    def spending(self) -> Spending: ...
    @property
    def approvals(self) -> Approvals: ...
    @property
    def grants(self) -> Grants: ...
    @property
    def signals(self) -> Signals: ...
    @property
    def api_tokens(self) -> ApiTokens: ...
    @property
    def histories(self) -> Histories: ...
