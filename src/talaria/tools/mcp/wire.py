"""The protocol itself, spoken by the official package."""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from importlib import metadata
from typing import Any, Literal, Protocol, cast

import anyio
from mcp.client.client import Client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, PARSE_ERROR, Implementation, ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from talaria.core.aio import in_thread
from talaria.tools.mcp import http_transport, results
from talaria.tools.mcp.cache import Listing
from talaria.tools.mcp.offers import MAX_TOOLS, ServerTool, distinct, offer
from talaria.tools.mcp.peer import Away, NotMade, ServerAnswer, Visit
from talaria.tools.mcp.results import sift_transport
from talaria.tools.mcp.sandboxing import ConfinedServer
from talaria.tools.mcp.server_entries import ServerEntry
from talaria.tools.mcp.stdio import StdioTransport

MAX_PAGES = 100
LISTEN_AGAIN_S = 30.0
MAX_REASON_CHARS = 300
Mode = Literal["auto", "legacy"]
ABOUT = Implementation(name="talaria", version=metadata.version("talaria-agent"))
FORGOTTEN = frozenset({400, 404})
"""What a server that was restarted says to those it does not know any more."""
UNTOLD = "Server returned an error response"
"""The package's words for a refusal in which the server says nothing that the protocol knows."""


class Link(Protocol):
    """What a transport knows beside its messages."""

    @property
    def last_words(self) -> str: ...


class Unmet(Away):
    """It came to no conversation; another way of beginning one may do."""


async def converse(
    entry: ServerEntry, environment: Mapping[str, str], confined: ConfinedServer | None, visit: Visit
) -> None:
    """See `peer.Converse`. Servers of another age are tried in the way that they know."""
    if entry.url is None:
        await _over_stdio(entry, environment, confined, visit)
    else:
        await _over_http(entry, visit)


async def _over_stdio(
    entry: ServerEntry, environment: Mapping[str, str], confined: ConfinedServer | None, visit: Visit
) -> None:
    process = StdioTransport(entry, environment, confined)
    try:
        await _talk(process, process, "auto", visit)
    except Unmet:  # some leave at a first word that they do not know
        again = StdioTransport(entry, environment, confined)
        await _talk(again, again, "legacy", visit)


async def _over_http(entry: ServerEntry, visit: Visit) -> None:
    async with await _client(entry) as client:
        if entry.type != "sse":
            try:
                await _talk(http_transport.streamable(entry, client), client, "auto", visit)
            except Unmet:
                if client.last.status not in http_transport.NO_SUCH_PLACE:
                    raise
            else:
                return
    old = await _client(entry)
    await _talk(http_transport.event_stream(entry, old), old, "legacy", visit)


async def _client(entry: ServerEntry) -> http_transport.McpHttpClient:
    """Loading certificates takes a while."""
    return await in_thread(lambda: http_transport.client_for(entry))


async def _talk(transport: AbstractAsyncContextManager[Any], link: Link, mode: Mode, visit: Visit) -> None:
    peer: WirePeer | None = None
    stirred = _Stirred()
    refused: list[str] = []
    through = sift_transport(transport, refused, stirred.end)
    try:
        async with Client(through, mode=mode, message_handler=stirred.hear, client_info=ABOUT, cache=None) as client:
            peer = WirePeer(client, refused, stirred, link)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(peer.listen)
                await visit(peer)
                tasks.cancel_scope.cancel()
    except Exception as fault:
        known = _first(fault)
        if isinstance(known, Away):
            raise known from fault
        kind = Unmet if peer is None else Away
        raise kind(link.last_words or _describe_fault(known)) from fault
    if not stirred.is_left:
        raise Away(link.last_words or "closed the connection")


