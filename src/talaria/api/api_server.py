"""What all routes of the HTTP API have in common: who may ask, how much, and how the answer is sent.

Nothing of a request is read before its token is known, and nothing that strangers send is kept.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Protocol

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send

from talaria.api.api_errors import DO_NOT_RETRY, ApiError, later, too_large, translate
from talaria.api.api_requests import ApiRequests
from talaria.api.api_settings import ApiSettings
from talaria.api.api_tokens import digest_of
from talaria.api.file_links import FileLinks, LinkedText, markdown_link
from talaria.api.sent_content import Uploads
from talaria.core.errors import TalariaError
from talaria.core.ids import SessionId
from talaria.store.api_ports import ApiToken
from talaria.store.api_ports import Scope as TokenScope

JSON = "application/json"
MAX_BODY_BYTES = 1 << 20
MAX_UPLOAD_BYTES = 20 << 20
MAX_CHAT_BODY_BYTES = MAX_UPLOAD_BYTES * 4 // 3 + (4 << 20)
"""Files come as base64."""
MAX_BODIES_BYTES = 256 << 20
"""Of all bodies that are being read."""
BODY_WITHIN_S = 30.0
EXPOSED_HEADERS = "X-Talaria-Session, X-Talaria-Run, Retry-After"
"""What the scripts of web pages may read of an answer."""
KEEP_ALIVE_S = 15.0
"""After which a stream says that it is alive."""
ANSWERED_WITHIN_S = 1.0
"""When the gateway stops."""
MOST_PACED = 4096

NOBODY = ApiToken(name="", digest="", scopes=())

encode = msgspec.json.Encoder().encode
log = logging.getLogger(__name__)


class ApiCall(msgspec.Struct, frozen=True):
    """A request that was let in."""

    request: Request
    token: ApiToken
    server: "ApiServer"
    is_signed: bool = False
    """It came by a signed link, from anybody."""

    @property
    def requests(self) -> ApiRequests:
        return self.server.requests

    @property
    def now(self) -> float:
        return self.requests.gateway.state.host.clock.now()

    def digest(self, body: bytes) -> str:
        """Of all that distinguishes this request from another one."""
        return hashlib.sha256(self.request.url.path.encode() + b"\n" + body).hexdigest()

    def make_linked_text(self, session: SessionId) -> LinkedText:
        def link(path: str) -> str:
            base = (self.server.settings.public_url or str(self.request.base_url)).rstrip("/")
            return markdown_link(path, self.server.links.make(base, session, path, self.now))

        return LinkedText(link)

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """From the query. Raises `ApiError`."""
        given = self.request.query_params.get(name)
        if given is None:
            return default
        if not given.isascii() or not given.isdecimal() or len(given) > 16 or not least <= int(given) <= most:
            raise ApiError(400, f"{name} must be a number from {least} to {most}.", "invalid_value", param=name)
        return int(given)

    async def is_still_valid(self) -> bool:
        """Whether its token is, for what lasts long."""
        token = await self.requests.store.api_tokens.find(self.token.digest)
        return token is not None and token.is_valid(self.now)

    async def read_body(self, most_bytes: int = MAX_BODY_BYTES) -> bytes:
        return await self.server.read_body(self.request, most_bytes)


Handler = Callable[[ApiCall], Awaitable[Response]]


class Monitor(Protocol):
    """What the gateway says about itself."""

    def complaints(self) -> Sequence[str]:
        """What is wrong, a sentence each."""
        ...

    def is_ready(self) -> bool:
        """New messages are answered."""
        ...

    async def metrics(self) -> str:
        """In the format of Prometheus."""
        ...


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path."""

    method: str
    path: str
    """As Starlette writes it."""
    scope: TokenScope
    run: Handler
    summary: str
    takes: Any = None
    """The type of its body."""
    gives: Any = None
    """The type of its answer; None: see `description`."""
    description: str = ""
    queries: Mapping[str, str] = {}
    """What each parameter of the query means."""
    headers: Mapping[str, str] = {}
    status: int = 200
    errors: tuple[int, ...] = ()
    """Besides those of all operations."""
    is_stream: bool = False
    is_signed: bool = False
    """A signed link does, without a token."""


def reply(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode(content) + b"\n", status, headers, media_type=JSON)  # people read it with curl, too


