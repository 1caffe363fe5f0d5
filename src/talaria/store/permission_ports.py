"""The ports for what people may do: approvals of single calls, grants that last longer, and who may write to the agent
besides the people in the settings."""

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
    """The process that asks. When it is gone, the question is dead, and so is an unused yes."""
    requester: str
    """The person whose turn asks. Nobody else may answer."""
    tool: str
    question: str
    """What was shown."""
    digest: str
    """The digest of exactly what would run."""
    expires_at: float


ApprovalState = Literal["pending", "allowed", "denied", "used"]


class Approval(NewApproval, frozen=True):
    state: ApprovalState
    """A question that nobody answers in time stays `pending`."""
    created_at: float
    decided_by: str | None
    decided_at: float | None


class Approvals(Protocol):
    """Questions to a person: pending → allowed | denied, allowed → used. A question lives until it expires or its owner
    ends."""

    async def request(self, new: NewApproval) -> None: ...
    async def decide(self, id: ApprovalId, *, is_allowed: bool, by: str) -> bool:
        """True exactly once. False: not pending, not living, or `by` is not the requester."""
        ...

    async def use(self, id: ApprovalId, digest: str) -> bool:
        """True exactly once, and only then may the call run. False: not allowed, not living, or
        another digest."""
        ...

    async def find(self, name: str) -> Approval | None:
        """By id or, while it waits for an answer, by a unique beginning of at least four letters, in either case.

        None: it fits none, or several.
        """
        ...

    async def list_pending(self, session: SessionId | None = None) -> Sequence[Approval]:
        """The living ones, oldest first."""
        ...


class Grant(msgspec.Struct, frozen=True):
    """What a person has allowed in advance."""

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
        """This person's grants for this session or for every one that have not expired, oldest first."""
        ...

    async def list(self) -> Sequence[Grant]:
        """Everybody's grants that have not expired, oldest first."""
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
    """A label, from the time when they were let in."""
    since: float


class PairingRequest(msgspec.Struct, frozen=True):
    """Somebody has a code and waits to be let in."""

    platform: str
    user: str
    name: str
    digest: str
    """The digest of the code, which is never on the disk."""
    expires_at: float
    address: str = ""
    """Where they got the code."""


class Greeting(msgspec.Struct, frozen=True):
    """A message to the person who is let in, sent where they got their code."""

    session: SessionId
    body: str
    expires_at: float


def greeting_key(digest: str) -> str:
    return f"paired:{digest}"


Requested = Literal["added", "known", "full"]
"""`known`: they have a living request already. `full`: too many others of their platform wait."""


class Locked(msgspec.Struct, frozen=True):
    """There were too many wrong codes: none is accepted before this moment."""

    until: float


class Access(Protocol):
    async def request(self, request: PairingRequest, max_pending: int) -> Requested: ...

    async def requests(self) -> Sequence[PairingRequest]:
        """The living ones, oldest first."""
        ...

    async def approve(self, platform: str, digest: str, greeting: Greeting | None = None) -> Member | Locked | None:
        """Let in the person with this code and, in the same transaction, add the greeting to the outbox.

        None: no living request has this code, which counts as a wrong one.
        """
        ...

    async def members(self) -> Sequence[Member]: ...
    async def revoke(self, platform: str, user: str) -> bool:
        """False: they were not a member."""
        ...
