"""A loopback HTTP server that plays a model on three wires, from a script, with faults if you want them.

Its event loop runs in a daemon thread, so sync tests, async tests and child processes can all use it.
"""

import asyncio
import json
import logging
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from http.client import responses as reason_phrases
from typing import Any, Literal, Protocol, Self, TypeAlias, cast

from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers import chat_wire, messages_wire, responses_wire
from talaria.testing.servers.http_server import HttpRequest, HttpResponse, read_request, send, streams
from talaria.testing.servers.scripted_replies import (
    Failure,
    Faults,
    JsonObject,
    Reply,
    SseEvent,
    dump,
    frame_event,
    report_usage,
)

WireName: TypeAlias = Literal["chat", "responses", "messages"]

log = logging.getLogger(__name__)


class WireModule(Protocol):
    """What each `*_wire` module offers."""

    def document(self, reply: Reply, model: str) -> JsonObject: ...
    def events(self, reply: Reply, model: str) -> Iterator[SseEvent]: ...
    def error(self, status: int, message: str) -> JsonObject: ...


_WIRES: Mapping[WireName, WireModule] = {"chat": chat_wire, "responses": responses_wire, "messages": messages_wire}
_ROUTES: Mapping[str, WireName] = {
    "/chat/completions": "chat",
    "/responses": "responses",
    "/messages": "messages",
}


@dataclass(frozen=True, slots=True)
class RecordedRequest(HttpRequest):
    @property
    def wire(self) -> WireName | None:
        return _ROUTES.get(self.path.removeprefix("/v1")) if self.method == "POST" else None


Answer: TypeAlias = Reply | Failure | str
Respond: TypeAlias = Callable[[RecordedRequest], Answer]


class ModelServer:
    """A model on loopback, alive inside `with`.

    Answers from `say` come first, in order. Then `respond` is called, on the server's own thread, so it must not block.
    Without either, the answer is a 500 that says so.
    """

    def __init__(
        self,
        *,
        respond: Respond | None = None,
        models: Iterable[str] = ("test-model",),
        tls: ssl.SSLContext | None = None,
        port: int = 0,
        listing: Failure | None = None,
    ) -> None:
        """`listing`: the error that is returned for the list of models."""
        self._listing = listing
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
        return self._connections

    def say(self, *answers: Answer) -> None:
        self._script.extend(answers)

    def wait_for_requests(self, count: int, timeout_s: float = PATIENCE_S) -> list[RecordedRequest]:
        """Block until `count` requests have arrived. Async tests call it through `asyncio.to_thread`."""
        self._wait_until(lambda: len(self._requests) >= count, f"{count} requests", timeout_s)
        return self.requests

    def wait_for_connections(self, count: int, timeout_s: float = PATIENCE_S) -> None:
        """Block until exactly `count` connections are open; 0 shows that the client has closed them all."""
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
            conversation.add_done_callback(lambda _, accepted=connection: accepted.close())  # even if it never started

    async def _converse(self, connection: socket.socket) -> None:
        self._count_connections(+1)
        try:
            with suppress(OSError, EOFError):  # the client hung up
                async with streams(connection, self._tls) as (reader, writer):
                    is_open = True
                    while is_open:
                        try:
                            request = await read_request(reader, RecordedRequest)
                        except (ValueError, asyncio.LimitOverrunError):
                            break  # this is not HTTP
                        with self._changed:
                            self._requests.append(request)
                            self._changed.notify_all()
                        is_whole = await send(self._response(request), reader, writer)
                        is_open = is_whole and request.headers.get("connection", "").lower() != "close"
        finally:
            self._count_connections(-1)

    def _count_connections(self, change: int) -> None:
        with self._changed:
            self._connections += change
            self._changed.notify_all()

    def _response(self, request: RecordedRequest) -> HttpResponse:
        if request.wire is not None:
            return self._model_response(request, _WIRES[request.wire])
        if request.method == "GET" and request.path.removeprefix("/v1") == "/models":
            if self._listing is not None:
                return _failure_response(self._listing, chat_wire)
            return _json_response(200, chat_wire.models(self._models))
        return _json_response(404, chat_wire.error(404, f"no such route: {request.method} {request.path}"))

    def _model_response(self, request: RecordedRequest, wire: WireModule) -> HttpResponse:
        try:
            body: object = json.loads(request.body)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return _json_response(400, wire.error(400, "the body is not a JSON object"))
        if self._script:
            answer = self._script.popleft()
        elif self._respond is None:
            answer = Failure(500, wire.error(500, "the script of this ModelServer is exhausted; `say` more"))
        else:
            try:
                answer = self._respond(request)
            except Exception as error:
                log.exception("respond failed for %s %s", request.method, request.path)
                answer = Failure(500, wire.error(500, f"respond raised {error!r}"))
        if isinstance(answer, Failure):
            return _failure_response(answer, wire)
        reply = Reply(answer) if isinstance(answer, str) else answer
        if reply.faults.duplicate_ids:
            reply = reply.with_one_call_id()
        asked = cast("dict[str, Any]", body)
        model = str(asked.get("model", ""))
        if not asked.get("stream"):
            response = _json_response(200, _describe(wire.document(reply, model), reply.faults))
        else:
            options: Mapping[str, Any] = asked.get("stream_options") or {}
            has_usage = wire is not chat_wire or options.get("include_usage")
            events = wire.events(reply if has_usage else replace(reply, usage=None), model)
            changed = (
                (name, data if isinstance(data, str) else _describe(data, reply.faults)) for name, data in events
            )
            parts = list(frame_event(changed, reply.faults))
            response = HttpResponse(200, "text/event-stream; charset=utf-8", parts, is_chunked=True)
        return _apply_faults(replace(response, headers=reply.headers), reply.faults)


class _Closed(Exception):
    """Not an error: ends the task group, and so every connection."""


def _json_response(status: int, body: JsonObject) -> HttpResponse:
    return HttpResponse(status, "application/json", [dump(body)])


def _failure_response(failure: Failure, wire: WireModule) -> HttpResponse:
    body = failure.body
    if body is None:
        phrase = reason_phrases.get(failure.status, "Overloaded")
        body = wire.error(failure.status, f"{phrase} (scripted by ModelServer)")
    content = body if isinstance(body, bytes) else dump(body)
    response = HttpResponse(failure.status, "application/json", [content], headers=failure.headers)
    return _apply_faults(response, failure.faults)


def _describe(data: JsonObject, faults: Faults) -> JsonObject:
    return data if faults.usage is None else report_usage(faults.usage, data)


def _apply_faults(response: HttpResponse, faults: Faults) -> HttpResponse:
    if faults.raw_body is not None:
        parts = [faults.raw_body]
        response = replace(response, content_type=faults.content_type, parts=parts, is_chunked=False)
    if faults.swap is not None:
        response = replace(response, parts=[part.replace(*faults.swap) for part in response.parts])
    if faults.cut_inside is None:
        return replace(response, faults=faults)
    start = b"".join(response.parts).find(faults.cut_inside)
    if start < 0:
        return _json_response(500, {"error": f"this answer does not contain {faults.cut_inside!r}"})
    return replace(response, faults=replace(faults, cut_at=start + len(faults.cut_inside) // 2))
