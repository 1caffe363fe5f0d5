"""Every way in which Telegram fails ends in the promised exception, and nothing is ever sent twice by itself."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from talaria.core.clock import SystemClock
from talaria.core.secret import Secret
from talaria.platforms.base import (
    AccessLost,
    Address,
    Batch,
    ChatMoved,
    Kit,
    NotTaken,
    Outbound,
    Platform,
    PlatformFailure,
    Press,
    Refused,
    Rejected,
    Sender,
    SentId,
    Unsure,
)
from talaria.platforms.telegram import platform as telegram
from talaria.platforms.telegram.config import TelegramSettings
from talaria.testing.servers.chat_service import Fault, LostAnswer, Refusal, Slow
from talaria.testing.servers.telegram_server import TelegramServer

DM = Address("telegram", "1001")
MESSAGE = Outbound(DM, "a secret plan", key="k")
TOKEN = "123456:TEST-token"
SOON = 1.0


@pytest.fixture
async def server() -> AsyncIterator[TelegramServer]:
    async with TelegramServer() as running:
        yield running


def opened(base_url: str, home: Path, **settings: Any) -> AbstractAsyncContextManager[Platform]:
    kit = Kit(home, SystemClock(), lambda _: True)
    return telegram.open(TelegramSettings(token=Secret(TOKEN), base_url=base_url, **settings), kit)


def bad(words: str, **extra: Any) -> Refusal:
    return Refusal(400, words=f"Bad Request: {words}", extra=extra)


TABLE: list[tuple[Fault, type[PlatformFailure], float | None, int]] = [
    (Refusal(429, retry_after_s=7), NotTaken, 7, 0),
    (Refusal(429), NotTaken, None, 0),
    (Refusal(500), Unsure, None, 0),
    (Refusal(502), Unsure, None, 0),
    (LostAnswer(), Unsure, None, 1),
    (Slow(60), Unsure, None, 1),
    (Refusal(401), Refused, None, 0),
    (Refusal(404), Refused, None, 0),
    (Refusal(409), Refused, None, 0),
    (Refusal(302), Refused, None, 0),
    (Refusal(403, words="Forbidden: bot was blocked by the user"), AccessLost, None, 0),
    (Refusal(403, words="Forbidden: for a reason of tomorrow"), AccessLost, None, 0),
    (bad("chat not found"), AccessLost, None, 0),
    (bad("not enough rights to send text messages to the chat"), AccessLost, None, 0),
    (bad("TOPIC_CLOSED"), AccessLost, None, 0),
    (bad("group upgraded", parameters={"migrate_to_chat_id": -1009}), ChatMoved, None, 0),
    (bad("message is too long"), Rejected, None, 0),
    (bad("BUTTON_DATA_INVALID"), Rejected, None, 0),
    (Refusal(413, words="Request Entity Too Large"), Rejected, None, 0),
]


@pytest.mark.parametrize(("fault", "failure", "retry_after_s", "messages"), TABLE, ids=lambda value: str(value)[:60])
async def test_each_fault_of_a_send_ends_as_promised_after_one_attempt(
    server: TelegramServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    fault: Fault,
    failure: type[PlatformFailure],
    retry_after_s: float | None,
    messages: int,
) -> None:
    caplog.set_level(logging.INFO)
    await server.say("hi")
    async with opened(server.base_url, tmp_path, timeout_s=SOON if isinstance(fault, Slow) else 30.0) as bot:
        server.fault("sendMessage", fault)
        with pytest.raises(failure) as raised:
            await bot.send(MESSAGE)
        assert type(raised.value) is failure
        assert getattr(raised.value, "retry_after_s", None) == retry_after_s
        assert len(server.calls("sendMessage")) == 1
        assert len(server.list_messages()) == messages
        told = f"{raised.value} {caplog.text}"
        assert TOKEN not in told
        assert "a secret plan" not in told
        assert str(raised.value).endswith(".")
        await bot.send(MESSAGE)


Operation = Callable[[Platform], Awaitable[object]]
PRESS = Press("1", DM, "dm", Sender("1001"), "d")
OPERATIONS: dict[str, Operation] = {
    "editMessageText": lambda bot: bot.edit(SentId("5"), MESSAGE),
    "deleteMessage": lambda bot: bot.delete(SentId("5"), DM),
    "sendChatAction": lambda bot: bot.show_typing(DM),
    "setMessageReaction": lambda bot: bot.react(DM, "5", "👀"),
    "answerCallbackQuery": lambda bot: bot.answer(PRESS, "fine"),
    "createForumTopic": lambda bot: bot.create_thread(DM, "x"),
    "setMyCommands": lambda bot: bot.offer_commands([("new", "x")]),
}


@pytest.mark.parametrize("method", OPERATIONS)
@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        (Refusal(429, retry_after_s=7), NotTaken),
        (Refusal(500), Unsure),
        (LostAnswer(), Unsure),
        (Refusal(401), Refused),
        (bad("something odd"), Rejected),
    ],
    ids=["429", "500", "lost", "401", "400"],
)
async def test_every_other_call_fails_in_the_same_way(
    server: TelegramServer, tmp_path: Path, method: str, fault: Fault, failure: type[PlatformFailure]
) -> None:
    async with opened(server.base_url, tmp_path) as bot:
        server.fault(method, fault)
        with pytest.raises(failure):
            await OPERATIONS[method](bot)
        assert len(server.calls(method)) == 1


SENDING: dict[str, Operation] = {**OPERATIONS, "sendMessage": lambda bot: bot.send(MESSAGE)}


@pytest.mark.parametrize("method", SENDING)
async def test_what_never_left_was_not_taken(tmp_path: Path, method: str) -> None:
    async with TelegramServer() as server:
        opening = opened(server.base_url, tmp_path)
        bot = await opening.__aenter__()
    for reason in ("the connection was cut", "connection refused"):  # of an old connection; of a new one
        with pytest.raises(NotTaken, match=f"cannot be reached: {reason}"):
            await SENDING[method](bot)
    await opening.__aexit__(None, None, None)


async def first_batch(bot: Platform) -> Batch:
    async with aclosing(bot.receive(None)) as batches:
        return await anext(batches)


@pytest.mark.parametrize(
    ("fault", "failure", "retry_after_s"),
    [
        (Refusal(429, retry_after_s=9), NotTaken, 9),
        (Refusal(500), NotTaken, None),
        (Refusal(502), NotTaken, None),
        (LostAnswer(), NotTaken, None),
        (Refusal(401), Refused, None),
        (Refusal(409, words="Conflict: terminated by other getUpdates request"), Refused, None),
    ],
    ids=["429", "500", "502", "lost", "401", "409"],
)
async def test_each_fault_of_the_line_ends_as_promised(
    server: TelegramServer, tmp_path: Path, fault: Fault, failure: type[PlatformFailure], retry_after_s: float | None
) -> None:
    await server.say("hi")
    async with opened(server.base_url, tmp_path) as bot:
        server.fault("getUpdates", fault)
        with pytest.raises(failure) as raised:
            await first_batch(bot)
        assert getattr(raised.value, "retry_after_s", None) == retry_after_s
        assert len((await first_batch(bot)).items) == 1


async def test_a_poll_that_is_cut_loses_nothing(server: TelegramServer, tmp_path: Path) -> None:
    async with opened(server.base_url, tmp_path) as bot:
        waiting = asyncio.ensure_future(first_batch(bot))
        await server.wait_for_calls("getUpdates", 1)
        waiting.cancel()
        await asyncio.wait([waiting])
        await server.say("into the void")
        assert len((await first_batch(bot)).items) == 1


@pytest.mark.parametrize("method", ["getMe", "deleteWebhook"])
@pytest.mark.parametrize(
    ("fault", "failure"), [(Refusal(401), Refused), (Refusal(500), NotTaken), (LostAnswer(), NotTaken)]
)
async def test_opening_fails_clearly(
    server: TelegramServer, tmp_path: Path, method: str, fault: Fault, failure: type[PlatformFailure]
) -> None:
    server.fault(method, fault)
    with pytest.raises(failure):
        async with opened(server.base_url, tmp_path):
            pass


async def test_a_wrong_token_is_refused_with_what_to_do(tmp_path: Path) -> None:
    async with TelegramServer(token="9:other") as server:
        with pytest.raises(Refused, match="TELEGRAM_BOT_TOKEN") as raised:
            async with opened(server.base_url, tmp_path):
                pass
    assert TOKEN not in str(raised.value)


@pytest.mark.parametrize(("status", "failure"), [(200, NotTaken), (301, Refused), (502, NotTaken)])
async def test_something_else_at_that_address_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int, failure: type[PlatformFailure]
) -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(status=status, text="<html>a private page</html>", content_type="text/html")

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        with pytest.raises(failure):
            async with opened(f"http://127.0.0.1:{runner.addresses[0][1]}", tmp_path):
                pass
    finally:
        await runner.cleanup()
    assert "private page" not in caplog.text


async def test_a_proxy_of_the_environment_is_used(
    server: TelegramServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.base_url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with opened("http://telegram.invalid", tmp_path) as bot:
        assert bot.account == str(server.bot["id"])
