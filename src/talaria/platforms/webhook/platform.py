"""HTTP webhooks as a platform: each route is a chat with a program. Messages to it are signed POSTs."""
# ruff: noqa: ARG002  (programs can do less than people)

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import BadConfig, CertificateRefused, ProviderFailure
from talaria.net.client import HttpClient
from talaria.net.web_settings import Timeouts
from talaria.platforms.base import (
    AccessLost,
    Address,
    Attachment,
    Batch,
    Capabilities,
    ChatInfo,
    Kit,
    NotTaken,
    Outbound,
    PlatformFailure,
    Press,
    Refused,
    Rejected,
    SentId,
    Unsure,
)
from talaria.platforms.http_sessions import NEVER_SENT, parse_retry_after
from talaria.platforms.webhook import intake, server
from talaria.platforms.webhook.config import WebhookSettings, check, sign
from talaria.platforms.webhook.intake import Intake

_ANY_ADDRESS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
_CONNECT_S = 5.0
_TIMEOUTS = Timeouts(connect_s=10.0, first_byte_s=30.0, chunk_s=10.0, total_s=60.0)
_MAX_ANSWER_BYTES = 64 << 10


class _Posted(msgspec.Struct, frozen=True):
    chat: str
    """The route's own name for it."""
    thread: str
    text: str
    """Markdown."""
    key: str
    """A receiver that has seen it must not act on it again."""
    reply_to: str


class _Answer(msgspec.Struct):
    id: str | int = ""


class Webhook:
    name = intake.PLATFORM
    account = intake.PLATFORM
    capabilities = Capabilities(max_chars=100_000, dedup_s=math.inf, max_upload_bytes=0)

    def __init__(self, settings: WebhookSettings, clock: Clock, port: int, intake: Intake, client: HttpClient) -> None:
        self._settings = settings
        self._clock = clock
        self.port = port
        """The port that we listen on."""
        self._intake = intake
        self._client = client

    async def receive(self, cursor: str | None) -> AsyncGenerator[Batch]:
        """There is no cursor: a program that got no answer posts again."""
        host = _ANY_ADDRESS.get(self._settings.listen_host, self._settings.listen_host)
        while True:
            batch = await self._intake.batch()
            if batch is None:
                try:
                    async with asyncio.timeout(_CONNECT_S):
                        _, writer = await asyncio.open_connection(host, self.port)
                except OSError as fault:
                    raise NotTaken(f"The webhook cannot reach itself on port {self.port}.") from fault
                writer.close()
            yield batch or Batch()

    async def acknowledge(self, batch: Batch) -> None:
        self._intake.acknowledge(batch)

    async def send(self, message: Outbound) -> SentId:
        """The receiver is asked to recognise a repeated message by its key. All the same, `NotTaken` is only what it
        certainly has not seen."""
        name, _, chat = message.where.chat.partition("/")
        route = self._settings.routes.get(name)
        if route is None:
            raise AccessLost(f"There is no webhook route {name} any more.")
        if message.file is not None:
            raise Rejected("Files cannot be sent to a webhook.")
        posted = _Posted(chat or name, message.where.thread, message.text, message.key, message.reply_to)
        body = msgspec.json.encode(posted)
        proof = sign(self._settings.secret_of(name), body, self._clock.now())
        headers = {"Content-Type": "application/json", "Idempotency-Key": message.key, **proof}
        try:
            async with self._client.post(route.reply_url, body=body, headers=headers, timeouts=_TIMEOUTS) as response:
                if not 200 <= response.status < 300:
                    retry_after = response.headers.get("Retry-After", "")
                    raise _explain_status(name, response.status, retry_after, self._clock.now())
                try:
                    id = msgspec.json.decode(await response.read(_MAX_ANSWER_BYTES), type=_Answer).id
                except (ProviderFailure, ValueError, RecursionError):
                    id = ""  # the receiver has the message, whatever the body says
                return SentId(str(id) or message.key)
        except ProviderFailure as fault:
            if isinstance(fault, CertificateRefused) or isinstance(fault.__cause__, NEVER_SENT):
                raise NotTaken(f"The webhook route {name} cannot be reached: {fault}") from fault
            raise Unsure(f"The webhook route {name} did not answer: {fault}") from fault
        except BadConfig as fault:
            raise Refused(str(fault)) from fault

    async def edit(self, sent: SentId, message: Outbound) -> None:
        raise Rejected("What was sent to a webhook cannot be changed.")

    async def delete(self, sent: SentId, where: Address) -> None:
        raise Rejected("What was sent to a webhook cannot be taken back.")

    async def show_typing(self, where: Address) -> None:
        """Nobody is looking."""

    async def react(self, where: Address, message_id: str, emoji: str) -> None:
        """Nobody is looking."""

    async def answer(self, press: Press, text: str) -> None:
        """There are no buttons."""

    async def fetch(self, attachment: Attachment, to: Path, max_bytes: int) -> None:
        raise Rejected("Messages from a webhook have no files.")

    async def chat_info(self, where: Address) -> ChatInfo:
        return ChatInfo(where, "dm")

    async def create_thread(self, where: Address, name: str) -> Address | None:
        return None

    async def offer_commands(self, menu: Sequence[tuple[str, str]]) -> None:
        """Programs need no menu."""


@asynccontextmanager
async def open(settings: WebhookSettings, kit: Kit) -> AsyncGenerator[Webhook]:  # noqa: A001  (the loader calls it)
    """Raises `BadConfig` and `Refused`."""
    check(settings)
    intake = Intake(kit.clock)
    webhook = server.WebhookServer(settings, kit.clock, intake)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(HttpClient(kit.clock))
        port = await stack.enter_async_context(server.serve(webhook, settings.listen_host, settings.listen_port))
        stack.callback(intake.close)
        yield Webhook(settings, kit.clock, port, intake, client)


def _explain_status(route: str, status: int, retry_after: str, now: float) -> PlatformFailure:
    """`retry_after`: a number of seconds, or a date."""
    said = f"The reply_url of the webhook route {route} answered with {status}."
    try:
        wait_s = max(0.0, parsedate_to_datetime(retry_after).timestamp() - now)
    except (ValueError, OverflowError):
        wait_s = parse_retry_after(retry_after)
    match status:
        case 410:
            return AccessLost(said)
        case 408 | 425 | 429:
            return NotTaken(said, retry_after_s=wait_s)
        case 503 if wait_s is not None:
            return NotTaken(said, retry_after_s=wait_s)
        case _ if status >= 500:
            return Unsure(said)
        case _ if status < 400:
            return Rejected(f"{said} It must be the final address: redirects are not followed.")
        case _:
            return Rejected(said)
