"""The Telegram platform through its port, against a Telegram on loopback: what is sent."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tests.contracts.platforms.telegram_bot import DM, GROUP, next_arrival, next_batch, opened, words

from talaria.platforms.base import (
    AccessLost,
    Address,
    Attachment,
    Button,
    ChatMoved,
    File,
    Platform,
    Press,
    Rejected,
    Sender,
    SentId,
)
from talaria.platforms.telegram import platform as telegram
from talaria.testing.servers.chat_service import LostAnswer, Refusal
from talaria.testing.servers.telegram_server import TelegramServer


@pytest.fixture
async def server() -> AsyncIterator[TelegramServer]:
    async with TelegramServer() as running:
        yield running


@pytest.fixture
async def bot(server: TelegramServer, tmp_path: Path) -> AsyncIterator[Platform]:
    async with opened(server, tmp_path) as platform:
        yield platform


async def test_a_message_is_sent_once_as_html_without_previews(bot: Platform, server: TelegramServer) -> None:
    await server.say("hi")
    sent = await bot.send(words("**bold** & <b>not</b> https://example.org"))
    [seen] = server.list_messages()
    assert (seen.id, seen.text) == (sent, "bold & <b>not</b> https://example.org")
    [call] = server.calls("sendMessage")
    assert call["parse_mode"] == "HTML"
    assert call["link_preview_options"] == {"is_disabled": True}


async def test_a_reply_names_what_it_answers_and_stands_alone_if_that_is_gone(
    bot: Platform, server: TelegramServer
) -> None:
    question = await server.say("why?")
    await bot.send(words("because", reply_to=question))
    await bot.send(words("anyway", reply_to="99999"))
    server.fault("sendMessage", Refusal(400, words="Bad Request: message to be replied not found"))
    await bot.send(words("still", reply_to=question))
    assert [(seen.text, seen.reply_to) for seen in server.list_messages()] == [
        ("because", question),
        ("anyway", ""),
        ("still", ""),
    ]


async def test_what_telegram_cannot_parse_is_sent_plainly_at_once(bot: Platform, server: TelegramServer) -> None:
    await server.say("hi")
    complaint = 'Bad Request: can\'t parse entities: Unsupported start tag "x" at byte offset 0'
    server.fault("sendMessage", Refusal(400, words=complaint))
    sent = await bot.send(words("**bold**"))
    server.fault("editMessageText", Refusal(400, words=complaint))
    await bot.edit(sent, words("**bolder**"))
    assert [seen.text for seen in server.list_messages()] == ["**bolder**"]
    assert "parse_mode" not in server.calls("sendMessage")[1]


async def test_an_edit_changes_text_and_buttons(bot: Platform, server: TelegramServer) -> None:
    await server.say("hi")
    sent = await bot.send(words("Run it?", buttons=(Button("Yes", "y:1", "good"), Button("No", "n:1", "bad"))))
    assert server.list_messages()[0].buttons == (("Yes", "y:1"), ("No", "n:1"))
    await bot.edit(sent, words("It ran."))
    [seen] = server.list_messages()
    assert (seen.text, seen.buttons, seen.edits) == ("It ran.", (), 1)


async def test_an_edit_that_changes_nothing_is_fine(bot: Platform, server: TelegramServer) -> None:
    await server.say("hi")
    sent = await bot.send(words("same"))
    await bot.edit(sent, words("same"))
    assert server.list_messages()[0].edits == 0


async def test_a_message_that_is_gone_can_neither_be_edited_nor_deleted(bot: Platform, server: TelegramServer) -> None:
    await server.say("hi")
    sent = await bot.send(words("soon gone"))
    await bot.delete(sent, DM)
    assert server.list_messages() == ()
    with pytest.raises(Rejected, match="not found"):
        await bot.edit(sent, words("x"))
    with pytest.raises(Rejected, match="not found"):
        await bot.delete(sent, DM)


async def test_a_press_tells_who_and_where_and_is_answered(bot: Platform, server: TelegramServer) -> None:
    server.group(GROUP)
    where = Address("telegram", GROUP)
    sent = await bot.send(words("Run it?", where, buttons=(Button("Yes", "y:1"),)))
    await server.press(sent, "y:1", user="1002", chat=GROUP)
    [press] = (await next_batch(bot)).items
    assert press == Press("1", where, "group", Sender("1002", "Person 1002"), "y:1", sent)
    assert isinstance(press, Press)
    await bot.answer(press, "x" * 300)
    [call] = server.calls("answerCallbackQuery")
    assert len(call["text"]) == 200
    with pytest.raises(Rejected, match="too old"):
        await bot.answer(msgspec.structs.replace(press, id="77"), "late")


async def test_long_labels_stand_below_each_other(bot: Platform, server: TelegramServer) -> None:
    await server.say("hi")
    await bot.send(words("?", buttons=tuple(Button("Allow it for this session", f"d:{at}") for at in range(3))))
    keyboard = server.calls("sendMessage")[0]["reply_markup"]["inline_keyboard"]
    assert [len(row) for row in keyboard] == [1, 1, 1]


async def test_typing_and_reactions_are_shown(bot: Platform, server: TelegramServer) -> None:
    message = await server.say("hi")
    await bot.show_typing(DM)
    await bot.react(DM, message, "👀")
    await bot.react(DM, message, "✅")
    assert server.calls("sendChatAction")[0]["action"] == "typing"
    assert [call["reaction"][0]["emoji"] for call in server.calls("setMessageReaction")] == ["👀", "👍"]
    with pytest.raises(Rejected, match="REACTION_INVALID"):
        await bot.react(DM, message, "🦖")


async def test_the_menu_has_the_commands_that_telegram_can_have(bot: Platform, server: TelegramServer) -> None:
    await bot.offer_commands([("new", "Begin a new conversation"), ("odd-name", "x"), ("Stop", "x"), ("usage", "")])
    [call] = server.calls("setMyCommands")
    assert call["commands"] == [
        {"command": "new", "description": "Begin a new conversation"},
        {"command": "usage", "description": "usage"},
    ]


async def test_length_is_counted_as_telegram_counts(bot: Platform, server: TelegramServer) -> None:
    await server.say("hi")
    capabilities = bot.capabilities
    text = "🦉" * (capabilities.max_chars // 2)
    assert capabilities.length(text) == capabilities.max_chars
    assert capabilities.max_chars <= 4096 - 90
    await bot.send(words(text))
    assert server.list_messages()[0].text == text


async def test_a_table_that_grows_too_long_by_its_columns_is_sent_as_it_was_written(
    bot: Platform, server: TelegramServer
) -> None:
    await server.say("hi")
    text = "| a | b |\n|---|---|\n" + "| x | y |\n" * 200 + f"| {'w' * 100} | z |\n"
    await bot.send(words(text))
    assert server.list_messages()[0].text == text.strip()


async def test_an_unknown_message_id_is_rejected(bot: Platform, server: TelegramServer) -> None:
    await server.say("hi")
    with pytest.raises(Rejected):
        await bot.edit(SentId("no number"), words("x"))


async def test_a_topic_is_answered_in_the_topic(bot: Platform, server: TelegramServer) -> None:
    await server.say("hello", chat=GROUP, thread="77")
    arrival = await next_arrival(bot)
    assert arrival.where == Address("telegram", GROUP, "77")
    await bot.send(words("here", arrival.where))
    await bot.show_typing(arrival.where)
    assert server.list_messages(chat=GROUP)[0].thread == "77"
    assert server.calls("sendChatAction")[0]["message_thread_id"] == "77"


async def test_the_first_topic_of_a_forum_is_written_to_without_its_number(
    bot: Platform, server: TelegramServer
) -> None:
    server.group(GROUP, is_forum=True)
    await server.say("hello", chat=GROUP)
    arrival = await next_arrival(bot)
    assert arrival.where == Address("telegram", GROUP, "1")
    await bot.send(words("here", arrival.where))
    await bot.show_typing(arrival.where)
    assert server.list_messages(chat=GROUP)[0].thread == ""
    assert server.calls("sendChatAction")[0]["message_thread_id"] == "1"


async def test_topics_of_a_private_chat_are_threads_and_their_loss_loses_no_answer(
    bot: Platform, server: TelegramServer
) -> None:
    await server.say("hello", thread="5")
    arrival = await next_arrival(bot)
    assert (arrival.kind, arrival.where) == ("dm", Address("telegram", "1001", "5"))
    await bot.send(words("in the topic", arrival.where))
    server.drop_topic("1001", "5")
    await bot.send(words("beside it", arrival.where))
    assert [seen.thread for seen in server.list_messages()] == ["5", ""]


async def test_a_topic_that_is_gone_is_access_lost(bot: Platform, server: TelegramServer) -> None:
    await server.say("hello", chat=GROUP, thread="5")
    server.drop_topic(GROUP, "5")
    with pytest.raises(AccessLost, match="thread not found"):
        await bot.send(words("x", Address("telegram", GROUP, "5")))


async def test_threads_are_created_in_forums_only(bot: Platform, server: TelegramServer) -> None:
    server.group(GROUP, is_forum=True)
    server.group("-1005550002")
    made = await bot.create_thread(Address("telegram", GROUP), "Talaria - a talk" + "!" * 200)
    assert made is not None
    await bot.send(words("inside", made))
    assert server.list_messages(chat=GROUP)[0].thread == made.thread
    assert await bot.create_thread(Address("telegram", "-1005550002"), "x") is None
    server.fault("createForumTopic", Refusal(400, words="Bad Request: not enough rights to create a topic"))
    assert await bot.create_thread(Address("telegram", GROUP), "x") is None


async def test_what_is_said_in_a_topic_that_we_began_is_not_a_reply_to_us(
    bot: Platform, server: TelegramServer
) -> None:
    server.group(GROUP, is_forum=True)
    made = await bot.create_thread(Address("telegram", GROUP), "ours")
    assert made is not None
    await server.say("among ourselves", chat=GROUP, thread=made.thread, reply_to=made.thread)
    arrival = await next_arrival(bot)
    assert (arrival.is_addressed, arrival.reply_to) == (False, None)


async def test_a_group_that_moved_says_where_to(bot: Platform, server: TelegramServer) -> None:
    server.group("-777")
    moved_to = server.migrate("-777")
    with pytest.raises(ChatMoved) as moved:
        await bot.send(words("x", Address("telegram", "-777")))
    assert moved.value.to == Address("telegram", moved_to)
    await bot.send(words("x", moved.value.to))


async def test_who_blocked_or_removed_us_cannot_be_written_to(bot: Platform, server: TelegramServer) -> None:
    server.block("1001")
    server.remove(GROUP)
    for where in (DM, Address("telegram", GROUP), Address("telegram", "404404")):
        with pytest.raises(AccessLost):
            await bot.send(words("x", where))
        with pytest.raises(AccessLost):
            await bot.show_typing(where)


@pytest.mark.parametrize("where", [Address("telegram", "@name"), Address("telegram", "1001", "x")])
async def test_an_address_that_telegram_cannot_have_is_rejected(bot: Platform, where: Address) -> None:
    with pytest.raises(Rejected, match="numbers"):
        await bot.send(words("x", where))


async def test_files_of_people_are_attachments_and_are_fetched(
    bot: Platform, server: TelegramServer, tmp_path: Path
) -> None:
    content = bytes(range(256)) * 1000
    file = server.keep_file(content)
    small, large = ({"file_id": name, "width": size, "height": size} for name, size in (("small", 90), (file, 1280)))
    await server.post({"photo": [large, small], "caption": "look @talaria_bot", "media_group_id": "1"})
    arrival = await next_arrival(bot)
    assert (arrival.text, arrival.is_continued) == ("look @talaria_bot", True)
    assert arrival.attachments == (Attachment("image", file, "photo.jpg", "image/jpeg"),)
    await bot.fetch(arrival.attachments[0], tmp_path / "photo", len(content))
    assert (tmp_path / "photo").read_bytes() == content


async def test_a_file_that_is_too_large_or_gone_leaves_nothing_behind(
    bot: Platform, server: TelegramServer, tmp_path: Path
) -> None:
    to = tmp_path / "file"
    attachment = Attachment("document", server.keep_file(b"x" * 300_000), size_bytes=10)
    with pytest.raises(Rejected, match="larger than 299,999 bytes"):
        await bot.fetch(attachment, to, 299_999)
    server.fault("file", Refusal(404))
    with pytest.raises(Rejected, match="no longer has"):
        await bot.fetch(attachment, to, 300_000)
    with pytest.raises(Rejected, match="invalid file_id"):
        await bot.fetch(Attachment("document", "unknown"), to, 300_000)
    assert not to.exists()


async def test_a_download_that_breaks_off_leaves_nothing_behind(
    bot: Platform, server: TelegramServer, tmp_path: Path
) -> None:
    attachment = Attachment("document", server.keep_file(b"x" * 300_000))
    server.fault("file", LostAnswer())
    with pytest.raises(telegram.NotTaken):
        await bot.fetch(attachment, tmp_path / "file", 300_000)
    assert not (tmp_path / "file").exists()
    await bot.fetch(attachment, tmp_path / "file", 300_000)


async def test_files_are_sent_with_name_and_caption(bot: Platform, server: TelegramServer, tmp_path: Path) -> None:
    await server.say("hi")
    path = tmp_path / "x"
    path.write_bytes(b"%PDF" * 50_000)
    sent = await bot.send(words("the **report**", file=File(path, "Übersicht\n2.pdf", "application/pdf")))
    [seen] = server.list_messages()
    assert (seen.file, seen.text) == ("Übersicht_2.pdf", "the report")
    assert server.file(seen.file) == path.read_bytes()
    await bot.edit(sent, words("the old report", file=File(path, "x")))
    assert server.list_messages()[0].text == "the old report"


async def test_pictures_are_photos_unless_telegram_does_not_like_them(
    bot: Platform, server: TelegramServer, tmp_path: Path
) -> None:
    await server.say("hi")
    path = tmp_path / "x"
    path.write_bytes(b"png")
    picture = words("", file=File(path, "a.png", "image/png"))
    await bot.send(picture)
    server.fault("sendPhoto", Refusal(400, words="Bad Request: PHOTO_INVALID_DIMENSIONS"))
    await bot.send(picture)
    with path.open("r+b") as file:
        file.truncate(10 * 2**20 + 1)
    await bot.send(picture)
    assert [len(server.calls(method)) for method in ("sendPhoto", "sendDocument")] == [2, 2]
    assert [seen.file for seen in server.list_messages()] == ["a.png"] * 3


async def test_a_file_that_is_not_there_is_rejected(bot: Platform, server: TelegramServer, tmp_path: Path) -> None:
    await server.say("hi")
    with pytest.raises(Rejected, match="No such file"):
        await bot.send(words("", file=File(tmp_path / "none", "a.png", "image/png")))


async def test_a_caption_is_as_long_as_telegram_allows(bot: Platform, server: TelegramServer, tmp_path: Path) -> None:
    await server.say("hi")
    path = tmp_path / "x"
    path.write_bytes(b"x")
    await bot.send(words("**word** " * 300, file=File(path, "a.bin")))
    assert len(server.list_messages()[0].text) == 1024
