"""Speaks the protocol, through the official package, and turns answers into text and images for the model."""

import asyncio
import base64
import binascii
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import metadata
from typing import Any, Literal, Protocol, assert_never, cast

import anyio
import msgspec
from anyio.abc import ObjectReceiveStream
from mcp.client.client import Client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    PARSE_ERROR,
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    Implementation,
    JSONRPCNotification,
    JSONRPCResponse,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from talaria.core.aio import in_thread
from talaria.core.messages import Image
from talaria.core.pictures import UnsupportedImage, prepare_image
from talaria.tools.mcp import transports
from talaria.tools.mcp.offers import (
    MAX_TOOLS,
    CallNotMade,
    Listing,
    ServerAnswer,
    ServerTool,
    ServerUnavailable,
    drop_duplicates,
    make_tool,
    select_tools,
)
from talaria.tools.mcp.sandboxing import ConfinedServer
from talaria.tools.mcp.server_entries import ServerEntry
from talaria.tools.mcp.transports import RequestProgress, StdioTransport

MAX_PAGES = 100
LISTEN_AGAIN_S = 30.0
MAX_REASON_CHARS = 300
Mode = Literal["auto", "legacy"]
ABOUT = Implementation(name="talaria", version=metadata.version("talaria-agent"))
FORGOTTEN = frozenset({400, 404})
"""Answers of a restarted server to clients that it no longer knows."""
NO_DETAILS = "Server returned an error response"
"""The package's words for a refusal whose body is not part of the protocol."""


class Link(Protocol):
    """What a transport knows besides its messages."""

    @property
    def last_words(self) -> str: ...


class NoConversation(ServerUnavailable):
    """No conversation came about; another way of starting one may work."""


Visit = Callable[["WirePeer"], Awaitable[None]]


async def converse(
    entry: ServerEntry, environment: Mapping[str, str], confined: ConfinedServer | None, visit: Visit
) -> None:
    """Reaches the server, calls `visit`, and leaves nothing behind when that returns. Raises `ServerUnavailable`.

    Servers that do not know the current protocol are tried with the older one.
    """
    if entry.url is None:
        process = StdioTransport(entry, environment, confined)
        try:
            await _talk(process, process, "auto", visit)
        except NoConversation:  # some quit at a first message that they do not know
            again = StdioTransport(entry, environment, confined)
            await _talk(again, again, "legacy", visit)
        return
    if entry.type != "sse":
        async with await in_thread(lambda: transports.make_client(entry)) as client:  # loading certificates takes time
            try:
                await _talk(transports.streamable(entry, client), client, "auto", visit)
            except NoConversation:
                if client.last.status not in transports.NO_SUCH_PLACE:
                    raise
            else:
                return
    old = await in_thread(lambda: transports.make_client(entry))
    await _talk(transports.event_stream(entry, old), old, "legacy", visit)


async def _talk(transport: AbstractAsyncContextManager[Any], link: Link, mode: Mode, visit: Visit) -> None:
    peer: WirePeer | None = None
    signals = _Signals()
    refused: list[str] = []
    through = _filter_transport(transport, refused, signals.end)
    try:
        async with Client(through, mode=mode, message_handler=signals.hear, client_info=ABOUT, cache=None) as client:
            peer = WirePeer(client, refused, signals, link)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(peer.listen)
                await visit(peer)
                tasks.cancel_scope.cancel()
    except Exception as fault:
        known: BaseException = fault
        while isinstance(known, BaseExceptionGroup):
            known = cast("BaseExceptionGroup[BaseException]", known).exceptions[0]
        if isinstance(known, ServerUnavailable):
            raise known from fault
        kind = NoConversation if peer is None else ServerUnavailable
        raise kind(link.last_words or _describe_fault(known)) from fault
    if not signals.is_left:
        raise ServerUnavailable(link.last_words or "closed the connection")