class _Stirred:
    """Something has happened: the tools have changed, or it is over."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.is_over = False
        self.is_left = False
        """By us."""

    def end(self) -> None:
        self.is_over = True
        self.event.set()

    async def hear(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.event.set()


class WirePeer:
    def __init__(self, client: Client, refused: list[str], stirred: _Stirred, link: Link) -> None:
        self._client = client
        self._refused = refused
        self._stirred = stirred
        self._link = link

    async def listing(self) -> Listing:
        if self._client.server_capabilities.tools is None:
            return Listing()
        self._refused.clear()
        try:
            offers = await self._offers()
        except (MCPError, ValidationError, RuntimeError) as fault:
            raise Away(self._link.last_words or _describe_fault(fault)) from fault
        kept, refused = distinct(offers)
        return Listing(kept, (*self._refused, *refused))

    async def _offers(self) -> list[ServerTool]:
        offers: list[ServerTool] = []
        cursor = None
        for _ in range(MAX_PAGES):
            page = await self._client.list_tools(cursor=cursor, cache_mode="bypass")
            for tool in page.tools:
                hints = tool.annotations.model_dump(by_alias=True) if tool.annotations else {}
                offers.append(offer(tool.name, tool.description or tool.title or "", tool.input_schema, hints))
            cursor = page.next_cursor
            if not cursor or len(offers) > MAX_TOOLS:
                break
        return offers

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ServerAnswer:
        if self._stirred.is_over:
            raise NotMade("is gone")
        passage = http_transport.Passage()
        http_transport.PASSAGE.set(passage)
        try:
            result = await self._client.call_tool(tool, dict(arguments))
        except MCPError as fault:
            return self._refusal(fault, passage)
        except ValidationError as fault:
            return ServerAnswer(f"The server's answer is not as MCP wants it: {_short(fault)}.", is_error=True)
        except RuntimeError as fault:
            if self._stirred.is_over:
                raise NotMade("is gone") from fault
            return ServerAnswer(f"The server's answer cannot be used: {_short(fault)}.", is_error=True)
        return await in_thread(lambda: results.answer(result))  # images take a while

    def _refusal(self, fault: MCPError, passage: http_transport.Passage) -> ServerAnswer:
        """An error as an answer. Raises what says that no answer is to be had."""
        words = http_transport.words_for(passage)
        is_forgotten = passage.status in FORGOTTEN and (fault.message == UNTOLD or "session" in fault.message.lower())
        if fault.code != CONNECTION_CLOSED and not is_forgotten:
            return ServerAnswer(f"{fault.message} ({words})" if words else fault.message, is_error=True)
        self._stirred.end()
        if is_forgotten or passage.never_arrived:
            raise NotMade(words) from fault
        raise Away(self._link.last_words or "ended") from fault

    async def wait_for_change(self) -> bool:
        await self._stirred.event.wait()
        self._stirred.event.clear()
        return not self._stirred.is_over

    def leave(self) -> None:
        self._stirred.is_left = True
        self._stirred.end()

    async def listen(self) -> None:
        """Servers of today tell of changes only to those who ask; they reach `_Stirred.hear` all the same."""
        tools = self._client.server_capabilities.tools
        if self._client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
            return
        while not self._stirred.is_over:
            try:
                async with self._client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        pass
            except (MCPError, SubscriptionLost, TimeoutError):
                pass
            await anyio.sleep(LISTEN_AGAIN_S)
            self._stirred.event.set()  # what changed meanwhile was told to nobody


def _first(fault: BaseException) -> BaseException:
    if not isinstance(fault, BaseExceptionGroup):
        return fault
    return _first(cast("BaseExceptionGroup[BaseException]", fault).exceptions[0])


def _describe_fault(fault: BaseException) -> str:
    if isinstance(fault, ValidationError) or (isinstance(fault, MCPError) and fault.code == PARSE_ERROR):
        return "does not answer as an MCP server does"
    words = _short(fault)
    return f"said: {words}" if isinstance(fault, MCPError) else f"failed: {type(fault).__name__}: {words}"


def _short(fault: BaseException) -> str:
    return " ".join(str(fault).split())[:MAX_REASON_CHARS].rstrip(".")
