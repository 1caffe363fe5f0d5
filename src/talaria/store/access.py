"""Who may speak to the agent besides those whom the settings name: people who were let in by a pairing code."""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from talaria.core.ids import SessionId

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
        """Let in whoever was told this code; in the same transaction the greeting is put into the outbox.

        None: no living request has it; that is counted.
        """
        ...

    async def members(self) -> Sequence[Member]: ...
    async def revoke(self, platform: str, user: str) -> bool:
        """False: they were no member."""
        ...
