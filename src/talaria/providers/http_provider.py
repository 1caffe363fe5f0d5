"""A model behind HTTP: any wire, streaming or not, over the shared client."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import assert_never
from urllib.parse import urlsplit

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import Disconnected, ProviderFailure
from talaria.core.messages import Assistant, Message
from talaria.core.pictures import has_images, without_images
from talaria.core.secret import Secret
from talaria.net.client import MAX_ERROR_BODY_BYTES, EventSplitter, HttpClient, Response
from talaria.net.web_settings import Timeouts
from talaria.providers import provider_failures
from talaria.providers.base import Decoder, Delta, Endpoint, ModelRequest, Wire, WireName, is_large
from talaria.providers.catalog import catalog
from talaria.providers.provider_failures import redact_secrets
from talaria.providers.wire_parts import parse_model_list

MAX_DOCUMENT_BYTES = 64 << 20
MAX_STREAM_BYTES = 128 << 20
MAX_LIST_BYTES = 4 << 20
LOOKING = Timeouts(connect_s=5.0, first_byte_s=10.0, chunk_s=10.0, total_s=20.0)
AFTERGLOW_S = 1.0
"""How long a stream may stay open after its answer is complete, to be read to its end so that it
can be reused."""
_NOBODY = "nobody"
"""The origin of no message, so that thinking goes back to nobody."""
_UNSEEN = "[There is an image here that you cannot be shown.]"


class HttpProvider:
    def __init__(self, endpoint: Endpoint, wire: Wire, client: HttpClient, clock: Clock) -> None:
        self.endpoint = endpoint
        self._wire = wire
        self._client = client
        self._clock = clock
        self._address = endpoint.base_url.rstrip("/")

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Assistant]:
        try:
            async with self._client.post(
                self._address + self._wire.path,
                body=self._wire.body(request, self.endpoint, self._encode_history(request)),
                headers={"Content-Type": "application/json", **self._headers(request.key)},
                timeouts=_timeouts(self.endpoint, request),
            ) as response:
                if not 200 <= response.status < 300:
                    raise await self._refusal(response, request)
                if not response.headers.get("Content-Type", "").lower().startswith("text/event-stream"):
                    body = await response.read(MAX_DOCUMENT_BYTES)
                    if body.lstrip()[:1] != b"{":
                        raise provider_failures.unreadable_answer(self.endpoint.label, body)
                    yield self._wire.document(body, self.endpoint)
                    return
                decoder = self._wire.decoder(self.endpoint)
                async for delta in _deltas(response, decoder):
                    yield delta
                yield decoder.finish()
        except ProviderFailure as failure:
            raise self._for_people(failure, request.key) from failure.__cause__
        except UnicodeDecodeError as fault:  # inside what is passed on as it came, such as a call's arguments
            raise provider_failures.unreadable_answer(self.endpoint.label, fault.object) from fault

    async def models(self, key: Secret) -> Sequence[str]:
        headers = self._headers(key)
        try:
            async with self._client.get(f"{self._address}/models", headers=headers, timeouts=LOOKING) as response:
                if response.status in (401, 403) or response.status >= 500:
                    raise await self._refusal(response)
                body = await response.read(MAX_LIST_BYTES)
        except ProviderFailure as failure:
            raise self._for_people(failure, key) from failure.__cause__
        try:
            return parse_model_list(body)
        except provider_failures.UNREADABLE:
            return []  # not every endpoint has such a list

    async def reconnect(self) -> None:
        await self._client.renew(self._address)

    def _headers(self, key: Secret) -> Mapping[str, str]:
        return {**self._wire.headers(key), **dict(self.endpoint.headers)}

    def _encode_history(self, request: ModelRequest) -> Sequence[bytes]:
        """Past messages as bytes; what a repair leaves out changes them, so each encoding is kept
        apart."""
        repairs = request.repairs & {"drop_thinking", "drop_images"}
        origin = _NOBODY if "drop_thinking" in repairs else self.endpoint.origin
        key = " ".join((self.endpoint.origin, *sorted(repairs)))

        def encode(message: Message) -> bytes:
            shown = without_images(message, _UNSEEN) if "drop_images" in repairs else message
            return self._wire.encode(shown, origin)

        return request.history.encode(key, encode)

    async def _refusal(self, response: Response, request: ModelRequest | None = None) -> ProviderFailure:
        body = await response.read(MAX_ERROR_BODY_BYTES)
        now = self._clock.now()
        return provider_failures.from_response(
            self.endpoint.label,
            response.status,
            response.headers,
            body,
            now=now,
            is_large=request is not None and is_large(request, self.endpoint),
            has_images=request is not None and any(map(has_images, request.history)),
        )

    def _for_people(self, failure: ProviderFailure, key: Secret) -> ProviderFailure:
        if failure.kind == "not_listening":
            failure.args = (f"{failure} {_how_to_start(self.endpoint)}",)
        headers = (value for _, value in self.endpoint.headers)
        secrets = (key.reveal(), *(known.reveal() for known in self.endpoint.keys), *headers)
        failure.args = (redact_secrets(str(failure), secrets),)
        return failure


def _how_to_start(endpoint: Endpoint) -> str:
    """For a server on this machine that is not running; one that was configured by hand is known by
    its port."""
    facts = catalog().get(endpoint.provider)
    if facts is None or not facts.is_local:
        port = urlsplit(endpoint.base_url).port
        facts = next((one for one in catalog().values() if one.is_local and urlsplit(one.base_url).port == port), None)
    start = f", e.g. `{facts.start}`" if facts is not None and facts.start else ""
    return f"Start the server{start}, or check base_url in config.yaml."


def _timeouts(endpoint: Endpoint, request: ModelRequest) -> Timeouts:
    """No longer than the turn; an answer that is not streamed may take its whole time before the
    first byte."""
    allowed = endpoint.timeouts
    total_s = allowed.total_s if request.seconds is None else min(allowed.total_s, request.seconds)
    first_byte_s = allowed.first_byte_s if request.is_streaming else total_s
    return msgspec.structs.replace(allowed, first_byte_s=min(first_byte_s, total_s), total_s=total_s)


async def _deltas(response: Response, decoder: Decoder) -> AsyncIterator[Delta]:
    splitter = EventSplitter()
    chunks = response.chunks()
    size_bytes = 0
    async for chunk in chunks:
        size_bytes += len(chunk)
        if size_bytes > MAX_STREAM_BYTES:
            raise Disconnected("The model server sent an endless answer.", kind="invalid_answer")
        for delta in _merge_deltas(delta for data in splitter.feed(chunk) for delta in decoder.feed(data)):
            yield delta
        if decoder.is_complete:
            with suppress(TimeoutError, Disconnected):  # the answer is whole; else the connection is not reused
                async with asyncio.timeout(AFTERGLOW_S):
                    async for _ in chunks:
                        pass
            return
    for delta in _merge_deltas(delta for data in splitter.end() for delta in decoder.feed(data)):
        yield delta


def _merge_deltas(deltas: Iterable[Delta]) -> Iterator[Delta]:
    """What has come together and is of one kind is one. What came before a fault is passed on
    before it."""
    together: list[Delta] = []
    fault: Exception | None = None
    try:
        for delta in deltas:
            together.append(delta)  # noqa: PERF402  (kept also if the next one is not to be had)
    except Exception as raised:  # noqa: BLE001  (raised below)
        fault = raised
    for kind, run in groupby(together, type):
        yield kind("".join(delta.text for delta in run))
    if fault is not None:
        raise fault


def wire_for(name: WireName) -> Wire:
    """Loads only this one, to start quickly."""
    match name:
        case "openai_chat":
            from talaria.providers.openai_chat import OpenAIChat  # noqa: PLC0415

            return OpenAIChat()
        case "openai_responses":
            from talaria.providers.openai_responses import OpenAIResponses  # noqa: PLC0415

            return OpenAIResponses()
        case "anthropic_messages":
            from talaria.providers.anthropic_messages import AnthropicMessages  # noqa: PLC0415

            return AnthropicMessages()
        case _:
            assert_never(name)
