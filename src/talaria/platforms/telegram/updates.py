"""How Telegram's updates reach us: by long polling, or through a webhook.

Either way, Telegram forgets an update only once it is on our disk.
"""

import asyncio
import hmac
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from talaria.core.clock import Clock
from talaria.net import tls
from talaria.net.stall import StallWatch
from talaria.platforms.base import Batch, Refused
from talaria.platforms.telegram import incoming
from talaria.platforms.telegram.bot_api import FAULTS, BotApi, replace_lone_surrogates, to_connection_failure
from talaria.platforms.telegram.config import TelegramWebhookSettings

with tls.skip_certificates():
    from aiohttp import web

ALLOWED_UPDATES = ("message", "callback_query")
CONFIRM_S = 5.0
_SLACK_S = 10.0
PULSE_S = 30.0
KEEP_S = 25.0
"""How long a webhook request may wait for its update to be on our disk."""
MAX_BODY_BYTES = 1 << 20
_BODY_S = 10.0
_MAX_WAITING = 1000
_SECRET = "X-Telegram-Bot-Api-Secret-Token"  # noqa: S105  (a header's name)

log = logging.getLogger(__name__)


class UpdateFeed(Protocol):
    @property
    def pulse_s(self) -> float: ...
    def receive(self, cursor: str | None) -> AsyncGenerator[Batch]: ...
    async def acknowledge(self, batch: Batch) -> None: ...


class Polling:
    """Long polling. The offset of a `getUpdates` call acknowledges all updates before it, so the next call waits until
    the last batch is on our disk."""

    def __init__(self, api: BotApi, me: incoming.TelegramAccount, poll_s: int) -> None:
        self._api = api
        self._me = me
        self._poll_s = poll_s
        self._offset = 0
        """The first update that is not on our disk; 0: wherever the service is."""
        self._confirmed = 0
        """The offset of the latest `getUpdates` call."""
        self._is_kept = asyncio.Event()

    @property
    def pulse_s(self) -> float:
        return self._poll_s + _SLACK_S

    async def receive(self, cursor: str | None) -> AsyncGenerator[Batch]:
        self._offset = int(cursor) + 1 if cursor is not None and cursor.isdecimal() else 0
        poll_s = 0  # the first call only checks that Telegram answers
        while True:
            try:
                result = await self._get_updates(poll_s, timeout_s=poll_s + _SLACK_S)
            except FAULTS as error:
                raise to_connection_failure(error) from None
            poll_s = self._poll_s
            found = incoming.updates(result, self._me)
            if not found:
                yield Batch()
                continue
            last = found[-1].id  # not the highest: after a week without updates Telegram restarts the ids
            items = tuple(update.item for update in found if update.item is not None)
            self._is_kept.clear()
            yield Batch(items, cursor=str(last), token=str(last))
            if items:
                await self._is_kept.wait()
            self._offset = last + 1

    async def acknowledge(self, batch: Batch) -> None:
        if batch.token:
            self._offset = int(batch.token) + 1
            self._is_kept.set()

    async def confirm(self) -> None:
        """Acknowledge what is on our disk, so that the next process does not receive it again."""
        if self._offset == self._confirmed:
            return
        with suppress(*FAULTS, TimeoutError):
            async with asyncio.timeout(CONFIRM_S):
                await self._get_updates(0, timeout_s=CONFIRM_S)

    async def _get_updates(self, poll_s: int, timeout_s: float) -> msgspec.Raw:
        self._confirmed = self._offset
        parameters = {"timeout": poll_s, "allowed_updates": ALLOWED_UPDATES, "offset": self._offset or None}
        return await self._api.call("getUpdates", parameters, timeout_s=timeout_s)


class _WebhookInfo(msgspec.Struct, frozen=True):
    url: str = ""
    pending_update_count: int = 0
    last_error_message: str = ""


class TelegramWebhook:
    """A request is answered with 200 once its update is on our disk; otherwise Telegram repeats it."""

    pulse_s = PULSE_S * 2

    def __init__(
        self, api: BotApi, settings: TelegramWebhookSettings, me: incoming.TelegramAccount, clock: Clock
    ) -> None:
        self._api = api
        self._settings = settings
        self._me = me
        self._clock = clock
        self._waiting: asyncio.Queue[Batch] = asyncio.Queue(_MAX_WAITING)
        self._kept: dict[str, asyncio.Future[bool]] = {}

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[None]:
        """Raises `NotTaken` and `Refused`."""
        settings = self._settings
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post(urlsplit(settings.url).path or "/", self._accept)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, settings.listen_host, settings.listen_port).start()
            except OSError as fault:
                at = f"{settings.listen_host}:{settings.listen_port}"
                raise Refused(f"The Telegram webhook cannot listen at {at}: {fault.strerror or fault}.") from None
            secret = settings.secret_token.reveal()
            hook = {"url": settings.url, "secret_token": secret, "allowed_updates": ALLOWED_UPDATES}
            try:
                await self._api.call("setWebhook", hook)
            except FAULTS as error:
                raise to_connection_failure(error) from None
            yield
        finally:
            for kept in self._kept.values():
                kept.set_result(False)
            await runner.cleanup()

    async def receive(self, cursor: str | None) -> AsyncGenerator[Batch]:  # noqa: ARG002  (Telegram keeps it)
        while True:
            try:
                async with StallWatch(self._clock, PULSE_S) as watch, watch.limit(PULSE_S):
                    batch = await self._waiting.get()
            except TimeoutError:
                try:
                    info = await self._api.ask(_WebhookInfo, "getWebhookInfo")
                except FAULTS as error:
                    raise to_connection_failure(error) from None
                if info.url != self._settings.url:
                    raise Refused("Another program sends this Telegram bot's messages elsewhere. Stop it.") from None
                if info.pending_update_count and info.last_error_message:
                    log.warning("Telegram cannot deliver to the webhook: %s", info.last_error_message)
                    continue
                batch = Batch()
            yield batch

    async def acknowledge(self, batch: Batch) -> None:
        kept = self._kept.get(batch.token)
        if kept is not None and not kept.done():
            kept.set_result(True)

    async def _accept(self, request: web.Request) -> web.Response:
        given = request.headers.get(_SECRET, "")
        if not hmac.compare_digest(given.encode(), self._settings.secret_token.reveal().encode()):
            return web.Response(status=403)
        try:
            async with asyncio.timeout(_BODY_S):
                body = await request.read()
        except TimeoutError:
            return web.Response(status=408)
        update = incoming.update(body, self._me) or incoming.update(replace_lone_surrogates(body), self._me)
        if update is None:
            return web.Response(status=400)
        if update.item is None:
            return web.Response(status=200)
        if self._waiting.full():
            return web.Response(status=503)
        token = str(update.id)
        kept = self._kept[token] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait(Batch((update.item,), token, token))
        try:
            async with StallWatch(self._clock, KEEP_S) as watch, watch.limit(KEEP_S):
                is_kept = await kept
        except TimeoutError:
            is_kept = False  # if it reaches our disk later, Telegram still sends it again: a duplicate
        finally:
            self._kept.pop(token, None)
        return web.Response(status=200 if is_kept else 503)
