"""A loopback HTTP server that plays a model on three wires, from a script, and misbehaves when told to.

It runs its own event loop in a daemon thread, so sync tests, async tests and child processes can all use it.
"""

import asyncio
import json
import logging
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from http.client import responses as reason_phrases
from typing import Any, Literal, Protocol, Self, TypeAlias, cast

from talaria.testing.servers import chat_wire, messages_wire, responses_wire
from talaria.testing.servers.replies import Failure, Faults, JsonObject, Reply, SseEvent, dumped, framed

WireName: TypeAlias = Literal["chat", "responses", "messages"]

log = logging.getLogger(__name__)
_HEAD_LIMIT_BYTES = 2**20


class Wire(Protocol):
    """What each `*_wire` module offers."""

    def document(self, reply: Reply, model: str) -> JsonObject: ...
    def events(self, reply: Reply, model: str) -> Iterator[SseEvent]: ...
    def error(self, status: int, message: str) -> JsonObject: ...


_WIRES: Mapping[WireName, Wire] = {"chat": chat_wire, "responses": responses_wire, "messages": messages_wire}
_ROUTES: Mapping[str, WireName] = {
    "/chat/completions": "chat",
    "/responses": "responses",
    "/messages": "messages",
}


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request as it arrived. Header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    query: str = ""

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)

    @property
    def wire(self) -> WireName | None:
        return _ROUTES.get(self.path.removeprefix("/v1")) if self.method == "POST" else None


Answer: TypeAlias = Reply | Failure | str
Respond: TypeAlias = Callable[[RecordedRequest], Answer]


