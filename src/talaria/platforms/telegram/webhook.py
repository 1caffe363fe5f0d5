"""Telegram comes to us. It is answered well once what it brought is on our disk; otherwise it comes again."""

import asyncio
import hmac
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from telegram import Bot, WebhookInfo
from telegram.error import TelegramError

from talaria.core.clock import Clock
from talaria.net import tls
from talaria.net.stall import StallWatch
from talaria.platforms.base import Batch, Refused
from talaria.platforms.telegram import failures, incoming
from talaria.platforms.telegram.config import TelegramWebhookSettings
from talaria.platforms.telegram.polling import ALLOWED_UPDATES
from talaria.platforms.telegram.transport import mended

with tls.skip_certificates():
    from aiohttp import web

PULSE_S = 30.0
KEEP_S = 25.0
"""How long Telegram is kept waiting for what it brought to be on our disk."""
MAX_BODY_BYTES = 1 << 20
_BODY_S = 10.0
_MAX_WAITING = 1000
_SECRET = "X-Telegram-Bot-Api-Secret-Token"  # noqa: S105  (a header's name)

log = logging.getLogger(__name__)


class TelegramWebhook:
    pulse_s = PULSE_S * 2

    def __init__(self, bot: Bot, settings: TelegramWebhookSettings, me: incoming.TelegramAccount, clock: Clock) -> None:
        self._bot = bot
        self._settings = settings
        self._me = me
        self._clock = clock
        self._waiting: asyncio.Queue[Batch] = asyncio.Queue(_MAX_WAITING)
        self._kept: dict[str, asyncio.Future[bool]] = {}

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        """Raises `Refused` when nobody can listen there."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post(urlsplit(self._settings.url).path or "/", self._accept)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await self._listen(runner)
            yield
        finally:
            for kept in self._kept.values():
                kept.set_result(False)
            await runner.cleanup()

    async def receive(self, cursor: str | None) -> AsyncGenerator[Batch]:  # noqa: ARG002  (Telegram knows)
        while True:
            try:
                async with StallWatch(self._clock, PULSE_S) as watch, watch.limit(PULSE_S):
                    batch = await self._waiting.get()
            except TimeoutError:
                if not await self._is_alive():
                    continue
                batch = Batch()
            yield batch

    async def acknowledge(self, batch: Batch) -> None:
        kept = self._kept.get(batch.token)
        if kept is not None and not kept.done():
            kept.set_result(True)

    async def _listen(self, runner: web.AppRunner) -> None:
        settings = self._settings
        try:
            await web.TCPSite(runner, settings.listen_host, settings.listen_port).start()
        except OSError as fault:
            at = f"{settings.listen_host}:{settings.listen_port}"
            raise Refused(f"The webhook of Telegram cannot listen at {at}: {fault.strerror or fault}.") from None
        try:
            await self._bot.set_webhook(
                settings.url, allowed_updates=ALLOWED_UPDATES, secret_token=settings.secret_token.reveal()
            )
        except TelegramError as error:
            raise failures.interrupted(error) from None

    async def _accept(self, request: web.Request) -> web.Response:
        told = request.headers.get(_SECRET, "")
        if not hmac.compare_digest(told.encode(), self._settings.secret_token.reveal().encode()):
            return web.Response(status=403)
        try:
            async with asyncio.timeout(_BODY_S):
                body = await request.read()
        except TimeoutError:
            return web.Response(status=408)
        update = incoming.update(body, self._me) or incoming.update(mended(body), self._me)
        if update is None:
            return web.Response(status=400)
        is_kept = update.item is None or await self._keep(Batch((update.item,), str(update.id), str(update.id)))
        return web.Response(status=200 if is_kept else 503)

    async def _keep(self, batch: Batch) -> bool:
        """Whether it came to our disk in time. If it comes there later, Telegram brings it again: a duplicate."""
        if self._waiting.full():
            return False
        kept = self._kept[batch.token] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait(batch)
        try:
            async with StallWatch(self._clock, KEEP_S) as watch, watch.limit(KEEP_S):
                return await kept
        except TimeoutError:
            return False
        finally:
            self._kept.pop(batch.token, None)

    async def _is_alive(self) -> bool:
        """Whether Telegram still comes here. Raises `NotTaken` and `Refused`."""
        try:
            info = await self._bot.get_webhook_info()
        except TelegramError as error:
            raise failures.interrupted(error) from None
        if info.url != self._settings.url:
            raise Refused("Another program took the messages of this Telegram bot elsewhere. Stop it.")
        return not self._is_in_trouble(info)

    def _is_in_trouble(self, info: WebhookInfo) -> bool:
        if not info.pending_update_count or not info.last_error_message:
            return False
        log.warning("Telegram cannot deliver to the webhook: %s", info.last_error_message)
        return True
