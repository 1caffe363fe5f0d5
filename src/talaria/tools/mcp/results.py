"""What a server answers, as text and images for the model.

Between a transport and the protocol: what we have no use for does not get through, one tool that is not right does
not spoil a listing, and the end of the stream is noticed.
"""

import base64
import binascii
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, assert_never, cast

import anyio
import msgspec
from anyio.abc import ObjectReceiveStream
from mcp.shared.message import SessionMessage
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    JSONRPCNotification,
    JSONRPCResponse,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from talaria.core.messages import Image
from talaria.core.pictures import UnsupportedImage, prepare_image
from talaria.tools.mcp.offers import sound
from talaria.tools.mcp.peer import ServerAnswer

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
                item = self._sift(await self._inner.receive())
                if item is not None:
                    return item
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._on_end()
            raise

    def _sift(self, item: SessionMessage | Exception) -> SessionMessage | None:
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
async def sift_transport(
    transport: AbstractAsyncContextManager[Any], refused: list[str], on_end: Callable[[], None]
) -> AsyncGenerator[tuple[Sifted, Any]]:
    """A transport over another one. `refused` hears why tools were left out of the listings that came through."""
    async with transport as (reading, writing):
        yield Sifted(reading, refused, on_end), writing


MAX_IMAGES = 4


class _Album:
    """The images of an answer that the model is shown."""

    def __init__(self, room: int) -> None:
        self.images: list[Image] = []
        self._room = room

    def take(self, data: str) -> str:
        """What became of it."""
        if len(self.images) == self._room:
            return "not shown"
        try:
            image, _ = prepare_image(base64.b64decode(data))
        except UnsupportedImage as fault:
            return f"not shown, because it {fault}"
        except ValueError:
            return "not shown"
        self.images.append(image)
        return "shown"


def answer(result: CallToolResult) -> ServerAnswer:
    album = _Album(0 if result.is_error else MAX_IMAGES)
    parts = [_format_block(block, album) for block in result.content]
    if result.structured_content is not None and not _is_told(result.structured_content, parts):
        parts.append(msgspec.json.encode(result.structured_content).decode())
    return ServerAnswer("\n\n".join(part for part in parts if part), result.is_error, tuple(album.images))


def _format_block(block: ContentBlock, album: _Album) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent():
            return f"[{block.mime_type}, {_size(block.data)}: {album.take(block.data)}]"
        case AudioContent():
            return f"[{block.mime_type}, {_size(block.data)}: not shown]"
        case ResourceLink():
            about = f": {block.description}" if block.description else ""
            return f"[resource {block.name} at {block.uri}{about}]"
        case EmbeddedResource():
            return _format_resource(block.resource)
        case _:
            assert_never(block)


def _format_resource(resource: TextResourceContents | BlobResourceContents) -> str:
    if isinstance(resource, TextResourceContents):
        return f"[resource {resource.uri}]\n{resource.text}"
    return f"[resource {resource.uri}, {resource.mime_type or 'of unknown type'}, {_size(resource.blob)}: not shown]"


def _size(data: str) -> str:
    try:
        return f"{len(base64.b64decode(data)):,} bytes"
    except (binascii.Error, ValueError):
        return f"{len(data):,} signs that are no base64"


def _is_told(structured: Any, parts: list[str]) -> bool:
    """Servers are asked to repeat structured content as text, for clients that do not know it; some wrap the text."""
    wrapped: Any = cast("dict[str, Any]", structured).get("result") if isinstance(structured, dict) else None
    if len(parts) == 1 and structured == {"result": wrapped} and wrapped == parts[0]:
        return True
    for part in parts:
        try:
            if msgspec.json.decode(part) == structured:
                return True
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
            continue
    return False
