"""python-telegram-bot as an oracle: our calls are the ones that it would make, and it can read all that our Telegram on
loopback says."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
from telegram import (
    Bot,
    BotCommand,
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    InputFile,
    LinkPreviewOptions,
    ReactionTypeEmoji,
    ReplyParameters,
    TelegramObject,
)
from telegram.error import (
    BadRequest,
    ChatMigrated,
    Conflict,
    Forbidden,
    InvalidToken,
    NetworkError,
    RetryAfter,
    TelegramError,
)
from tests.contracts.platforms.telegram_bot import DM, GROUP, opened, words

from talaria.platforms.base import Address, Button, File, Platform, Press, Rejected, Sender, SentId
from talaria.testing.servers.chat_service import Fault, LostAnswer, Refusal
from talaria.testing.servers.telegram_server import TelegramServer

FORUM = Address("telegram", GROUP, "77")
BUTTONS = (Button("Yes", "y:1", "good"), Button("No", "n:1", "bad"), Button("Later", "l:1"))
KEYBOARD = InlineKeyboardMarkup(
    [
        [
            InlineKeyboardButton("Yes", callback_data="y:1", style="success"),
            InlineKeyboardButton("No", callback_data="n:1", style="danger"),
            InlineKeyboardButton("Later", callback_data="l:1"),
        ]
    ]
)
NO_PREVIEW = LinkPreviewOptions(is_disabled=True)
PRESS = Press("1", DM, "dm", Sender("1001"), "y:1")
PICTURE = b"\x89PNG"


def picture(folder: Path) -> File:
    path = folder / "picture"
    path.write_bytes(PICTURE)
    return File(path, "chart.png", "image/png")


def answer_to(message: str) -> ReplyParameters:
    return ReplyParameters(int(message), allow_sending_without_reply=True)


Calls = dict[str, tuple[Callable[[Platform, Path], Awaitable[object]], Callable[[Bot], Awaitable[object]]]]
CALLS: Calls = {
    "sendMessage": (
        lambda ours, _: ours.send(words("**b**", FORUM, reply_to="1", buttons=BUTTONS)),
        lambda bot: bot.send_message(
            int(GROUP),
            "<b>b</b>",
            "HTML",
            message_thread_id=77,
            reply_parameters=answer_to("1"),
            reply_markup=KEYBOARD,
            link_preview_options=NO_PREVIEW,
        ),
    ),
    "sendPhoto": (
        lambda ours, folder: ours.send(words("", file=picture(folder), reply_to="1")),
        lambda bot: bot.send_photo(1001, InputFile(PICTURE, "chart.png"), reply_parameters=answer_to("1")),
    ),
    "editMessageText": (
        lambda ours, _: ours.edit(SentId("2"), words("*i*", buttons=BUTTONS)),
        lambda bot: bot.edit_message_text(
            "<i>i</i>", 1001, 2, parse_mode="HTML", reply_markup=KEYBOARD, link_preview_options=NO_PREVIEW
        ),
    ),
    "editMessageCaption": (
        lambda ours, folder: ours.edit(SentId("3"), words("it", file=picture(folder))),
        lambda bot: bot.edit_message_caption(1001, 3, caption="it", parse_mode="HTML"),
    ),
    "deleteMessage": (lambda ours, _: ours.delete(SentId("2"), DM), lambda bot: bot.delete_message(1001, 2)),
    "sendChatAction": (
        lambda ours, _: ours.show_typing(FORUM),
        lambda bot: bot.send_chat_action(int(GROUP), "typing", message_thread_id=77),
    ),
    "setMessageReaction": (
        lambda ours, _: ours.react(DM, "1", "✅"),
        lambda bot: bot.set_message_reaction(1001, 1, [ReactionTypeEmoji("👍")]),
    ),
    "answerCallbackQuery": (
        lambda ours, _: ours.answer(PRESS, "fine"),
        lambda bot: bot.answer_callback_query("1", "fine"),
    ),
    "createForumTopic": (
        lambda ours, _: ours.create_thread(Address("telegram", GROUP), "A talk"),
        lambda bot: bot.create_forum_topic(int(GROUP), "A talk"),
    ),
    "setMyCommands": (
        lambda ours, _: ours.offer_commands([("new", "Begin anew")]),
        lambda bot: bot.set_my_commands([BotCommand("new", "Begin anew")]),
    ),
    "getChat": (lambda ours, _: ours.chat_info(Address("telegram", GROUP)), lambda bot: bot.get_chat(int(GROUP))),
}


@pytest.fixture
async def server() -> AsyncIterator[TelegramServer]:
    async with TelegramServer() as running:
        await running.say("hello")
        await running.say("hello, forum", chat=GROUP, thread="77")
        yield running


@pytest.fixture
async def oracle(server: TelegramServer) -> AsyncIterator[Bot]:
    async with Bot(server.token, f"{server.base_url}/bot", f"{server.base_url}/file/bot") as bot:
        yield bot


def fields_unknown_to_the_library(told: object) -> Iterator[str]:
    if isinstance(told, tuple):
        for each in cast("tuple[object, ...]", told):
            yield from fields_unknown_to_the_library(each)
    if isinstance(told, TelegramObject):
        yield from told.api_kwargs
        slots = (name for cls in type(told).__mro__ for name in getattr(cls, "__slots__", ()))
        for name in slots:
            if not name.startswith("_") and name != "api_kwargs":
                yield from fields_unknown_to_the_library(getattr(told, name))


@pytest.mark.parametrize("method", CALLS)
async def test_a_call_is_the_one_that_the_library_would_make(
    server: TelegramServer, oracle: Bot, tmp_path: Path, method: str
) -> None:
    ours, theirs = CALLS[method]
    async with opened(server, tmp_path) as platform:
        with suppress(Rejected):  # what is asked for counts, not whether it is there
            await ours(platform, tmp_path)
    with suppress(BadRequest):
        await theirs(oracle)
    mine, expected = ({**call, "at": 0} for call in server.calls(method))
    assert mine == expected


async def test_the_library_knows_every_field_of_what_is_told(server: TelegramServer, oracle: Bot) -> None:
    asked = await oracle.send_message(1001, "Run it?", reply_markup=KEYBOARD)
    await server.say("a reply with @talaria_bot in it", reply_to=str(asked.message_id))
    await server.press(str(asked.message_id), "y:1")
    file = server.keep_file(PICTURE)
    await server.post({"document": {"file_id": file, "file_unique_id": file}, "caption": "this"})
    updates = await oracle.get_updates()
    assert [update.callback_query is not None for update in updates] == [False, False, False, True, False]
    told = (*updates, asked, await oracle.get_me(), await oracle.get_chat(int(GROUP)), await oracle.get_file(file))
    assert list(fields_unknown_to_the_library(told)) == []


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Refusal(400, words="Bad Request: chat not found"), BadRequest),
        (Refusal(401), InvalidToken),
        (Refusal(403), Forbidden),
        (Refusal(409), Conflict),
        (Refusal(429, 7), RetryAfter),
        (Refusal(400, extra={"parameters": {"migrate_to_chat_id": -1009}}), ChatMigrated),
        (Refusal(502), NetworkError),
        (LostAnswer(), NetworkError),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_the_library_reads_each_refusal_as_what_it_is(
    server: TelegramServer, oracle: Bot, monkeypatch: pytest.MonkeyPatch, fault: Fault, error: type[TelegramError]
) -> None:
    monkeypatch.setenv("PTB_TIMEDELTA", "1")
    server.fault("sendMessage", fault)
    with pytest.raises(error):
        await oracle.send_message(1001, "hello")
