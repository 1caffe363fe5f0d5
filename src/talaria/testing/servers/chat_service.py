"""What the fake chat services have in common: how a test speaks on them, what it sees there, and what goes wrong."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec


class Refusal(msgspec.Struct, frozen=True):
    """The call is answered with an error and has no effect."""

    status: int
    retry_after_s: float | None = None
    words: str = ""
    """In place of the service's usual ones."""
    extra: Mapping[str, Any] = {}
    """More fields of the answer."""


class LostAnswer(msgspec.Struct, frozen=True):
    """The call has its effect, and the connection is cut before the answer."""


class Slow(msgspec.Struct, frozen=True):
    """The answer comes late."""

    seconds: float


Fault = Refusal | LostAnswer | Slow


class Seen(msgspec.Struct, frozen=True):
    """A message of the bot as people see it now."""

    id: str
    text: str
    """Without markup."""
    edits: int = 0
    buttons: tuple[tuple[str, str], ...] = ()
    """Label and data."""
    thread: str = ""
    reply_to: str = ""
    file: str = ""
    """The name of an attached file."""


class ChatService(Protocol):
    """A loopback server that speaks a service's protocol to its real client library."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """For `gateway.platforms.NAME`, so that a gateway comes here."""
        ...

    async def say(self, text: str, *, user: str = "1001", chat: str = "", thread: str = "") -> str:
        """Somebody says something: to the bot directly or, with `chat`, in a group. The message's id."""
        ...

    async def press(self, message: str, data: str, *, user: str = "1001", chat: str = "") -> None:
        """Somebody presses a button under a message of the bot."""
        ...

    def seen(self, *, user: str = "1001", chat: str = "") -> Sequence[Seen]:
        """What the bot has said there that has not been deleted, oldest first."""
        ...

    async def wait_for(self, count: int, *, user: str = "1001", chat: str = "") -> Sequence[Seen]:
        """Until the bot has said that many messages there."""
        ...

    def fault(self, method: str, *faults: Fault) -> None:
        """What happens to the next calls of a method, in order; those after them are answered well."""
        ...

    def calls(self, method: str) -> Sequence[Mapping[str, Any]]:
        """The arguments of each call of a method, whether or not it was answered well; `at` is when (monotonic)."""
        ...
