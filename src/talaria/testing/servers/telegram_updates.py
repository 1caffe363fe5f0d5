"""Telegram's queue of updates, and the two ways out of it: being asked (getUpdates), or going there (a webhook)."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import aiohttp

TAKEN_OVER = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
HAS_WEBHOOK = (
    "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first"
)
RETRY_S = 0.05
_AHEAD = 10
"""An offset that is further ahead than this counts as none: Telegram has begun to count anew."""

Update = dict[str, Any]


class Conflict(Exception):
    """Somebody else gets the updates."""


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
        """How many are not confirmed."""
        return len(self._queue)

    def tell(self, kind: str, content: Mapping[str, Any]) -> int | None:
        """Its id; None if the bot does not want to hear of such things."""
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
        """The latest one, under a new number."""
        self.tell_as_it_is({**self._past[-1], "update_id": self._next_id})

    def count_from(self, number: int) -> None:
        """As Telegram does after a week without news: the next number may be any, also a lower one."""
        self._queue.clear()
        self._next_id = number

    def end_poll(self) -> None:
        """The question that waits is answered: there is nothing."""
        if self._poll is not None and not self._poll.done():
            self._poll.set_result(None)

    async def ask(self, *, offset: int, limit: int, timeout_s: float, allowed: list[str] | None) -> list[Update]:
        """Raises `Conflict` when there is a webhook, or another one begins to ask."""
        if self.webhook["url"]:
            raise Conflict(HAS_WEBHOOK)
        if self._poll is not None and not self._poll.done():
            self._poll.set_exception(Conflict(TAKEN_OVER))
        self._allow(allowed)
        self._forget(offset)
        poll = self._poll = asyncio.get_running_loop().create_future()
        if not self._queue and timeout_s > 0:
            await self._wait(poll, timeout_s)
        if not poll.done():
            poll.set_result(None)
        return self._queue[:limit]

    async def go_to(self, webhook: Mapping[str, Any], allowed: list[str] | None) -> None:
        """Raises `Conflict` in whoever is asking."""
        await self.stay()
        if self._poll is not None and not self._poll.done():
            self._poll.set_exception(Conflict("Conflict: terminated by setWebhook request"))
        self._allow(allowed)
        self.webhook = webhook
        self._pusher = asyncio.create_task(self._push(), name="telegram webhook")

    async def wait_until_delivered(self) -> None:
        """Until the webhook has taken everything."""
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

    def _forget(self, offset: int) -> None:
        if offset < 0:
            del self._queue[:offset]
        elif offset <= self._next_id + _AHEAD:
            self._queue = [update for update in self._queue if update["update_id"] >= offset]

    async def _wait(self, poll: asyncio.Future[None], timeout_s: float) -> None:
        self._arrived.clear()
        arrived = asyncio.ensure_future(self._arrived.wait())
        try:
            await asyncio.wait([arrived, poll], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            arrived.cancel()
        if poll.done():
            poll.result()

    async def _push(self) -> None:
        """One after the other, each again and again until it is taken."""
        headers = {"X-Telegram-Bot-Api-Secret-Token": self.webhook.get("secret_token", "")}
        async with aiohttp.ClientSession(headers=headers) as session:
            while True:
                if not self._queue:
                    self._arrived.clear()
                    await self._arrived.wait()
                elif await self._is_taken(session, self._queue[0]):
                    self._queue.pop(0)
                    self._delivered.set()
                else:
                    await asyncio.sleep(RETRY_S)

    async def _is_taken(self, session: aiohttp.ClientSession, update: Update) -> bool:
        self.last_error = "Connection refused"
        with suppress(aiohttp.ClientError, OSError):
            async with session.post(
                self.webhook["url"], data=json.dumps(update), headers={"Content-Type": "application/json"}
            ) as response:
                self.last_error = "" if response.ok else f"Wrong response from the webhook: {response.status}"
        return not self.last_error
