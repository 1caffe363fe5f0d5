"""Telegram's queue of updates, and the two ways out of it: getUpdates and a webhook."""

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import aiohttp

from talaria.testing.servers.telegram_chats import BotApiError, bad_request

TAKEN_OVER = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
HAS_WEBHOOK = (
    "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first"
)
RETRY_S = 0.05
_AHEAD = 10
"""An offset that is further ahead than this is ignored: Telegram has restarted the ids."""

Update = dict[str, Any]


class Conflict(Exception):
    """Another program gets the updates."""


class Updates:
    def __init__(self) -> None:
        self._queue: list[Update] = []
        self._past: list[Update] = []
        self._next_id = 1000
        self._allowed: frozenset[str] | None = None
        self._arrived = asyncio.Event()
        self._delivered = asyncio.Event()
        self._poll: asyncio.Future[None] | None = None
        self._pusher: asyncio.Task[None] | None = None
        self.webhook: Mapping[str, Any] = {"url": ""}
        self.last_error = ""

    @property
    def waiting(self) -> int:
        """How many updates are not confirmed."""
        return len(self._queue)

    def tell(self, kind: str, content: Mapping[str, Any]) -> int | None:
        """Returns its id, or None if the bot does not want such updates."""
        if self._allowed is not None and kind not in self._allowed:
            return None
        number = self._next_id
        self.tell_as_it_is({"update_id": number, kind: dict(content)})
        return number

    def tell_as_it_is(self, update: Update) -> None:
        self._next_id = int(update["update_id"]) + 1
        self._queue.append(update)
        self._past.append(update)
        self._arrived.set()

    def tell_again(self) -> None:
        """Queues the latest update again, under a new id."""
        self.tell_as_it_is({**self._past[-1], "update_id": self._next_id})

    def count_from(self, number: int) -> None:
        """As Telegram does after a week without updates: the next id may be any number, even a lower one."""
        self._queue.clear()
        self._next_id = number

    def end_poll(self) -> None:
        """Answers the waiting getUpdates call: there is nothing."""
        if self._poll is not None and not self._poll.done():
            self._poll.set_result(None)

    async def get_updates(self, call: Mapping[str, Any]) -> list[Update]:
        limit = min(max(int(call.get("limit", 100)), 1), 100)
        wait_s = min(float(call.get("timeout", 0)), 50.0)
        try:
            return await self.ask(
                offset=int(call.get("offset", 0)), limit=limit, timeout_s=wait_s, allowed=call.get("allowed_updates")
            )
        except Conflict as conflict:
            raise BotApiError(409, str(conflict)) from None

    async def set_webhook(self, call: Mapping[str, Any]) -> bool:
        if not str(call.get("url", "")).startswith(("https://", "http://127.0.0.1:")):  # there are no certificates here
            raise bad_request("bad webhook: An HTTPS URL must be provided for webhook")
        await self.go_to(call, call.get("allowed_updates"))
        return True

    async def delete_webhook(self, _: Mapping[str, Any]) -> bool:
        await self.stay()
        return True

    def get_webhook_info(self, _: Mapping[str, Any]) -> dict[str, Any]:
        info: dict[str, Any] = {"url": self.webhook["url"], "pending_update_count": self.waiting}
        if self.last_error:
            info |= {"last_error_date": int(time.time()), "last_error_message": self.last_error}
        return {**info, "has_custom_certificate": False}

    async def ask(self, *, offset: int, limit: int, timeout_s: float, allowed: list[str] | None) -> list[Update]:
        """Raises `Conflict` if there is a webhook, or once another program asks."""
        if self.webhook["url"]:
            raise Conflict(HAS_WEBHOOK)
        if self._poll is not None and not self._poll.done():
            self._poll.set_exception(Conflict(TAKEN_OVER))
        self._allow(allowed)
        if offset < 0:
            del self._queue[:offset]
        elif offset <= self._next_id + _AHEAD:
            self._queue = [update for update in self._queue if update["update_id"] >= offset]
        poll = self._poll = asyncio.get_running_loop().create_future()
        if not self._queue and timeout_s > 0:
            self._arrived.clear()
            arrived = asyncio.ensure_future(self._arrived.wait())
            try:
                await asyncio.wait([arrived, poll], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                arrived.cancel()
            if poll.done():
                poll.result()
        if not poll.done():
            poll.set_result(None)
        return self._queue[:limit]

    async def go_to(self, webhook: Mapping[str, Any], allowed: list[str] | None) -> None:
        """Raises `Conflict` in a waiting `ask`."""
        await self.stay()
        if self._poll is not None and not self._poll.done():
            self._poll.set_exception(Conflict("Conflict: terminated by setWebhook request"))
        self._allow(allowed)
        self.webhook = webhook
        self._pusher = asyncio.create_task(self._push(), name="telegram webhook")

    async def wait_until_delivered(self) -> None:
        """Waits until the webhook has accepted everything."""
        while self._queue:
            self._delivered.clear()
            await self._delivered.wait()

    async def stay(self) -> None:
        self.webhook = {"url": ""}
        pusher, self._pusher = self._pusher, None
        if pusher is not None:
            pusher.cancel()
            await asyncio.wait([pusher])

    def _allow(self, allowed: list[str] | None) -> None:
        if allowed is not None:
            self._allowed = frozenset(allowed)

    async def _push(self) -> None:
        """Posts one update after the other, each repeatedly until it is accepted."""
        secret = self.webhook.get("secret_token", "")
        headers = {"X-Telegram-Bot-Api-Secret-Token": secret, "Content-Type": "application/json"}
        async with aiohttp.ClientSession(headers=headers) as session:
            while True:
                if not self._queue:
                    self._arrived.clear()
                    await self._arrived.wait()
                    continue
                self.last_error = "Connection refused"
                with suppress(aiohttp.ClientError, OSError):
                    async with session.post(self.webhook["url"], data=json.dumps(self._queue[0])) as response:
                        self.last_error = "" if response.ok else f"Wrong response from the webhook: {response.status}"
                if self.last_error:
                    await asyncio.sleep(RETRY_S)
                else:
                    self._queue.pop(0)
                    self._delivered.set()
