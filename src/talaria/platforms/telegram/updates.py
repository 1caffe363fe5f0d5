"""How Telegram's updates come to us: we ask for them, or Telegram posts them to a webhook.

Either way it forgets an update only after it is on our disk.
"""

import asyncio
import hmac
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from talaria.core.clock import Clock
from talaria.net import tls
from talaria.net.stall import StallWatch
from talaria.platforms.base import Batch, Refused
from talaria.platforms.telegram import incoming
from talaria.platforms.telegram.bot_api import FAULTS, BotApi, interruption, replace_lone_surrogates
from talaria.platforms.telegram.config import TelegramWebhookSettings

with tls.skip_certificates():
    from aiohttp import web

ALLOWED_UPDATES = ("message", "callback_query")
LEAVE_S = 5.0
_SLACK_S = 10.0

PULSE_S = 30.0
KEEP_S = 25.0
"""How long Telegram is kept waiting for what it brought to be on our disk."""
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
    """Telegram forgets what lies before the offset of the next question, so that offset is our acknowledgement: nothing
    is asked for before the last batch is on our disk."""

    def __init__(self, api: BotApi, me: incoming.TelegramAccount, poll_s: int) -> None:
        self._api = api
        self._me = me
        self._poll_s = poll_s
        self._offset = 0
        """The first update that is not on our disk; 0: whatever the service thinks."""
        self._told = 0
        """The offset that the service knows."""
        self._is_kept = asyncio.Event()

    @property
    def pulse_s(self) -> float:
        return self._poll_s + _SLACK_S

    async def receive(self, cursor: str | None) -> AsyncGenerator[Batch]:
        self._offset = int(cursor) + 1 if cursor is not None and cursor.isdecimal() else 0
        poll_s = 0  # at first only to hear that it answers
        while True:
            try:
                result = await self._api.call("getUpdates", self._question(poll_s), timeout_s=poll_s + _SLACK_S)
            except FAULTS as error:
                raise interruption(error) from None
            poll_s = self._poll_s
            found = incoming.updates(result, self._me)
            if not found:
                yield Batch()
                continue
            last = found[-1].id  # not the highest: after a week of silence Telegram counts anew
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

    async def leave(self) -> None:
        """Tell the service what is on our disk, so that the next of us does not hear it again."""
        if self._offset == self._told:
            return
        with suppress(*FAULTS, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._api.call("getUpdates", self._question(0), timeout_s=LEAVE_S)

    def _question(self, poll_s: int) -> dict[str, Any]:
        self._told = self._offset
        return {"timeout": poll_s, "allowed_updates": ALLOWED_UPDATES, "offset": self._offset or None}


class _WebhookInfo(msgspec.Struct, frozen=True):
    url: str = ""
    pending_update_count: int = 0
    last_error_message: str = ""


class TelegramWebhook:
    """Telegram is answered well once what it brought is on our disk; otherwise it comes again."""

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
        hook = {"url": settings.url, "secret_token": settings.secret_token.reveal(), "allowed_updates": ALLOWED_UPDATES}
        try:
            await self._api.call("setWebhook", hook)
        except FAULTS as error:
            raise interruption(error) from None

    async def _accept(self, request: web.Request) -> web.Response:
        told = request.headers.get(_SECRET, "")
        if not hmac.compare_digest(told.encode(), self._settings.secret_token.reveal().encode()):
            return web.Response(status=403)
        try:
            async with asyncio.timeout(_BODY_S):
                body = await request.read()
        except TimeoutError:
            return web.Response(status=408)
        update = incoming.update(body, self._me) or incoming.update(replace_lone_surrogates(body), self._me)
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
            info = await self._api.ask(_WebhookInfo, "getWebhookInfo")
        except FAULTS as error:
            raise interruption(error) from None
        if info.url != self._settings.url:
            raise Refused("Another program took the messages of this Telegram bot elsewhere. Stop it.")
        if info.pending_update_count and info.last_error_message:
            log.warning("Telegram cannot deliver to the webhook: %s", info.last_error_message)
            return False
        return True
