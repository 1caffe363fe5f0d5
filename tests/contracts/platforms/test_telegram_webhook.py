"""The webhook: Telegram is told that it was heard only when what it said is on our disk."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, aclosing
from io import BytesIO
from pathlib import Path

import aiohttp
import msgspec
import pytest
from tests.ports import reserved_port

from talaria.core.errors import BadConfig
from talaria.core.secret import Secret
from talaria.platforms.base import Arrival, Batch, Kit, Platform, Refused
from talaria.platforms.telegram import platform as telegram
from talaria.platforms.telegram.config import TelegramSettings, TelegramWebhookSettings
from talaria.platforms.telegram.updates import KEEP_S, MAX_BODY_BYTES, PULSE_S
from talaria.testing.manual_clock import ManualClock
from talaria.testing.servers.chat_service import Refusal
from talaria.testing.servers.telegram_server import TelegramServer

SECRET = "a-secret-of-enough-letters"
HEADER = "X-Telegram-Bot-Api-Secret-Token"


@pytest.fixture
async def server() -> AsyncIterator[TelegramServer]:
    async with TelegramServer() as running:
        yield running


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def webhook() -> Iterator[TelegramWebhookSettings]:
    with reserved_port() as port:
        url = f"http://127.0.0.1:{port}/telegram/hook"
        yield TelegramWebhookSettings(url=url, secret_token=Secret(SECRET), listen_port=port)


@pytest.fixture
async def bot(
    server: TelegramServer, webhook: TelegramWebhookSettings, clock: ManualClock, tmp_path: Path
) -> AsyncIterator[Platform]:
    async with opened(server, webhook, clock, tmp_path) as platform:
        yield platform


def opened(
    server: TelegramServer, webhook: TelegramWebhookSettings | None, clock: ManualClock, home: Path
) -> AbstractAsyncContextManager[Platform]:
    settings = TelegramSettings(token=Secret(server.token), base_url=server.base_url, webhook=webhook)
    return telegram.open(settings, Kit(home, clock, lambda _: True))


def texts(batch: Batch) -> list[str]:
    return [item.text for item in batch.items if isinstance(item, Arrival)]


async def test_telegram_is_answered_well_only_after_the_acknowledgement(bot: Platform, server: TelegramServer) -> None:
    await server.say("hello")
    async with aclosing(bot.receive(None)) as batches:
        batch = await anext(batches)
        await bot.offer_commands([])  # a whole exchange, in which it could have answered
        assert server.updates.waiting == 1
        await bot.acknowledge(batch)
        await server.updates.wait_until_delivered()
    assert texts(batch) == ["hello"]


async def test_what_is_not_kept_in_time_is_brought_again(
    bot: Platform, server: TelegramServer, clock: ManualClock
) -> None:
    await server.say("hello")
    async with aclosing(bot.receive(None)) as batches:
        first = await anext(batches)
        clock.advance(KEEP_S)
        second = await anext(batches)
        assert first == second
        assert "503" in server.updates.last_error or server.updates.waiting == 1
        await bot.acknowledge(second)
        await server.updates.wait_until_delivered()


async def test_closing_leaves_what_is_not_kept_with_telegram(
    server: TelegramServer, webhook: TelegramWebhookSettings, clock: ManualClock, tmp_path: Path
) -> None:
    await server.say("hello")
    async with opened(server, webhook, clock, tmp_path) as bot, aclosing(bot.receive(None)) as batches:
        await anext(batches)
    assert server.updates.waiting == 1
    async with opened(server, webhook, clock, tmp_path) as bot, aclosing(bot.receive(None)) as batches:
        batch = await anext(batches)
        await bot.acknowledge(batch)
        await server.updates.wait_until_delivered()
    assert texts(batch) == ["hello"]


async def test_who_does_not_know_the_secret_is_not_heard(
    bot: Platform, server: TelegramServer, webhook: TelegramWebhookSettings
) -> None:
    forged = {"update_id": 1, "message": {"message_id": 1, "chat": {"id": 1, "type": "private"}, "text": "forged"}}
    body = msgspec.json.encode(forged)
    async with aiohttp.ClientSession() as session:
        for headers in ({}, {HEADER: ""}, {HEADER: SECRET[:-1]}, {HEADER: f"{SECRET}x"}):
            async with session.post(webhook.url, data=body, headers=headers) as response:
                assert response.status == 403
    await server.say("real")
    async with aclosing(bot.receive(None)) as batches:
        assert texts(await anext(batches)) == ["real"]


async def test_odd_requests_are_turned_away(bot: Platform, webhook: TelegramWebhookSettings) -> None:
    knows = {HEADER: SECRET}
    async with aiohttp.ClientSession(headers=knows) as session:
        for body, status in ((b"", 400), (b"[]", 400), (b"x" * (MAX_BODY_BYTES + 1), 413), (b'{"update_id": 5}', 200)):
            async with session.post(webhook.url, data=BytesIO(body)) as response:
                assert response.status == status
        async with session.get(webhook.url) as response:
            assert response.status == 405


@pytest.mark.parametrize("secret", ["", "short", "has spaces in it, and more"])
async def test_a_secret_must_be_one(
    server: TelegramServer, webhook: TelegramWebhookSettings, clock: ManualClock, tmp_path: Path, secret: str
) -> None:
    open_to_all = msgspec.structs.replace(webhook, secret_token=Secret(secret))
    with pytest.raises(BadConfig, match="secret_token"):
        async with opened(server, open_to_all, clock, tmp_path):
            pass


async def test_an_address_that_telegram_does_not_take_is_refused(
    server: TelegramServer, webhook: TelegramWebhookSettings, clock: ManualClock, tmp_path: Path
) -> None:
    unsafe = msgspec.structs.replace(webhook, url="http://bot.example/hook")
    with pytest.raises(Refused, match="HTTPS URL must be provided"):
        async with opened(server, unsafe, clock, tmp_path):
            pass


async def test_a_port_that_is_taken_is_named(
    bot: Platform, server: TelegramServer, webhook: TelegramWebhookSettings, clock: ManualClock, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match=f"cannot listen at 127.0.0.1:{webhook.listen_port}"):
        async with opened(server, webhook, clock, tmp_path):
            pass


async def test_while_nothing_comes_telegram_is_asked_whether_it_still_would(
    bot: Platform, server: TelegramServer, clock: ManualClock
) -> None:
    async with aclosing(bot.receive(None)) as batches:
        assert await after_a_pulse(bot, batches, clock) == Batch()
        assert len(server.calls("getWebhookInfo")) == 1
        server.updates.webhook = {"url": "https://elsewhere.example/"}
        with pytest.raises(Refused, match="elsewhere"):
            await after_a_pulse(bot, batches, clock)
    assert bot.capabilities.pulse_s > PULSE_S


async def test_a_webhook_that_telegram_cannot_reach_is_no_sign_of_life(
    bot: Platform, server: TelegramServer, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    trouble = {"url": server.updates.webhook["url"], "secret_token": "wrong"}
    await server.updates.go_to(trouble, None)
    await server.say("unheard")
    async with aclosing(bot.receive(None)) as batches:
        waiting = asyncio.ensure_future(anext(batches))
        await bot.offer_commands([])
        clock.advance(PULSE_S)
        await server.wait_for_calls("getWebhookInfo", 1)
        await bot.offer_commands([])
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])
    assert "Wrong response from the webhook: 403" in caplog.text


async def test_a_line_that_is_cut_is_told(bot: Platform, server: TelegramServer, clock: ManualClock) -> None:
    server.fault("getWebhookInfo", Refusal(500))
    async with aclosing(bot.receive(None)) as batches:
        with pytest.raises(telegram.NotTaken):
            await after_a_pulse(bot, batches, clock)


async def test_after_the_webhook_polling_goes_on_from_its_cursor(
    server: TelegramServer, webhook: TelegramWebhookSettings, clock: ManualClock, tmp_path: Path
) -> None:
    await server.say("one")
    async with opened(server, webhook, clock, tmp_path) as bot, aclosing(bot.receive(None)) as batches:
        batch = await anext(batches)
        await bot.acknowledge(batch)
        await server.updates.wait_until_delivered()
    await server.say("two")
    async with opened(server, None, clock, tmp_path) as bot, aclosing(bot.receive(batch.cursor)) as batches:
        assert texts(await anext(batches)) == ["two"]


async def after_a_pulse(bot: Platform, batches: AsyncIterator[Batch], clock: ManualClock) -> Batch:
    waiting = asyncio.ensure_future(anext(batches))
    await bot.offer_commands([])  # by the end of a whole exchange it waits
    clock.advance(PULSE_S)
    return await waiting
