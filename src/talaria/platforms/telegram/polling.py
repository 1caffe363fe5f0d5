"""Asking Telegram for news. It forgets what lies before the offset of the next question, so that offset is our
acknowledgement: nothing is asked for before the last batch is on our disk."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import suppress

from telegram.error import TelegramError

from talaria.platforms.base import Batch
from talaria.platforms.telegram import failures, incoming
from talaria.platforms.telegram.transport import TelegramTransport

ALLOWED_UPDATES = ("message", "callback_query")
LEAVE_S = 5.0
_SLACK_S = 10.0


class Polling:
    def __init__(self, line: TelegramTransport, url: str, me: incoming.TelegramAccount, poll_s: int) -> None:
        self._line = line
        self._url = f"{url}/getUpdates"
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
            found = await self._ask(poll_s)
            poll_s = self._poll_s
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
        with suppress(TelegramError, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._line.call(self._url, self._question(0), LEAVE_S)

    async def _ask(self, poll_s: int) -> tuple[incoming.Update, ...]:
        question = self._question(poll_s)
        try:
            answer = await self._line.call(self._url, question, poll_s + _SLACK_S)
        except TelegramError as error:
            raise failures.interrupted(error) from None
        return incoming.updates(answer, self._me)

    def _question(self, poll_s: int) -> dict[str, str]:
        self._told = self._offset
        question = {"timeout": str(poll_s), "allowed_updates": json.dumps(ALLOWED_UPDATES)}
        return question if not self._offset else {**question, "offset": str(self._offset)}