class ModelServer:
    """A model on loopback, alive inside `with`.

    What was given to `say` is answered first, in order; then `respond` is asked, on the server's own thread, so it must
    not block. With neither left the answer is a 500 that says so.
    """

    def __init__(
        self,
        *,
        respond: Respond | None = None,
        models: Iterable[str] = ("test-model",),
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        self._respond = respond
        self._models = tuple(models)
        self._tls = tls
        self._port = port
        self._script: deque[Answer] = deque()
        self._requests: list[RecordedRequest] = []
        self._connections = 0
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", self._port), backlog=1024)
        self._listener.setblocking(False)
        self._port = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="model-server", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()
        self._listener.close()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def requests(self) -> list[RecordedRequest]:
        with self._changed:
            return list(self._requests)

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        return self._connections

    def say(self, *answers: Answer) -> None:
        self._script.extend(answers)

    def wait_for_requests(self, count: int, timeout_s: float = 5) -> list[RecordedRequest]:
        """Block until `count` requests have arrived. Async tests call it through `asyncio.to_thread`."""
        self._wait_until(lambda: len(self._requests) >= count, f"{count} requests", timeout_s)
        return self.requests

    def wait_for_connections(self, count: int, timeout_s: float = 5) -> None:
        """Block until exactly `count` connections are open; 0 shows that the client let go of them all."""
        self._wait_until(lambda: self._connections == count, f"{count} connections", timeout_s)

    def _wait_until(self, holds: Callable[[], bool], what: str, timeout_s: float) -> None:
        with self._changed:
            if not self._changed.wait_for(holds, timeout_s):
                seen = f"{len(self._requests)} requests, {self._connections} connections"
                raise TimeoutError(f"waited {timeout_s} s for {what}; there are {seen}")

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._accept(group))
                group.create_task(self._close())
        except* _Closed:
            pass

    async def _close(self) -> None:
        await self._closing.wait()
        raise _Closed

    async def _accept(self, group: asyncio.TaskGroup) -> None:
        while True:
            connection, _ = await self._loop.sock_accept(self._listener)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            conversation = group.create_task(self._converse(connection))
            conversation.add_done_callback(lambda _, accepted=connection: accepted.close())  # even if it never began

    async def _converse(self, connection: socket.socket) -> None:
        self._count_connections(+1)
        try:
            with suppress(OSError, EOFError):  # the client hung up
                async with _streams(connection, self._tls) as (reader, writer):
                    while await self._exchange(reader, writer):
                        pass
        finally:
            self._count_connections(-1)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. True when the connection may carry another."""
        try:
            request = await _read_request(reader)
        except (ValueError, asyncio.LimitOverrunError):  # this is not HTTP
            return False
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()
        is_whole = await _send(self._response(request), reader, writer)
        return is_whole and request.headers.get("connection", "").lower() != "close"

    def _count_connections(self, change: int) -> None:
        with self._changed:
            self._connections += change
            self._changed.notify_all()

    def _response(self, request: RecordedRequest) -> "_Response":
        if request.wire is not None:
            return self._model_response(request, _WIRES[request.wire])
        if request.method == "GET" and request.path.removeprefix("/v1") == "/models":
            return _json_response(200, chat_wire.models(self._models))
        return _json_response(404, chat_wire.error(404, f"no such route: {request.method} {request.path}"))

    def _model_response(self, request: RecordedRequest, wire: Wire) -> "_Response":
        asked = _json_object(request.body)
        if asked is None:
            return _json_response(400, wire.error(400, "the body is not a JSON object"))
        match self._next_answer(request, wire):
            case Failure() as failure:
                return _failed(failure, wire)
            case Reply() as reply:
                return _replied(reply, wire, asked)
            case str() as text:
                return _replied(Reply(text), wire, asked)

    def _next_answer(self, request: RecordedRequest, wire: Wire) -> Answer:
        if self._script:
            return self._script.popleft()
        if self._respond is None:
            return Failure(500, wire.error(500, "the script of this ModelServer is exhausted; `say` more"))
        try:
            return self._respond(request)
        except Exception as error:
            log.exception("respond failed for %s %s", request.method, request.path)
            return Failure(500, wire.error(500, f"respond raised {error!r}"))


class _Closed(Exception):
    """No error: it ends the task group, and with that every connection."""


@dataclass(frozen=True, slots=True)
class _Response:
    """An HTTP response whose body is one part with a length, or many in chunked transfer encoding."""

    status: int
    content_type: str
    parts: Sequence[bytes]
    is_chunked: bool = False
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    faults: Faults = field(default_factory=Faults)

    @property
    def head(self) -> bytes:
        framing = "transfer-encoding: chunked" if self.is_chunked else f"content-length: {sum(map(len, self.parts))}"
        lines = [
            f"HTTP/1.1 {self.status} {reason_phrases.get(self.status, '')}",
            f"content-type: {self.content_type}",
            framing,
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def encoded(self, part: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(part), part) if self.is_chunked else part

    @property
    def end(self) -> bytes:
        return b"0\r\n\r\n" if self.is_chunked else b""


def _json_response(status: int, body: JsonObject) -> _Response:
    return _Response(status, "application/json", [dumped(body)])


def _failed(failure: Failure, wire: Wire) -> _Response:
    body = failure.body
    if body is None:
        phrase = reason_phrases.get(failure.status, "Overloaded")
        body = wire.error(failure.status, f"{phrase} (scripted by ModelServer)")
    content = body if isinstance(body, bytes) else dumped(body)
    response = _Response(failure.status, "application/json", [content], headers=failure.headers)
    return _misbehaving(response, failure.faults)


def _replied(reply: Reply, wire: Wire, asked: Mapping[str, Any]) -> _Response:
    model = str(asked.get("model", ""))
    if reply.faults.duplicate_ids:
        reply = reply.with_one_call_id()
    if not asked.get("stream"):
        response = _json_response(200, wire.document(reply, model))
    else:
        told = reply if wire is not chat_wire or _includes_usage(asked) else replace(reply, usage=None)
        parts = list(framed(wire.events(told, model), reply.faults))
        response = _Response(200, "text/event-stream; charset=utf-8", parts, is_chunked=True)
    return _misbehaving(replace(response, headers=reply.headers), reply.faults)


def _includes_usage(asked: Mapping[str, Any]) -> bool:
    options: Mapping[str, Any] = asked.get("stream_options") or {}
    return bool(options.get("include_usage"))


def _misbehaving(response: _Response, faults: Faults) -> _Response:
    if faults.raw_body is None:
        return replace(response, faults=faults)
    parts = [faults.raw_body]
    return replace(response, faults=faults, content_type=faults.content_type, parts=parts, is_chunked=False)


def _json_object(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(body)
    except ValueError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


@asynccontextmanager
async def _streams(
    connection: socket.socket, tls: ssl.SSLContext | None
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter], None]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_HEAD_LIMIT_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=tls)
    # Now `drain` means that the kernel has it all. asyncio's TLS transport pauses at the mark, the plain one above it.
    transport.set_write_buffer_limits(high=1 if tls else 0)
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    try:
        yield reader, writer
    finally:
        transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def _read_request(reader: asyncio.StreamReader) -> RecordedRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request_line, *header_lines = head.rstrip("\r\n").split("\r\n")
    method, _, rest = request_line.partition(" ")
    path, _, query = rest.rpartition(" ")[0].partition("?")
    pairs = (line.partition(":") for line in header_lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return RecordedRequest(method, path, headers, await _read_body(reader, headers), query)


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    body = bytearray()
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return bytes(body)


async def _send(response: _Response, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Write the response as its faults will have it. False when it did not come to its proper end."""
    faults = response.faults
    if faults.hang:
        await reader.read()
        return False
    await asyncio.sleep(faults.first_byte_delay_s)
    await _write(writer, response.head)
    for part in _up_to(faults.last_byte, response.parts):
        await _write(writer, response.encoded(part))
        await asyncio.sleep(faults.chunk_delay_s)
    if faults.stall_at is not None:
        await reader.read()
        return False
    if faults.cuts_connection:
        _prepare_cut(writer, faults)
        return False
    await _write(writer, response.end)
    return True


async def _write(writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(content)
    await writer.drain()


def _up_to(size: int | None, parts: Iterable[bytes]) -> Iterator[bytes]:
    left = size
    for part in parts:
        kept = part[:left]
        if kept:
            yield kept
        if left is not None:
            left -= len(kept)


def _prepare_cut(writer: asyncio.StreamWriter, faults: Faults) -> None:
    if faults.reset:
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
