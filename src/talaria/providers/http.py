"""A model behind HTTP: any wire, streaming or not, over the shared client."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from talaria.model.errors import Disconnected, ProviderFailure
from talaria.model.messages import Assistant
from talaria.net.client import MAX_ERROR_BODY_BYTES, HttpClient, Response
from talaria.net.sse import EventSplitter
from talaria.net.timeouts import Timeouts
from talaria.providers import failures
from talaria.providers.base import Decoder, Delta, Endpoint, Request, Wire

MAX_DOCUMENT_BYTES = 64 << 20
MAX_STREAM_BYTES = 128 << 20
CHECK = Timeouts(connect_s=5.0, read_s=10.0)
AFTERGLOW_S = 1.0
"""How long a stream may stay open after its answer is complete, to be read to its end and reused."""


class HttpProvider:
    def __init__(self, endpoint: Endpoint, wire: Wire, client: HttpClient) -> None:
        self.endpoint = endpoint
        self._wire = wire
        self._client = client

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Assistant]:
        try:
            async with aclosing(self._stream(request)) as items:
                async for item in items:
                    yield item
        except ProviderFailure as failure:
            raise self._without_key(failure) from failure.__cause__

    async def _stream(self, request: Request) -> AsyncGenerator[Delta | Assistant]:
        endpoint, wire = self.endpoint, self._wire
        encoded = request.history.encoded(endpoint.origin, lambda message: wire.encode(message, endpoint.origin))
        async with self._client.post(
            endpoint.base_url.rstrip("/") + wire.path,
            body=wire.body(request, endpoint, encoded),
            headers={"Content-Type": "application/json", **wire.headers(endpoint.key), **dict(endpoint.headers)},
            timeouts=endpoint.timeouts,
        ) as response:
            if not 200 <= response.status < 300:
                body = await response.read(MAX_ERROR_BODY_BYTES)
                raise failures.refused(endpoint.label, response.status, response.headers, body)
            if not _is_event_stream(response):
                yield self._document(await response.read(MAX_DOCUMENT_BYTES))
                return
            decoder = wire.decoder(endpoint)
            async for delta in _deltas(response, decoder):
                yield delta
            yield decoder.finish()

    async def check(self) -> None:
        endpoint = self.endpoint
        url = f"{endpoint.base_url.rstrip('/')}/models"
        headers = {**self._wire.headers(endpoint.key), **dict(endpoint.headers)}
        async with self._client.get(url, headers=headers, timeouts=CHECK) as response:
            if response.status in (401, 403) or response.status >= 500:
                body = await response.read(MAX_ERROR_BODY_BYTES)
                refusal = failures.refused(endpoint.label, response.status, response.headers, body)
                raise self._without_key(refusal)

    def _without_key(self, failure: ProviderFailure) -> ProviderFailure:
        """Some endpoints quote the key that they refuse."""
        key = self.endpoint.key.reveal()
        if key and key in str(failure):
            failure.args = (str(failure).replace(key, "•••"),)
        return failure

    def _document(self, body: bytes) -> Assistant:
        if body.lstrip()[:1] != b"{":
            raise failures.unreadable(self.endpoint.label, body[:200])
        return self._wire.document(body, self.endpoint)


def _is_event_stream(response: Response) -> bool:
    return response.headers.get("Content-Type", "").startswith("text/event-stream")


async def _deltas(response: Response, decoder: Decoder) -> AsyncIterator[Delta]:
    splitter = EventSplitter()
    chunks = response.chunks()
    size_bytes = 0
    async for chunk in chunks:
        size_bytes += len(chunk)
        if size_bytes > MAX_STREAM_BYTES:
            raise Disconnected("The model server sent an answer without end.")
        for data in splitter.feed(chunk):
            for delta in decoder.feed(data):
                yield delta
        if decoder.is_complete:
            await _read_out(chunks)
            return
    for data in splitter.end():
        for delta in decoder.feed(data):
            yield delta


async def _read_out(chunks: AsyncIterator[bytes]) -> None:
    try:
        async with asyncio.timeout(AFTERGLOW_S):
            async for _ in chunks:
                pass
    except (TimeoutError, Disconnected):
        return  # the answer is whole; only the connection is not reused