class _Signals:
    """`event` is set when the tools have changed, or the conversation is over."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.is_over = False
        self.is_left = False
        """We ended it."""

    def end(self) -> None:
        self.is_over = True
        self.event.set()

    async def hear(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.event.set()


class WirePeer:
    """A server that is connected."""

    def __init__(self, client: Client, refused: list[str], signals: _Signals, link: Link) -> None:
        self._client = client
        self._refused = refused
        self._signals = signals
        self._link = link

    async def listing(self) -> Listing:
        """Raises `ServerUnavailable`."""
        if self._client.server_capabilities.tools is None:
            return Listing()
        self._refused.clear()
        offers: list[ServerTool] = []
        cursor = None
        try:
            for _ in range(MAX_PAGES):
                page = await self._client.list_tools(cursor=cursor, cache_mode="bypass")
                for tool in page.tools:
                    hints = tool.annotations.model_dump(by_alias=True) if tool.annotations else {}
                    offers.append(make_tool(tool.name, tool.description or tool.title or "", tool.input_schema, hints))
                cursor = page.next_cursor
                if not cursor or len(offers) > MAX_TOOLS:
                    break
        except (MCPError, ValidationError, RuntimeError) as fault:
            raise ServerUnavailable(self._link.last_words or _describe_fault(fault)) from fault
        kept, refused = drop_duplicates(offers)
        return Listing(kept, (*self._refused, *refused))

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ServerAnswer:
        """Cancelling tells the server. Raises `ServerUnavailable` (the effect is unknown) and `CallNotMade`."""
        if self._signals.is_over:
            raise CallNotMade("is gone")
        progress = RequestProgress()
        transports.PROGRESS.set(progress)
        try:
            result = await self._client.call_tool(tool, dict(arguments))
        except MCPError as fault:
            words = progress.describe()
            has_no_details = fault.message == NO_DETAILS or "session" in fault.message.lower()
            is_forgotten = progress.status in FORGOTTEN and has_no_details
            if fault.code != CONNECTION_CLOSED and not is_forgotten:
                return ServerAnswer(f"{fault.message} ({words})" if words else fault.message, is_error=True)
            self._signals.end()
            if is_forgotten or progress.never_arrived:
                raise CallNotMade(words) from fault
            raise ServerUnavailable(self._link.last_words or "ended") from fault
        except ValidationError as fault:
            return ServerAnswer(f"The server's answer is not valid MCP: {_shorten(fault)}.", is_error=True)
        except RuntimeError as fault:
            if self._signals.is_over:
                raise CallNotMade("is gone") from fault
            return ServerAnswer(f"The server's answer cannot be used: {_shorten(fault)}.", is_error=True)
        return await in_thread(lambda: make_answer(result))  # images take a while

    async def wait_for_change(self) -> bool:
        """Waits until the server says that its tools have changed. False when it is gone."""
        await self._signals.event.wait()
        self._signals.event.clear()
        return not self._signals.is_over

    def leave(self) -> None:
        """Ends the conversation soon."""
        self._signals.is_left = True
        self._signals.end()

    async def listen(self) -> None:
        """Modern servers report changes only to clients that ask for it. The reports reach `_Signals.hear`."""
        tools = self._client.server_capabilities.tools
        if self._client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
            return
        while not self._signals.is_over:
            try:
                async with self._client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        pass
            except (MCPError, SubscriptionLost, TimeoutError):
                pass
            await anyio.sleep(LISTEN_AGAIN_S)
            self._signals.event.set()  # changes in the meantime were reported to nobody


def _describe_fault(fault: BaseException) -> str:
    if isinstance(fault, ValidationError) or (isinstance(fault, MCPError) and fault.code == PARSE_ERROR):
        return "does not answer as an MCP server does"
    words = _shorten(fault)
    return f"said: {words}" if isinstance(fault, MCPError) else f"failed: {type(fault).__name__}: {words}"


def _shorten(fault: BaseException) -> str:
    return " ".join(str(fault).split())[:MAX_REASON_CHARS].rstrip(".")


HEARD = frozenset(
    {"notifications/tools/list_changed", "notifications/cancelled", "notifications/subscriptions/acknowledged"}
)
"""The notifications that pass; logs and progress may come by the thousand."""


class _FilteredStream(ObjectReceiveStream[SessionMessage]):
    """A read stream over another one. It drops what we have no use for, keeps one bad tool from spoiling a listing,
    and notices the end."""

    def __init__(self, inner: Any, refused: list[str], on_end: Callable[[], None]) -> None:
        self._inner = inner
        self._refused = refused
        self._on_end = on_end

    async def receive(self) -> SessionMessage:
        try:
            while True:
                item: SessionMessage | Exception = await self._inner.receive()
                if isinstance(item, Exception):
                    continue
                message = item.message
                if isinstance(message, JSONRPCNotification) and message.method not in HEARD:
                    continue
                if isinstance(message, JSONRPCResponse) and isinstance(message.result.get("tools"), list):
                    kept, refused = select_tools(cast("list[Any]", message.result["tools"]))
                    message.result["tools"] = kept
                    self._refused += refused
                return item
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._on_end()
            raise

    async def aclose(self) -> None:
        self._on_end()
        await self._inner.aclose()


@asynccontextmanager
async def _filter_transport(
    transport: AbstractAsyncContextManager[Any], refused: list[str], on_end: Callable[[], None]
) -> AsyncGenerator[tuple[_FilteredStream, Any]]:
    """`refused` receives the reasons why tools were left out of listings."""
    async with transport as (reading, writing):
        yield _FilteredStream(reading, refused, on_end), writing


MAX_IMAGES = 4


class _Album:
    """The images of an answer that the model is shown."""

    def __init__(self, room: int) -> None:
        self.images: list[Image] = []
        self._room = room

    def take(self, data: str) -> str:
        """What became of the image."""
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


def make_answer(result: CallToolResult) -> ServerAnswer:
    album = _Album(0 if result.is_error else MAX_IMAGES)
    parts: list[str] = []
    for block in result.content:
        match block:
            case TextContent():
                parts.append(block.text)
            case ImageContent():
                parts.append(f"[{block.mime_type}, {_describe_size(block.data)}: {album.take(block.data)}]")
            case AudioContent():
                parts.append(f"[{block.mime_type}, {_describe_size(block.data)}: not shown]")
            case ResourceLink():
                about = f": {block.description}" if block.description else ""
                parts.append(f"[resource {block.name} at {block.uri}{about}]")
            case EmbeddedResource(resource=resource):
                if isinstance(resource, TextResourceContents):
                    parts.append(f"[resource {resource.uri}]\n{resource.text}")
                    continue
                kind, size = resource.mime_type or "unknown type", _describe_size(resource.blob)
                parts.append(f"[resource {resource.uri}, {kind}, {size}: not shown]")
            case _:
                assert_never(block)
    if result.structured_content is not None and not _is_repeated(result.structured_content, parts):
        parts.append(msgspec.json.encode(result.structured_content).decode())
    return ServerAnswer("\n\n".join(part for part in parts if part), result.is_error, tuple(album.images))


def _describe_size(data: str) -> str:
    try:
        return f"{len(base64.b64decode(data)):,} bytes"
    except (binascii.Error, ValueError):
        return f"{len(data):,} characters that are not base64"


def _is_repeated(structured: Any, parts: list[str]) -> bool:
    """Servers should repeat structured content as text, for clients that do not know it; some wrap the text."""
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
