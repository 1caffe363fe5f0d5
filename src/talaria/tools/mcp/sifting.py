"""Between a transport and the protocol: what we have no use for does not get through, one tool that is not right does
not spoil a listing, and the end of the stream is noticed."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

import anyio
from anyio.abc import ObjectReceiveStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCResponse

from talaria.tools.mcp.offers import sound

HEARD = frozenset(
    {"notifications/tools/list_changed", "notifications/cancelled", "notifications/subscriptions/acknowledged"}
)
"""Of notifications; logs and progress may come by the thousand."""


class Sifted(ObjectReceiveStream[SessionMessage]):
    """A read stream over another one."""

    def __init__(self, inner: Any, refused: list[str], on_end: Callable[[], None]) -> None:
        self._inner = inner
        self._refused = refused
        self._on_end = on_end

    async def receive(self) -> SessionMessage:
        try:
            while True:
                item = self._sifted(await self._inner.receive())
                if item is not None:
                    return item
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._on_end()
            raise

    def _sifted(self, item: SessionMessage | Exception) -> SessionMessage | None:
        if isinstance(item, Exception):
            return None
        message = item.message
        if isinstance(message, JSONRPCNotification):
            return item if message.method in HEARD else None
        if isinstance(message, JSONRPCResponse) and isinstance(message.result.get("tools"), list):
            kept, refused = sound(cast("list[Any]", message.result["tools"]))
            message.result["tools"] = kept
            self._refused += refused
        return item

    async def aclose(self) -> None:
        self._on_end()
        await self._inner.aclose()


@asynccontextmanager
async def sifted(
    transport: AbstractAsyncContextManager[Any], refused: list[str], on_end: Callable[[], None]
) -> AsyncGenerator[tuple[Sifted, Any]]:
    """A transport over another one. `refused` hears why tools were left out of the listings that came through."""
    async with transport as (reading, writing):
        yield Sifted(reading, refused, on_end), writing
