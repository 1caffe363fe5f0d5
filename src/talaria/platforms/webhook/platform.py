"""HTTP webhooks as a platform: every route is a chat partner."""
# ruff: noqa: ARG002  (programs can do less than people)

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from talaria.net.client import HttpClient
from talaria.platforms.base import (
    Address,
    Attachment,
    Batch,
    Capabilities,
    ChatInfo,
    Kit,
    NotTaken,
    Outbound,
    Press,
    Rejected,
    SentId,
)
from talaria.platforms.webhook import intake, server
from talaria.platforms.webhook.config import WebhookSettings, check
from talaria.platforms.webhook.intake import Intake
from talaria.platforms.webhook.outgoing import WebhookReplies

_ANY_ADDRESS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
_CONNECT_S = 5.0


class Webhook:
    name = intake.PLATFORM
    account = intake.PLATFORM
    capabilities = Capabilities(max_chars=100_000, dedup_s=math.inf, max_upload_bytes=0)

    def __init__(self, host: str, port: int, intake: Intake, replies: WebhookReplies) -> None:
        self._host = _ANY_ADDRESS.get(host, host)
        self.port = port
        """Where we listen."""
        self._intake = intake
        self._replies = replies

    async def receive(self, cursor: str | None) -> AsyncGenerator[Batch]:
        """There is no cursor: whoever was not answered posts again."""
        while True:
            batch = await self._intake.batch()
            if batch is None:
                await self._check_that_we_listen()
            yield batch or Batch()

    async def _check_that_we_listen(self) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, writer = await asyncio.open_connection(self._host, self.port)
        except OSError as fault:
            raise NotTaken(f"The webhook does not hear itself on port {self.port}.") from fault
        writer.close()

    async def acknowledge(self, batch: Batch) -> None:
        self._intake.acknowledge(batch)

    async def send(self, message: Outbound) -> SentId:
        return await self._replies.send(message)

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
        raise Rejected("A webhook brings no files.")

    async def chat_info(self, where: Address) -> ChatInfo:
        return ChatInfo(where, "dm")

    async def create_thread(self, where: Address, name: str) -> Address | None:
        return None

    async def offer_commands(self, menu: Sequence[tuple[str, str]]) -> None:
        """Programs need no menu."""


@asynccontextmanager
async def open(settings: WebhookSettings, kit: Kit) -> AsyncGenerator[Webhook]:  # noqa: A001
    """Raises `BadConfig` and `Refused`."""
    check(settings)
    intake = Intake(kit.clock)
    door = server.WebhookServer(settings, kit.clock, intake)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(HttpClient(kit.clock))
        port = await stack.enter_async_context(server.listening(door, settings.listen_host, settings.listen_port))
        stack.callback(intake.close)
        yield Webhook(settings.listen_host, port, intake, WebhookReplies(settings, client, kit.clock))
