"""The port between a connection, which comes and goes, and the wire, which speaks the protocol."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol

import msgspec

from talaria.core.messages import Image
from talaria.tools.mcp.cache import Listing
from talaria.tools.mcp.sandboxing import ConfinedServer
from talaria.tools.mcp.server_entries import ServerEntry


class Away(Exception):
    """The server cannot be spoken to; `str()` of it goes on behind "it": "did not start"."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final
        """Not before somebody changes something."""


class NotMade(Exception):
    """The call did not reach the server, or was not let in: it may be made again. `str()` of it as of `Away`."""


class ServerAnswer(msgspec.Struct, frozen=True):
    text: str
    is_error: bool
    images: tuple[Image, ...] = ()


class Peer(Protocol):
    """A server that is there."""

    async def listing(self) -> Listing:
        """Raises `Away`."""
        ...

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ServerAnswer:
        """Cancelling tells the server. Raises `Away` (its effect is unknown), `NotMade`."""
        ...

    async def wait_for_change(self) -> bool:
        """Waits until the server says that its tools have changed; False when it is gone."""
        ...

    def leave(self) -> None:
        """Ends the conversation soon."""
        ...


Visit = Callable[[Peer], Awaitable[None]]
Converse = Callable[[ServerEntry, Mapping[str, str], ConfinedServer | None, Visit], Coroutine[Any, Any, None]]
"""Reaches the server, lets `visit` speak with it, and leaves nothing behind when that returns. Raises `Away`."""
