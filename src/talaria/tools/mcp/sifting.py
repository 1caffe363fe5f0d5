"""Between a transport and the protocol: what we have no use for does not get through, one tool that is not right does
not spoil a listing, and the end of the stream is noticed."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self, cast

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCResponse

from talaria.tools.mcp.offers import sound

HEARD = frozenset(
    {"notifications/tools/list_changed", "notifications/cancelled", "notifications/subscriptions/acknowledged"}
)
"""Of notifications; logs and progress may come by the thousand."""


class Sifted:
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

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Sieve:
    """A transport over another one, with a sifted stream to read."""

    def __init__(self, inner: AbstractAsyncContextManager[Any], on_end: Callable[[], None]) -> None:
        self._inner = inner
        self._on_end = on_end
        self.refused: list[str] = []
        """Why tools were left out of the listings that came through."""

    async def __aenter__(self) -> tuple[Any, Any]:
        reading, writing = await self._inner.__aenter__()
        return Sifted(reading, self.refused, self._on_end), writing

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, failure, trace)
