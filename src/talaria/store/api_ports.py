"""The ports of the HTTP API: its tokens, and the histories by which programs name their conversations."""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from talaria.core.ids import SessionId

API = "api"
"""The name of the platform."""

Scope = Literal["chat", "runs", "sessions", "approve", "metrics", "admin"]


class ApiToken(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Its requests are those of the person `api:NAME`."""
    digest: str
    """Of the token, which is nowhere else."""
    scopes: tuple[Scope, ...] = ("chat",)
    created_at: float = 0.0
    expires_at: float | None = None
    tokens_per_day: int | None = None
    """What the models may read and write for it; None: as the settings say, like the two below."""
    usd_per_day: float | None = None
    requests_per_minute: int | None = None

    @property
    def person(self) -> str:
        return f"{API}:{self.name}"

    def may_see(self, person: str | None) -> bool:
        """The conversations of this person."""
        return person == self.person or "admin" in self.scopes

    def is_valid(self, now: float) -> bool:
        return self.expires_at is None or now < self.expires_at


class ApiTokens(Protocol):
    async def add(self, token: ApiToken) -> bool:
        """False: there is one with this name or digest already."""
        ...

    async def find(self, digest: str) -> ApiToken | None:
        """Also if it has expired."""
        ...

    async def list(self) -> Sequence[ApiToken]:
        """Oldest first."""
        ...

    async def revoke(self, name: str) -> bool:
        """False: there is none with this name."""
        ...


class HistoryPoint(msgspec.Struct, frozen=True):
    """Of a record, or of a conversation that is adopted: with the last entry that is written in it, the conversation
    reads like this.

    Programs that send all of a conversation with each request find it again by this digest.
    """

    person: str
    digest: str


class HistoryMatch(msgspec.Struct, frozen=True):
    session: SessionId
    seq: int
    """The last entry of the history."""
    is_end: bool
    """Nothing was written in the conversation since."""


class Histories(Protocol):
    """They come with `Journal.record` and `Sessions.adopt`."""

    async def find(self, point: HistoryPoint, limit: int = 10) -> Sequence[HistoryMatch]:
        """Conversations in which this person has had this history: first those that end with it, then by
        activity, newest first."""
        ...