class RequestPace:
    """How often each token asks: so many requests per minute, also all at once."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, float]] = {}
        """How many were left, and when."""

    def wait_s(self, name: str, per_minute: int, now: float) -> float:
        """How long until the next request is taken; 0: this one is."""
        left, since = self._left.pop(name, (float(per_minute), now))
        left = min(float(per_minute), left + (now - since) * per_minute / 60)
        is_taken = left >= 1
        self._left[name] = (left - 1 if is_taken else left, now)
        if len(self._left) > MOST_PACED:
            del self._left[next(iter(self._left))]
        return 0.0 if is_taken else (1 - left) * 60 / per_minute


class EventStream(Response):
    """Server-sent events. Ends when the client hangs up, and says now and then that it is alive."""

    def __init__(
        self,
        pieces: AsyncGenerator[bytes],
        headers: Mapping[str, str] | None = None,
        on_hang_up: Callable[[], Awaitable[None]] | None = None,
        may_go_on: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """`may_go_on` is asked from time to time."""
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})})
        self._pieces = pieces
        self._on_hang_up = on_hang_up
        self._may_go_on = may_go_on
        del self.headers["content-length"]
        self.headers["content-type"] = "text/event-stream; charset=utf-8"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        sending = asyncio.create_task(self._send(send), name="event stream")
        listening = asyncio.ensure_future(until_hung_up(receive))
        try:
            while not sending.done():
                done, _ = await asyncio.wait(
                    [sending, listening], timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED
                )
                if listening in done:
                    break
                if not done:
                    if self._may_go_on is not None and not await self._may_go_on():
                        sending.cancel()
                        await asyncio.wait([sending])
                        await send({"type": "http.response.body", "body": b"", "more_body": False})
                        return
                    await send({"type": "http.response.body", "body": b": alive\n\n", "more_body": True})
            if not sending.done():
                if self._on_hang_up is not None:
                    await self._on_hang_up()
            else:
                sending.result()
        except OSError:  # it hung up while we were writing
            if self._on_hang_up is not None:
                await self._on_hang_up()
        finally:
            for task in (sending, listening):
                task.cancel()
            await asyncio.wait([sending, listening])

    async def _send(self, send: Send) -> None:
        async with aclosing(self._pieces) as pieces:
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def until_hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class ApiServer:
    def __init__(
        self,
        settings: ApiSettings,
        requests: ApiRequests,
        operations: Sequence[Operation],
        *,
        links: FileLinks,
        uploads: Uploads,
        monitor: Monitor,
        remove_files: Callable[[SessionId], None],
    ) -> None:
        """`remove_files` deletes what a conversation leaves on the disk; it blocks."""
        self.settings = settings
        self.requests = requests
        self.links = links
        self.uploads = uploads
        self.monitor = monitor
        self.remove_files = remove_files
        self._paths: dict[str, dict[str, Operation]] = {}
        for one in operations:
            self._paths.setdefault(one.path, {})[one.method] = one
        self._patterns = [(path, *compile_path(path)) for path in self._paths if "{" in path]
        self._pace = RequestPace()
        self._bodies_bytes = 0
        self._serving: set[asyncio.Task[Any]] = set()
        self._is_closing = False

    async def close(self) -> None:
        """What is about to be answered is; requests that still wait, and streams, are told that the gateway stops."""
        self._is_closing = True
        if self._serving:
            await asyncio.wait(self._serving, timeout=ANSWERED_WITHIN_S)
        for task in self._serving:
            task.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  (a coroutine runs in one)
        self._serving.add(task)
        response: Response | None = None
        try:
            response = await self._respond(scope, receive)
            with suppress(OSError):  # it has hung up
                await response(scope, receive, send)
        except ClientDisconnect:
            pass
        except asyncio.CancelledError:
            if not self._is_closing:
                raise
            error = later("The gateway stops. Send the request again when it runs.")
            if isinstance(response, EventStream):
                body = b"data: " + encode(error.body) + b"\n\n"
                await send({"type": "http.response.body", "body": body, "more_body": False})
            elif response is None:
                await reply(error.body, error.status, error.headers)(scope, receive, send)
        finally:
            self._serving.discard(task)

    async def _respond(self, scope: Scope, receive: Receive) -> Response:
        request = Request(scope, receive)
        extra: dict[str, str] = {}
        try:
            response = await self._answer(scope, request, extra)
        except ClientDisconnect:
            raise
        except TalariaError as fault:
            error = translate(fault)
            response = reply(error.body, error.status, error.headers)
        except Exception:
            log.exception("%s %s broke", scope["method"], scope["path"])
            error = ApiError(500, "Something went wrong here; the log has the details.", headers=DO_NOT_RETRY)
            response = reply(error.body, 500, error.headers)
        response.headers["X-Content-Type-Options"] = "nosniff"
        for name, value in extra.items():
            response.headers[name] = value
        return response

    async def _answer(self, scope: Scope, request: Request, extra: dict[str, str]) -> Response:
        host = request.headers.get("host", "")
        if _host_name(host) not in self.settings.allowed_hosts:
            raise ApiError(
                403, f"The host {host[:100]!r} is not served here. Add it to api.hosts if it should be.", "host"
            )
        origin = request.headers.get("origin")
        if origin is not None:
            if origin not in self.settings.origins:
                raise ApiError(403, "Web pages of this origin may not call this API.", "origin")
            extra |= {
                "Access-Control-Allow-Origin": origin,
                "Access-Control-Expose-Headers": EXPOSED_HEADERS,
                "Vary": "Origin",
            }
        methods, parameters = self._match(scope["path"])
        if request.method == "OPTIONS" and origin is not None and methods:
            # Clients in browsers send headers of their own, such as X-Stainless-Lang.
            allowed = request.headers.get("access-control-request-headers", "Authorization, Content-Type")
            extra |= {"Access-Control-Allow-Methods": ", ".join(methods), "Access-Control-Allow-Headers": allowed}
            return Response(status_code=204)
        operation = methods.get(request.method)
        if operation is not None and operation.is_signed and self._is_signed(request, parameters):
            scope["path_params"] = parameters
            return await operation.run(ApiCall(request, NOBODY, self, is_signed=True))
        token = await self._find_token(request)
        if not methods:
            raise ApiError(
                404, f"There is no {scope['path'][:100]!r} here; /openapi.json lists all paths.", "unknown_path"
            )
        scope["path_params"] = parameters
        if operation is None:
            raise ApiError(405, f"Use {' or '.join(methods)}.", "method", headers={"Allow": ", ".join(methods)})
        if operation.scope not in token.scopes and "admin" not in token.scopes:
            raise ApiError(403, f"The token {token.name} does not have the scope {operation.scope}.", "missing_scope")
        per_minute = token.requests_per_minute or self.settings.requests_per_minute
        wait_s = self._pace.wait_s(token.name, per_minute, self.requests.gateway.state.host.clock.monotonic())
        if wait_s > 0:
            sentence = (
                f"The token {token.name} may send {per_minute} requests a minute; the next one in {wait_s:.0f} s."
            )
            raise ApiError(429, sentence, "rate_limit", headers={"Retry-After": f"{wait_s + 0.5:.0f}"})
        return await operation.run(ApiCall(request, token, self))

    def _match(self, path: str) -> tuple[Mapping[str, Operation], Mapping[str, object]]:
        """What may be done at this path, and its parameters."""
        if (methods := self._paths.get(path)) is not None:
            return methods, {}
        for name, pattern, _, convertors in self._patterns:
            if (found := pattern.match(path)) is not None:
                return self._paths[name], {
                    key: convertors[key].convert(text) for key, text in found.groupdict().items()
                }
        return {}, {}

    def _is_signed(self, request: Request, parameters: Mapping[str, object]) -> bool:
        query, now = request.query_params, self.requests.gateway.state.host.clock.now()
        path, expires, signature = (query.get(name, "") for name in ("path", "expires", "signature"))
        return self.links.is_valid(str(parameters.get("id")), path, expires, signature, now)

    async def _find_token(self, request: Request) -> ApiToken:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        token: ApiToken | None = None
        if kind.lower() == "bearer" and given:
            token = await self.requests.store.api_tokens.find(digest_of(given.strip()))
        if token is None or not token.is_valid(self.requests.gateway.state.host.clock.now()):
            sentence = "Send a valid token: Authorization: Bearer …; `talaria api token create NAME` makes one."
            raise ApiError(401, sentence, "invalid_token", headers={"WWW-Authenticate": "Bearer"})
        return token

    async def read_body(self, request: Request, most_bytes: int) -> bytes:
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > most_bytes:
            raise too_large(most_bytes)
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                async for chunk in request.stream():
                    body += chunk
                    self._bodies_bytes += len(chunk)
                    if len(body) > most_bytes:
                        raise too_large(most_bytes)
                    if self._bodies_bytes > MAX_BODIES_BYTES:
                        raise later("Too much is being sent at this moment.")
        except TimeoutError:
            sentence = f"The body did not arrive within {BODY_WITHIN_S:.0f} s."
            raise ApiError(408, sentence, "too_slow", headers={"Connection": "close"}) from None
        finally:
            self._bodies_bytes -= len(body)
        return bytes(body)


def _host_name(host: str) -> str:
    """Without the port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()
