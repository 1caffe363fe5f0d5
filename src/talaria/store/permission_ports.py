"""The ports for what people may do: approvals of one call each, grants that hold for longer, and
who may speak to the agent besides the people in the settings.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from talaria.core.ids import ApprovalId, CallId, GrantId, OwnerId, SessionId, TurnId


class NewApproval(msgspec.Struct, frozen=True):
    """A question whether a call may run."""

    id: ApprovalId
    session: SessionId
    turn: TurnId
    call: CallId
    owner: OwnerId
    """The process that asks. When it is gone the question is dead, and so is a yes that it has not
    used."""
    requester: str
    """The person in whose turn it is asked. Nobody else may answer."""
    tool: str
    question: str
    """What was shown."""
    digest: str
    """Of exactly what would run."""
    expires_at: float


ApprovalState = Literal["pending", "allowed", "denied", "used"]


class Approval(NewApproval, frozen=True):
    state: ApprovalState
    """As it was left: a question that nobody answered in time stays `pending`."""
    created_at: float
    decided_by: str | None
    decided_at: float | None


class Approvals(Protocol):
    """Questions to a person: pending → allowed | denied, allowed → used. One lives until its time
    or its owner ends."""

    async def request(self, new: NewApproval) -> None: ...
    async def decide(self, id: ApprovalId, *, is_allowed: bool, by: str) -> bool:
        """True exactly once. False: not pending, not living, or `by` is not the requester."""
        ...

    async def use(self, id: ApprovalId, digest: str) -> bool:
        """True exactly once, and only then may the call run. False: not allowed, not living, or
        another digest."""
        ...

    async def find(self, name: str) -> Approval | None:
        """By id; while it waits for an answer also by a unique beginning of it, in small or capital
        letters.

        A beginning has at least four of them. None: it fits none or many.
        """
        ...

    async def list_pending(self, session: SessionId | None = None) -> Sequence[Approval]:
        """The living ones, oldest first."""
        ...


class Grant(msgspec.Struct, frozen=True):
    """What a person has allowed beforehand."""

    id: GrantId
    person: str
    tool: str
    what: str
    """Exactly what is granted: a command, a path, a host, or the text of a call."""
    cwd: str
    session: SessionId | None
    """None: in every session."""
    created_at: float
    expires_at: float | None
    """None: until it is revoked."""


class Grants(Protocol):
    async def add(self, grant: Grant) -> None: ...
    async def list_valid(self, person: str, session: SessionId) -> Sequence[Grant]:
        """What this person has granted for this session or for every one, and has not expired;
        oldest first."""
        ...

    async def list(self) -> Sequence[Grant]:
        """Everybody's that have not expired, oldest first."""
        ...

    async def revoke(self, id: GrantId) -> bool:
        """False: there is none."""
        ...


MAX_FAILURES = 5
LOCKED_S = 3600.0


class Member(msgspec.Struct, frozen=True):
    platform: str
    user: str
    name: str
    """A label, as it was when they were let in."""
    since: float


class PairingRequest(msgspec.Struct, frozen=True):
    """Somebody was told a code and waits to be let in."""

    platform: str
    user: str
    name: str
    digest: str
    """Of the code, which is nowhere on the disk."""
    expires_at: float
    address: str = ""
    """Where they were told it."""


class Greeting(msgspec.Struct, frozen=True):
    """A reply to whoever is let in, where they were told their code."""

    session: SessionId
    body: str
    expires_at: float


def greeting_key(digest: str) -> str:
    return f"paired:{digest}"


Requested = Literal["added", "known", "full"]
"""`known`: they have a living request already. `full`: too many others of their platform wait."""


class Locked(msgspec.Struct, frozen=True):
    """Too many wrong codes: no code is looked at before this moment."""

    until: float


class Access(Protocol):
    async def request(self, request: PairingRequest, max_pending: int) -> Requested: ...

    async def requests(self) -> Sequence[PairingRequest]:
        """The living ones, oldest first."""
        ...

    async def approve(self, platform: str, digest: str, greeting: Greeting | None = None) -> Member | Locked | None:
        """Let in whoever was told this code; in the same transaction the greeting is put into the
        outbox.

        None: no living request has it; that is counted.
        """
        ...

    async def members(self) -> Sequence[Member]: ...
    async def revoke(self, platform: str, user: str) -> bool:
        """False: they were no member."""
        ...
