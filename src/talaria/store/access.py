"""Who may speak to the agent besides those whom the settings name: people who were let in by a pairing code."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

MAX_FAILURES = 5
LOCKED_S = 3600.0


class Member(msgspec.Struct, frozen=True):
    platform: str
    user: str
    name: str
    """A label, as it was when they were let in."""
    since: float


class Request(msgspec.Struct, frozen=True):
    """Somebody was told a code and waits to be let in."""

    platform: str
    user: str
    name: str
    digest: str
    """Of the code, which is nowhere on the disk."""
    expires_at: float


class Locked(msgspec.Struct, frozen=True):
    """Too many wrong codes: no code is looked at before this moment."""

    until: float


class Access(Protocol):
    async def request(self, request: Request, max_pending: int) -> bool:
        """False: they have a living request already, or too many of this platform wait."""
        ...

    async def requests(self) -> Sequence[Request]:
        """The living ones, oldest first."""
        ...

    async def approve(self, platform: str, digest: str) -> Member | Locked | None:
        """Let in whoever was told this code. None: no living request has it; that is counted."""
        ...

    async def members(self) -> Sequence[Member]: ...
    async def revoke(self, platform: str, user: str) -> bool:
        """False: they were no member."""
        ...
