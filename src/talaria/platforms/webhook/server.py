"""The HTTP server that routes post to. Nobody is believed before the signature holds, and nothing is confirmed before
it is on our disk; whatever strangers send costs little."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from talaria.core.clock import Clock
from talaria.core.errors import BadInput, TalariaError
from talaria.net import tls
from talaria.net.stall import StallWatch
from talaria.platforms.base import Arrival, Refused
from talaria.platforms.webhook import body_signatures, incoming
from talaria.platforms.webhook.config import WebhookSettings
from talaria.platforms.webhook.intake import Intake
from talaria.platforms.webhook.rate_limits import Pace, Recent

with tls.certificates_unread():
    from aiohttp import web

log = logging.getLogger(__name__)

PATH = "/webhook/"
MAX_BODY_BYTES = 1 << 20
MAX_BODIES_BYTES = 32 << 20
"""Of all that are being read."""
MOST_CONNECTIONS = 256
READ_S = 10.0
MOST_REMEMBERED = 20_000
_CLOSING_S = 2.0


class Turned(TalariaError):
    """The request is turned away."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = headers or {}


class WebhookServer:
    def __init__(self, settings: WebhookSettings, clock: Clock, intake: Intake) -> None:
        self._settings = settings
        self._clock = clock
        self._intake = intake
        self._pace = Pace()
        self._signatures = Recent(2 * body_signatures.WINDOW_S, MOST_REMEMBERED)
        self._known = Recent(2 * body_signatures.WINDOW_S, MOST_REMEMBERED)
        self._bodies_bytes = 0

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            status, word = await self._receive(request)
            response = web.json_response({"status": word}, status=status)
        except Turned as turned:
            response = web.json_response({"error": str(turned)}, status=turned.status, headers=turned.headers)
        except Exception:
            log.exception("A request to the webhook could not be handled.")
            response = web.json_response({"error": "Something went wrong here."}, status=500)
        response.force_close()
        return response

    async def _receive(self, request: web.BaseRequest) -> tuple[int, str]:
        if not self._pace.allows(request.remote or "", self._clock.monotonic()):
            raise Turned(429, "Too many requests.", {"Retry-After": "1"})
        name = self._route(request)
        route = self._settings.routes[name]
        proof = body_signatures.proof(route, request.headers)
        now = self._clock.now()
        if proof is None:
            raise Turned(401, "The signature is missing.")
        if not proof.is_timely(now):
            raise Turned(
                401,
                f"{body_signatures.TIMESTAMP} is more than {body_signatures.WINDOW_S:.0f} s away from the time here.",
            )
        body = await self._body(request)
        if not proof.holds(self._settings.secret_of(name), body):
            raise Turned(401, "The signature is wrong.")
        if self._signatures.has(proof.given, self._clock.monotonic()):
            raise Turned(409, "This very request came before.")
        try:
            arrival = incoming.arrival(name, route, body, request.headers, proof.sent_at or now)
        except BadInput as fault:
            raise Turned(400, str(fault)) from fault
        return await self._accept(arrival, proof)

    def _route(self, request: web.BaseRequest) -> str:
        name = request.path.removeprefix(PATH)
        if not request.path.startswith(PATH) or name not in self._settings.routes:
            raise Turned(404, "There is no such route.")
        if request.method != "POST":
            raise Turned(405, "Only POST is understood.", {"Allow": "POST"})
        return name

    async def _body(self, request: web.BaseRequest) -> bytes:
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise Turned(413, f"The body may have {MAX_BODY_BYTES:,} bytes.")
        body = bytearray()
        try:
            async with StallWatch(self._clock, READ_S) as watch:
                while chunk := await self._chunk(request, watch):
                    body += chunk
                    self._bodies_bytes += len(chunk)
                    if len(body) > MAX_BODY_BYTES:
                        raise Turned(413, f"The body may have {MAX_BODY_BYTES:,} bytes.")
                    if self._bodies_bytes > MAX_BODIES_BYTES:
                        raise _later("Too much is being sent.")
        finally:
            self._bodies_bytes -= len(body)
        return bytes(body)

    async def _chunk(self, request: web.BaseRequest, watch: StallWatch) -> bytes:
        try:
            async with watch.waiting(READ_S):
                return await request.content.readany()
        except TimeoutError:
            raise Turned(408, f"The body did not come within {READ_S:.0f} s.") from None
        except (ConnectionError, web.RequestPayloadError):
            raise Turned(400, "The body broke off.") from None

    async def _accept(self, arrival: Arrival, proof: body_signatures.Proof) -> tuple[int, str]:
        message = (arrival.where.chat, arrival.message_id)
        if self._known.has(message, self._clock.monotonic()):
            return 200, "known"
        is_dated = proof.sent_at is not None
        if is_dated and not self._signatures.add(proof.given, self._clock.monotonic()):
            raise _later("Too many requests were accepted lately.")
        if not await self._intake.take(arrival):
            self._signatures.forget(proof.given)
            raise _later("The message could not be kept.")
        self._known.add(message, self._clock.monotonic())
        return 202, "accepted"


def _later(sentence: str) -> Turned:
    return Turned(503, f"{sentence} Try again later.", {"Retry-After": "5"})


class _Full(asyncio.Protocol):
    """Of a connection for which there is no room."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            transport.abort()


@asynccontextmanager
async def listening(door: WebhookServer, host: str, port: int) -> AsyncGenerator[int]:
    """The port. Raises `Refused`."""
    server = web.Server(
        door.answer,
        access_log=None,
        logger=logging.Logger("unheard", logging.CRITICAL),  # noqa: LOG001  (of it strangers could fill our log)
        keepalive_timeout=READ_S,
        lingering_time=_CLOSING_S,
        auto_decompress=False,
    )

    def connect() -> asyncio.Protocol:
        return server() if len(server.connections) < MOST_CONNECTIONS else _Full()

    try:
        sockets = await asyncio.get_running_loop().create_server(connect, host, port)
    except OSError as fault:
        raise Refused(
            f"Cannot listen on {host}, port {port}: {fault.strerror}. Set gateway.platforms.webhook.listen_port."
        ) from fault
    try:
        yield sockets.sockets[0].getsockname()[1]
    finally:
        sockets.close()
        await server.shutdown(_CLOSING_S)
