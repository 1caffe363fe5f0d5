"""What a server answers, as text and images for the model."""

import base64
import binascii
from typing import Any, assert_never, cast

import msgspec
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from talaria.core.messages import Image
from talaria.core.pictures import Unfit, fit
from talaria.tools.mcp.peer import ServerAnswer

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
            image, _ = fit(base64.b64decode(data))
        except Unfit as fault:
            return f"not shown, because it {fault}"
        except ValueError:
            return "not shown"
        self.images.append(image)
        return "shown"


def answer(result: CallToolResult) -> ServerAnswer:
    album = _Album(0 if result.is_error else MAX_IMAGES)
    parts = [_told(block, album) for block in result.content]
    if result.structured_content is not None and not _is_told(result.structured_content, parts):
        parts.append(msgspec.json.encode(result.structured_content).decode())
    return ServerAnswer("\n\n".join(part for part in parts if part), result.is_error, tuple(album.images))


def _told(block: ContentBlock, album: _Album) -> str:
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
            return _held(block.resource)
        case _:
            assert_never(block)


def _held(resource: TextResourceContents | BlobResourceContents) -> str:
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
