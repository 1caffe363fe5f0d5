"""A server over HTTP: bodies within bounds, and a memory of what went wrong: the protocol's errors do not tell."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from http.client import BAD_REQUEST, responses
from typing import Any, cast

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from talaria.tools.mcp.server_entries import ServerEntry

MAX_BODY_BYTES = 8 << 20
IDLE_S = 300.0
NO_SUCH_PLACE = frozenset({400, 404, 405, 406})
"""What a server that speaks only the older way (server-sent events) says to the newer one."""


class Passage:
    """How far the requests of one call have come."""

    def __init__(self) -> None:
        self.is_unreached = False
        """The last of them did not get as far as the server."""
        self.has_arrived = False
        """One of them did, or may have."""
        self.status: int | None = None
        """Of the last answer, if that was a refusal."""

    @property
    def never_arrived(self) -> bool:
        return self.is_unreached and not self.has_arrived


PASSAGE: ContextVar[Passage | None] = ContextVar("passage", default=None)
"""Of the call that this task is making: the package sends each message in its sender's context."""


class McpHttpClient(httpx2.AsyncClient):
    """As any other, but for what it remembers, of its last message and of each call."""

    last = Passage()

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        noted = [self.last] if request.method == "POST" else []
        call = PASSAGE.get()
        noted += [call] if call is not None else []
        try:
            response = await super().send(request, **options)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError):
            for passage in noted:
                passage.is_unreached = True
            raise
        except BaseException:
            for passage in noted:
                passage.has_arrived = True
            raise
        for passage in noted:
            passage.is_unreached, passage.has_arrived = False, True
            passage.status = response.status_code if response.status_code >= BAD_REQUEST else None
        response.headers.pop("content-encoding", None)  # we ask for none: a small body must not unfold into a huge one
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _Bounded(cast("httpx2.AsyncByteStream", response.stream))
        return response

    @property
    def last_words(self) -> str:
        return words_for(self.last)


def words_for(passage: Passage) -> str:
    """What went wrong, if anything; goes on behind a name."""
    if passage.is_unreached:
        return "cannot be reached"
    if passage.status is None:
        return ""
    return f"answered {passage.status} {responses.get(passage.status, '')}".strip()


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._inner:
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                raise httpx2.ReadError(f"a body longer than {MAX_BODY_BYTES >> 20} MB")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


def client_for(entry: ServerEntry) -> McpHttpClient:
    headers = {name: value.reveal() for name, value in entry.headers.items()}
    limits = httpx2.Timeout(entry.connect_timeout, read=max(IDLE_S, entry.timeout))
    client = McpHttpClient(headers={**headers, "accept-encoding": "identity"}, timeout=limits)
    client.last = Passage()
    return client


def streamable(entry: ServerEntry, client: McpHttpClient) -> AbstractAsyncContextManager[Any]:
    return streamable_http_client(entry.url or "", http_client=client, max_sse_event_size=MAX_BODY_BYTES)


def event_stream(entry: ServerEntry, client: McpHttpClient) -> AbstractAsyncContextManager[Any]:
    """The older way. Opens and closes the client itself."""

    def ready_made(headers: object = None, timeout: object = None, auth: object = None) -> McpHttpClient:  # noqa: ARG001
        return client

    return sse_client(entry.url or "", httpx_client_factory=ready_made)
