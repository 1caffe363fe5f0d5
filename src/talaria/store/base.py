"""The store's ports. Each method that writes is one transaction and returns once it survives a
crash.

Safety rests on the epoch: every write of a turn carries the epoch under which the session was
seized, and a writer whose epoch is no longer the session's is `Fenced`.
"""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from talaria.core.entries import Entry, Recorded
from talaria.core.ids import CallId, Epoch, HoldId, OwnerId, SessionId, TurnId
from talaria.core.messages import NO_USAGE, ToolCall, ToolResult, Usage
from talaria.store.chat_ports import Chats, Handoffs, Inbox, InboxDone, InboxTaken, Outbox, Outgoing
from talaria.store.permission_ports import Access, Approvals, Grants
from talaria.store.signal_port import SignalObeyed, Signals


class BrokenRuleError(RuntimeError):
    """A write that the order of commits forbids; always a bug of the caller."""


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
    """Who began it."""


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


# What one `record` may write, besides entries.


class CallIntended(msgspec.Struct, frozen=True):
    turn: TurnId
    call: ToolCall


class CallStarted(msgspec.Struct, frozen=True):
    call_id: CallId


class CallEnded(msgspec.Struct, frozen=True):
    result: ToolResult


class Spent(msgspec.Struct, frozen=True):
    """A model call that somebody pays for. It stays counted when its session is deleted."""

    model: str
    """`provider:model`."""
    person: str
    purpose: str
    """`turn`, or what an auxiliary call was for."""
    usage: Usage
    cost_usd: float | None
    """None: no price is known."""


class HoldReleased(msgspec.Struct, frozen=True):
    """What was set aside for a call is free again: the call has ended, and what it used is `Spent`."""

    hold: HoldId


class SessionSeized(msgspec.Struct, frozen=True):
    """First of a record: the session is seized with it, under the record's epoch.

    That must be the very next one, and the session free; else it is `Fenced`, and nothing is
    written.
    """

    owner: OwnerId


class SessionReleased(msgspec.Struct, frozen=True):
    """Last of a record: the session is released with it, on the terms of `Journal.release`."""

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
        """Become the session's owner. Never takes from a living one."""
        ...

    async def record(self, session: SessionId, epoch: Epoch, writes: Sequence[Write]) -> bool:
        """All of `writes` or none of them. Raises `Fenced`; a `CancelledError` means that they are
        durable.

        True: the session was released with them. False: that was not asked for, or mail has
        arrived.
        """
        ...

    async def release(self, session: SessionId, epoch: Epoch, *, leaves_mail: bool = False) -> bool:
        """False: mail arrived meanwhile and the session is still yours, go on. Raises `Fenced`.

        `leaves_mail`: give it up all the same; another process sees to its mail.
        """
        ...

    async def entries(self, session: SessionId, after: int = 0) -> Sequence[Recorded]: ...
    async def latest(self, session: SessionId, limit: int) -> Sequence[Recorded]:
        """The last entries, oldest first. What it costs does not grow with the journal."""
        ...

    async def calls(self, session: SessionId, turn: TurnId) -> Sequence[CallRow]:
        """The turn's tool calls, in the model's order."""
        ...

    async def holder(self, session: SessionId) -> OwnerId | None:
        """The living owner that runs the session now; None if nobody does, or it is unknown."""
        ...

    async def list_interrupted(self) -> Sequence[SessionId]:
        """Sessions whose turn has no end and no living owner, newest first."""
        ...


class Owners(Protocol):
    async def join(self, kind: str) -> OwnerId:
        """Become an owner; alive until `leave`, the closing of this store, or the end of the
        process."""
        ...

    async def leave(self, owner: OwnerId) -> None: ...


class Sessions(Protocol):
    async def create(self, new: NewSession) -> Session: ...
    async def get(self, session: SessionId) -> Session | None: ...
    async def find(self, name: str, person: str | None = None) -> Session:
        """By id, by a unique beginning of it, or by title; with `person`, among theirs. Raises
        `UnknownSession`."""
        ...

    async def list(self, limit: int = 50, person: str | None = None) -> Sequence[Session]:
        """Newest activity first; with `person`, only theirs."""
        ...

    async def latest(self, source: str) -> Session | None:
        """The one with the newest activity, of those that came from `source`."""
        ...

    async def rename(self, session: SessionId, title: str) -> None: ...
    async def delete(self, session: SessionId) -> None:
        """With all that belongs to it. Raises `SessionBusy` while a living owner runs it."""
        ...

    async def fork(self, session: SessionId, new: SessionId, title: str | None = None) -> Session:
        """A copy under a new id, without a turn that is open."""
        ...


class Adoption(Protocol):
    """Conversations that began elsewhere. Beside `Sessions`, because only an import needs it."""

    async def adopt(self, new: NewSession, created_at: float, journal: Sequence[Recorded]) -> bool:
        """Take a session over with its journal, whose times stay. False: its id is here already,
        nothing changes.

        A parent that is not here is left out; a title that is taken gets a number. The journal must
        be at rest: `BrokenRuleError` if a turn in it has no end, as nobody would have its calls.
        """
        ...


class Amount(msgspec.Struct, frozen=True):
    tokens: int = 0
    cost_usd: float = 0.0


class Totals(msgspec.Struct, frozen=True):
    """What is spent, and held by living owners for calls under way."""

    session: Amount = Amount()
    day: Amount = Amount()
    """Of everybody, today (in local time)."""
    person: Amount = Amount()
    """Of this person, today."""


UsageKey = Literal["day", "model", "session"]


class UsageRow(msgspec.Struct, frozen=True):
    key: str
    """A day (2026-01-31), `provider:model`, or a session's id."""
    calls: int
    usage: Usage
    cost_usd: float
    unpriced_calls: int
    """Calls whose price is not known: the cost does not include them."""


class Spending(Protocol):
    async def hold(self, session: SessionId, person: str, owner: OwnerId, decide: Callable[[Totals], Amount]) -> HoldId:
        """Set aside what `decide` answers to the totals of this very moment; nothing if it raises,
        or if cancelled.

        `decide` runs inside the transaction, on another thread: quick and pure. Held until
        `HoldReleased`, or until the owner is no more.
        """
        ...

    async def add(self, session: SessionId, writes: Sequence[Spent | HoldReleased]) -> None:
        """For calls outside of a turn; those of a turn come with `Journal.record`."""
        ...

    async def usage(self, by: UsageKey, since: float = 0.0) -> Sequence[UsageRow]:
        """Days and sessions newest first, models dearest first."""
        ...


class SearchHit(msgspec.Struct, frozen=True):
    session: SessionId
    title: str | None
    at: float
    role: str
    snippet: str


class Search(Protocol):
    async def search(self, query: str, limit: int = 20, person: str | None = None) -> Sequence[SearchHit]:
        """Messages that contain all words of the query, newest first; with `person`, only of their
        sessions."""
        ...

    async def rebuild(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Throw the index away and make it anew; the number of messages indexed. `progress`: so
        many entries of all."""
        ...


class Store(Protocol):
    @property
    def trouble(self) -> str:
        """Why the last write failed, in a sentence; empty: it did not."""
        ...

    async def version(self) -> int:
        """Another number whenever another process has committed something; quick enough to ask ten
        times a second."""
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
