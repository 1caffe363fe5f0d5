"""The Telegram platform through its port, against a Telegram on loopback: what arrives, and its settings."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.contracts.platforms.telegram_bot import DM, GROUP, next_arrival, next_batch, opened, words

from talaria.core.clock import SystemClock
from talaria.core.errors import BadConfig
from talaria.core.secret import Secret
from talaria.platforms.base import (
    Address,
    Arrival,
    Batch,
    Kit,
    Platform,
    PlatformManifest,
    Quoted,
    Refused,
)
from talaria.platforms.telegram import platform as telegram
from talaria.platforms.telegram.config import TelegramSettings
from talaria.testing.servers.chat_service import ChatService
from talaria.testing.servers.telegram_server import TelegramServer

FOLDER = Path(telegram.__file__).parent


@pytest.fixture
async def server() -> AsyncIterator[TelegramServer]:
    async with TelegramServer() as running:
        yield running


@pytest.fixture
async def bot(server: TelegramServer, tmp_path: Path) -> AsyncIterator[Platform]:
    async with opened(server, tmp_path) as platform:
        yield platform


def test_the_server_is_a_chat_service() -> None:
    service: ChatService = TelegramServer()
    assert service.settings["token"]


def test_the_manifest_can_be_read() -> None:
    manifest = msgspec.toml.decode((FOLDER / "manifest.toml").read_bytes(), type=PlatformManifest)
    assert manifest.environment == {
        "TELEGRAM_BOT_TOKEN": "token",
        "TELEGRAM_ALLOWED_USERS": "allowed_users",
        "TELEGRAM_HOME_CHANNEL": "home_channel",
    }
    assert set(manifest.environment.values()) <= set(TelegramSettings.__struct_fields__)


async def test_the_account_is_the_bots_id(bot: Platform, server: TelegramServer) -> None:
    assert (bot.name, bot.account) == ("telegram", str(server.bot["id"]))


async def test_what_somebody_says_arrives_with_ids_and_time(bot: Platform, server: TelegramServer) -> None:
    message = await server.say("hello", user="1001")
    arrival = await next_arrival(bot)
    assert (arrival.message_id, arrival.where, arrival.kind) == (message, DM, "dm")
    assert (arrival.sender.id, arrival.text) == ("1001", "hello")
    assert arrival.sent_at > 1_700_000_000


async def test_an_unacknowledged_batch_comes_again_after_a_restart(server: TelegramServer, tmp_path: Path) -> None:
    await server.say("hello")
    for _ in range(2):
        async with opened(server, tmp_path) as bot, aclosing(bot.receive(None)) as batches:
            assert len((await anext(batches)).items) == 1


async def test_an_acknowledged_batch_does_not_come_again_even_without_a_cursor(
    server: TelegramServer, tmp_path: Path
) -> None:
    await server.say("hello")
    async with opened(server, tmp_path) as bot:
        await next_batch(bot)
    assert server.updates.waiting == 0


async def test_from_a_cursor_on_only_what_is_new_comes(bot: Platform, server: TelegramServer) -> None:
    await server.say("one")
    async with aclosing(bot.receive(None)) as batches:
        cursor = (await anext(batches)).cursor  # kept by us, but Telegram was not told
    await server.say("two")
    [arrival] = (await next_batch(bot, cursor)).items
    assert isinstance(arrival, Arrival)
    assert arrival.text == "two"


async def test_nothing_more_is_asked_for_before_the_batch_is_acknowledged(
    bot: Platform, server: TelegramServer
) -> None:
    await server.say("one")
    async with aclosing(bot.receive(None)) as batches:
        batch = await anext(batches)
        following = asyncio.ensure_future(anext(batches))
        await server.say("two")
        for _ in range(20):
            await bot.show_typing(DM)  # whole exchanges, in which it would have asked
        assert len(server.calls("getUpdates")) == 1
        await bot.acknowledge(batch)
        [arrival] = (await following).items
    assert isinstance(arrival, Arrival)
    assert arrival.text == "two"
    assert int(server.calls("getUpdates")[1]["offset"]) == int(batch.cursor or 0) + 1


async def test_a_poll_that_brings_nothing_is_a_sign_of_life(bot: Platform, server: TelegramServer) -> None:
    async with aclosing(bot.receive(None)) as batches:
        assert await anext(batches) == Batch()  # at once: it answers
        following = asyncio.ensure_future(anext(batches))
        first, poll = await server.wait_for_calls("getUpdates", 2)
        server.updates.end_poll()
        assert await following == Batch()
    assert (first["timeout"], poll["timeout"]) == ("0", "50")
    assert poll["allowed_updates"] == ["message", "callback_query"]
    assert "offset" not in poll
    assert bot.capabilities.pulse_s > 50


async def test_a_duplicate_has_the_same_message_id(bot: Platform, server: TelegramServer) -> None:
    await server.say("once")
    server.updates.tell_again()
    first, second = (await next_batch(bot)).items
    assert first == second


async def test_updates_that_nobody_can_read_move_the_cursor_and_hold_nothing_up(
    bot: Platform, server: TelegramServer
) -> None:
    server.updates.tell_as_it_is({"update_id": 2000, "message": {"message_id": "odd"}})
    await server.say("fine")
    batch = await next_batch(bot)
    assert len(batch.items) == 1
    server.updates.tell_as_it_is({"update_id": 2002, "message": 5})
    async with aclosing(bot.receive(batch.cursor)) as batches:
        assert await anext(batches) == Batch((), "2002", "2002")
        following = asyncio.ensure_future(anext(batches))  # there is nothing to acknowledge
        await server.say("on it goes")
        assert len((await following).items) == 1


async def test_when_telegram_counts_anew_from_a_lower_number_nothing_is_lost(
    bot: Platform, server: TelegramServer
) -> None:
    await server.say("before")
    cursor = (await next_batch(bot)).cursor
    server.updates.count_from(7)
    await server.say("after a week")
    batch = await next_batch(bot, cursor)
    assert batch.cursor == "7"
    await server.say("next")
    assert (await next_batch(bot, batch.cursor)).cursor == "8"


async def test_edits_of_people_are_not_heard(bot: Platform, server: TelegramServer) -> None:
    message = await server.say("frist")
    cursor = (await next_batch(bot)).cursor
    await server.change(message, "first")
    server.updates.tell_as_it_is({"update_id": 3000, "edited_message": {"message_id": 1, "text": "first"}})
    assert (await next_batch(bot, cursor)).items == ()


async def test_a_second_program_with_the_same_token_is_told_apart(server: TelegramServer, tmp_path: Path) -> None:
    async with (
        opened(server, tmp_path) as bot,
        opened(server, tmp_path) as other,
        aclosing(bot.receive(None)) as ours,
        aclosing(other.receive(None)) as theirs,
    ):
        await anext(ours)
        waiting = asyncio.ensure_future(anext(ours))
        await server.wait_for_calls("getUpdates", 2)
        await anext(theirs)
        newer = asyncio.ensure_future(anext(theirs))
        with pytest.raises(Refused, match="Another program reads"):
            await waiting
        await server.say("to the newer one")
        assert len((await newer).items) == 1


async def test_a_webhook_of_somebody_else_is_named(bot: Platform, server: TelegramServer) -> None:
    await server.updates.go_to({"url": "https://elsewhere.example/"}, None)
    with pytest.raises(Refused, match="go to a webhook"):
        await next_batch(bot)


async def test_polling_takes_the_webhook_away(server: TelegramServer, tmp_path: Path) -> None:
    await server.updates.go_to({"url": "https://elsewhere.example/"}, None)
    await server.say("hello")
    async with opened(server, tmp_path) as bot:
        assert len((await next_batch(bot)).items) == 1


async def test_leaving_does_not_hang_on_a_telegram_that_is_gone(tmp_path: Path) -> None:
    async with TelegramServer() as server:
        await server.say("hello")
        opening = opened(server, tmp_path)
        bot = await opening.__aenter__()
        await next_batch(bot)
    await opening.__aexit__(None, None, None)


@pytest.mark.parametrize(
    ("said", "text", "is_addressed"),
    [
        ("@talaria_bot hello", "hello", True),
        ("@talaria_bot, hello", "hello", True),
        ("🦉🦉 hey @Talaria_Bot what now", "🦉🦉 hey what now", True),
        ("hello everybody", "hello everybody", False),
        ("hello @talaria_bots", "hello @talaria_bots", False),
        ("mail me@talaria_bot", "mail me@talaria_bot", False),
        ("/status", "/status", True),
        ("/status@talaria_bot now", "/status now", True),
        ("/status@other_bot now", "/status@other_bot now", False),
        ("@talaria_bot /stop", "/stop", True),
        ("@talaria_bot", "", True),
    ],
)
async def test_in_a_group_we_know_when_we_are_meant(
    bot: Platform, server: TelegramServer, said: str, text: str, is_addressed: bool
) -> None:
    await server.say(said, chat=GROUP)
    arrival = await next_arrival(bot)
    assert arrival.kind == "group"
    assert (arrival.text, arrival.is_addressed) == (text, is_addressed)


async def test_a_reply_to_us_is_meant_for_us_and_one_to_others_is_not(bot: Platform, server: TelegramServer) -> None:
    await server.say("hello", chat=GROUP)
    ours = await bot.send(words("I am here", Address("telegram", GROUP)))
    theirs = await server.say("and I", chat=GROUP, user="1002")
    await server.say("good", chat=GROUP, reply_to=ours)
    await server.say("better", chat=GROUP, reply_to=theirs)
    _, _, to_us, to_them = (item for item in (await next_batch(bot)).items if isinstance(item, Arrival))
    assert (to_us.is_addressed, to_us.reply_to) == (True, Quoted("I am here", is_ours=True))
    assert (to_them.is_addressed, to_them.reply_to) == (False, Quoted("and I", author="Person 1002"))


async def test_two_people_of_the_same_name_are_two_people(bot: Platform, server: TelegramServer) -> None:
    await server.say("it is me", user="1001", name="Ada")
    await server.say("no, me", user="6666", name="Ada")
    first, second = (item for item in (await next_batch(bot)).items if isinstance(item, Arrival))
    assert first.sender.name == second.sender.name == "Ada"
    assert (first.sender.id, second.sender.id) == ("1001", "6666")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"allowed_users": ("1001", "@ada")}, "allowed_users: '@ada' is not an id, and names can change hands"),
        ({"admin_users": ("ada",)}, "admin_users: 'ada' is not an id"),
        ({"allowed_users": ("-100",)}, "allowed_users: '-100' is not an id"),
        ({"allowed_chats": ("@group",)}, "allowed_chats: '@group' is not an id"),
        ({"home_channel": "@home"}, "home_channel: '@home' is not an id"),
        ({"token": Secret("nonsense")}, "token is not a token from @BotFather"),
        ({"token": Secret("1:a/../../x")}, "token is not a token from @BotFather"),
        ({"base_url": "api.telegram.org"}, "base_url must begin with https://"),
    ],
)
async def test_settings_that_cannot_be_right_are_refused(
    tmp_path: Path, settings: dict[str, Any], complaint: str
) -> None:
    kit = Kit(tmp_path, SystemClock(), lambda _: True)
    wrong = msgspec.structs.replace(TelegramSettings(token=Secret("1:a")), **settings)
    with pytest.raises(BadConfig, match=complaint):
        async with telegram.open(wrong, kit):
            pass


async def test_ids_of_people_groups_and_topics_are_fine(server: TelegramServer, tmp_path: Path) -> None:
    ids = {"allowed_users": ("1001",), "allowed_chats": (GROUP, "-5"), "home_channel": f"{GROUP}:77"}
    async with opened(server, tmp_path, **ids) as bot:
        assert bot.account
