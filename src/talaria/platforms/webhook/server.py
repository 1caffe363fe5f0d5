"""The HTTP server that routes post to.

A request is trusted only once its signature holds, and confirmed only once its message is on our disk. Whatever
strangers send costs little: their requests are rate-limited, and what is remembered about them is bounded.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Hashable, Mapping
from contextlib import asynccontextmanager
from ipaddress import IPv6Address, ip_address

from talaria.core.clock import Clock
from talaria.core.errors import BadInput, TalariaError
from talaria.net import tls
from talaria.net.stall import StallWatch
from talaria.platforms.base import Refused
from talaria.platforms.webhook import config, intake
from talaria.platforms.webhook.config import WebhookSettings
from talaria.platforms.webhook.intake import Intake

with tls.skip_certificates():
    from aiohttp import web

PATH = "/webhook/"
BURST = 60.0
PER_S = 10.0
MAX_BODY_BYTES = 1 << 20
MAX_BODIES_BYTES = 32 << 20
"""The limit for all bodies that are being read."""
MAX_CONNECTIONS = 256
MAX_REMEMBERED = 20_000
READ_S = 10.0
_MAX_SENDERS = 4_096
_CLOSING_S = 2.0

log = logging.getLogger(__name__)


class Pace:
    """A rate limit per address. Addresses that have been quiet for the longest time are forgotten."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, float]] = {}
        """How many requests were left, and when; the most recent address comes last."""

    def allows(self, remote: str, now: float) -> bool:
        network = remote
        try:
            address = ip_address(remote)
            if isinstance(address, IPv6Address):  # whoever has one IPv6 address has 2⁶⁴ of them
                network = address.exploded[:19]
        except ValueError:
            pass
        left, since = self._left.pop(network, (BURST, now))
        left = min(BURST, left + (now - since) * PER_S)
        self._left[network] = (max(left - 1, 0.0), now)
        if len(self._left) > _MAX_SENDERS:
            del self._left[next(iter(self._left))]
        return left >= 1


class Recent:
    """Remembers keys for at least `keep_s`, and at most twice as long."""

    def __init__(self, keep_s: float, most: int) -> None:
        self._keep_s = keep_s
        self._most = most
        self._new: set[Hashable] = set()
        self._old: set[Hashable] = set()
        self._turned_at = 0.0

    def has(self, key: Hashable, now: float) -> bool:
        self._turn(now)
        return key in self._new or key in self._old

    def add(self, key: Hashable, now: float) -> bool:
        """False if there is no room for it."""
        self._turn(now)
        has_room = len(self._new) + len(self._old) < self._most
        if has_room:
            self._new.add(key)
        return has_room

    def forget(self, key: Hashable) -> None:
        self._new.discard(key)
        self._old.discard(key)

    def _turn(self, now: float) -> None:
        if now - self._turned_at < self._keep_s:
            return
        is_gap = now - self._turned_at >= 2 * self._keep_s
        self._new, self._old, self._turned_at = set(), set() if is_gap else self._new, now


class WebhookRefusal(TalariaError):
    """The error response to a request."""

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
        self._signatures = Recent(2 * config.WINDOW_S, MAX_REMEMBERED)
        self._known = Recent(2 * config.WINDOW_S, MAX_REMEMBERED)
        self._bodies_bytes = 0

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            status, word = await self._receive(request)
            response = web.json_response({"status": word}, status=status)
        except WebhookRefusal as refusal:
            response = web.json_response({"error": str(refusal)}, status=refusal.status, headers=refusal.headers)
        except Exception:
            log.exception("A request to the webhook could not be handled.")
            response = web.json_response({"error": "Something went wrong here."}, status=500)
        response.force_close()
        return response

    async def _receive(self, request: web.BaseRequest) -> tuple[int, str]:
        if not self._pace.allows(request.remote or "", self._clock.monotonic()):
            raise WebhookRefusal(429, "Too many requests.", {"Retry-After": "1"})
        name = request.path.removeprefix(PATH)
        if not request.path.startswith(PATH) or name not in self._settings.routes:
            raise WebhookRefusal(404, "There is no such route.")
        if request.method != "POST":
            raise WebhookRefusal(405, "Only POST is allowed.", {"Allow": "POST"})
        route = self._settings.routes[name]
        proof = config.proof(route, request.headers)
        now = self._clock.now()
        if proof is None:
            raise WebhookRefusal(401, "The signature is missing.")
        if not proof.is_timely(now):
            raise WebhookRefusal(
                401, f"{config.TIMESTAMP} differs by more than {config.WINDOW_S:.0f} s from the time here."
            )
        body = await self._read_body(request)
        if not proof.holds(self._settings.secret_of(name), body):
            raise WebhookRefusal(401, "The signature is wrong.")
        if self._signatures.has(proof.given, self._clock.monotonic()):
            raise WebhookRefusal(409, "This exact request was already received.")
        try:
            arrival = intake.arrival(name, route, body, request.headers, proof.sent_at or now)
        except BadInput as fault:
            raise WebhookRefusal(400, str(fault)) from fault
        message = (arrival.where.chat, arrival.message_id)
        if self._known.has(message, self._clock.monotonic()):
            return 200, "known"
        is_dated = proof.sent_at is not None
        if is_dated and not self._signatures.add(proof.given, self._clock.monotonic()):
            raise _later("Too many requests were accepted lately.")
        if not await self._intake.take(arrival):
            self._signatures.forget(proof.given)
            raise _later("The message could not be stored.")
        self._known.add(message, self._clock.monotonic())
        return 202, "accepted"

    async def _read_body(self, request: web.BaseRequest) -> bytes:
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise _too_large()
        body = bytearray()
        try:
            async with StallWatch(self._clock, READ_S) as watch:
                while True:
                    async with watch.limit(READ_S):
                        chunk = await request.content.readany()
                    if not chunk:
                        return bytes(body)
                    body += chunk
                    self._bodies_bytes += len(chunk)
                    if len(body) > MAX_BODY_BYTES:
                        raise _too_large()
                    if self._bodies_bytes > MAX_BODIES_BYTES:
                        raise _later("Too much is being sent.")
        except TimeoutError:
            raise WebhookRefusal(408, f"The body did not arrive within {READ_S:.0f} s.") from None
        except (ConnectionError, web.RequestPayloadError):
            raise WebhookRefusal(400, "The body broke off.") from None
        finally:
            self._bodies_bytes -= len(body)


def _too_large() -> WebhookRefusal:
    return WebhookRefusal(413, f"The body may have at most {MAX_BODY_BYTES:,} bytes.")


def _later(sentence: str) -> WebhookRefusal:
    return WebhookRefusal(503, f"{sentence} Try again later.", {"Retry-After": "5"})


class _RefusedConnection(asyncio.Protocol):
    """A connection for which there is no room."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            transport.abort()


@asynccontextmanager
async def serve(webhook: WebhookServer, host: str, port: int) -> AsyncGenerator[int]:
    """Yields the port. Raises `Refused`."""
    server = web.Server(
        webhook.answer,
        access_log=None,
        logger=logging.Logger("unheard", logging.CRITICAL),  # noqa: LOG001  (strangers could fill our log with it)
        keepalive_timeout=READ_S,
        lingering_time=_CLOSING_S,
        auto_decompress=False,
    )

    def connect() -> asyncio.Protocol:
        return server() if len(server.connections) < MAX_CONNECTIONS else _RefusedConnection()

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
