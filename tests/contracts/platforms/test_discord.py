"""Discord through its port, against `DiscordServer`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.servers.discord_server import DiscordServer

from talaria.core.clock import Clock, SystemClock
from talaria.core.secret import Secret
from talaria.platforms.base import (
    Address,
    Attachment,
    Batch,
    Button,
    Deleted,
    File,
    Item,
    Kit,
    Outbound,
    Platform,
    PlatformManifest,
    Quoted,
    Rejected,
    Sender,
)
from talaria.platforms.discord import config
from talaria.platforms.discord import platform as discord_platform
from talaria.platforms.discord.config import DiscordSettings
from talaria.testing.manual_clock import ManualClock
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.chat_service import ChatService

CHANNEL = "2001"
THREAD = "2500"


@asynccontextmanager
async def opened(
    server: DiscordServer, home: Path = Path(), clock: Clock | None = None, **more: Any
) -> AsyncGenerator[Platform]:
    given: dict[str, Any] = {"token": Secret(server.token), "api_url": server.url, **more}
    kit = Kit(home, clock or SystemClock(), is_allowed=lambda sender: sender.id.startswith("1"))
    async with asyncio.timeout(PATIENCE_S), discord_platform.open(DiscordSettings(**given), kit) as platform:
        yield platform


async def heard(platform: Platform, count: int, cursor: str | None = None) -> tuple[list[Any], str]:
    """The first `count` items, and the cursor behind them."""
    items: list[Item] = []
    async with aclosing(platform.receive(cursor)) as batches:
        async for batch in batches:
            items += batch.items
            cursor = batch.cursor or cursor
            if len(items) >= count:
                break
    assert cursor is not None
    return items, cursor


@pytest.fixture
async def server() -> AsyncIterator[DiscordServer]:
    async with DiscordServer() as running:
        yield running


@pytest.fixture
async def platform(server: DiscordServer, tmp_path: Path) -> AsyncIterator[Platform]:
    async with opened(server, tmp_path) as running:
        yield running


def out(where: Address, text: str = "hello", key: str = "k", **more: Any) -> Outbound:
    return Outbound(where, text, key, **more)


def direct(server: DiscordServer, user: str = "1001") -> Address:
    return Address("discord", server.dm(user))


def test_server_is_a_chat_service() -> None:
    service: ChatService = DiscordServer()
    assert service.settings["token"] == "discord-token"


def test_manifest_says_what_is_needed() -> None:
    text = Path(config.__file__).with_name("manifest.toml").read_bytes()
    manifest = msgspec.toml.decode(text, type=PlatformManifest)
    assert set(manifest.environment.values()) <= {*DiscordSettings.__struct_fields__}
    assert manifest.required == manifest.secrets == ("token",)


async def test_account_is_the_bots_id(server: DiscordServer, platform: Platform) -> None:
    assert (platform.name, platform.account) == ("discord", server.bot)


async def test_direct_message_arrives(server: DiscordServer, platform: Platform) -> None:
    id = await server.say("good morning")
    [arrival], _ = await heard(platform, 1)
    assert (arrival.message_id, arrival.where, arrival.kind) == (id, direct(server), "dm")
    assert (arrival.text, arrival.sender) == ("good morning", Sender("1001", "User1001"))
    assert abs(arrival.sent_at - SystemClock().now()) < 60


async def test_people_of_one_name_stay_two(server: DiscordServer, platform: Platform) -> None:
    server.name("1001", "ada")
    server.name("1002", "ada")
    await server.say("I", user="1001")
    await server.say("also I", user="1002")
    [first, second], _ = await heard(platform, 2)
    assert (first.sender.name, first.sender.id) == ("Ada", "1001")
    assert (second.sender.name, second.sender.id) == ("Ada", "1002")


@pytest.mark.parametrize(
    ("said", "is_addressed", "text"),
    [
        ("nothing for you", False, "nothing for you"),
        ("<@9000> what is it?", True, "what is it?"),
        ("what is <@!9000> it?", True, "what is  it?"),
        ("<@&9001> by role", True, "by role"),
        ("<@&77> another role", False, "<@&77> another role"),
        ("<@1002> not you", False, "@User1002 not you"),
        ("@everyone listen", False, "@everyone listen"),
    ],
)
async def test_mention_in_a_channel_is_noticed(
    server: DiscordServer, platform: Platform, said: str, is_addressed: bool, text: str
) -> None:
    await server.say(said, chat=CHANNEL)
    [arrival], _ = await heard(platform, 1)
    assert (arrival.kind, arrival.where) == ("group", Address("discord", CHANNEL))
    assert (arrival.is_addressed, arrival.text) == (is_addressed, text)


async def test_reply_to_us_addresses_us_and_quotes(server: DiscordServer, platform: Platform) -> None:
    ours = await platform.send(out(Address("discord", CHANNEL), "ask me"))
    theirs = await server.say("me too", chat=CHANNEL)
    await server.say("so?", chat=CHANNEL, reply_to=ours)
    await server.say("oh", chat=CHANNEL, reply_to=theirs)
    [_, to_us, to_them], _ = await heard(platform, 3)
    assert (to_us.is_addressed, to_us.reply_to) == (True, Quoted("ask me", is_ours=True))
    assert (to_them.is_addressed, to_them.reply_to) == (False, Quoted("me too", author="User1001"))


async def test_forwarded_message_is_told_apart_from_a_reply(server: DiscordServer, platform: Platform) -> None:
    original = server.raw(await server.say("what they said", user="1002", file=("a.txt", b"content", "text/plain")))
    await server.say("", message_snapshots=[{"message": original}])
    [_, arrival], _ = await heard(platform, 2)
    assert (arrival.text, arrival.reply_to, arrival.forwarded) == ("", None, Quoted("what they said"))
    assert [each.name for each in arrival.attachments] == ["a.txt"]


async def test_deletions_are_told_one_by_one_and_many_at_once(server: DiscordServer, platform: Platform) -> None:
    said = [await server.say(text, chat=CHANNEL, thread=THREAD) for text in ("one", "two", "three")]
    direct = await server.say("four")
    await server.remove(said[0])
    await server.remove(said[1], said[2])
    await server.remove(direct)
    items, _ = await heard(platform, 8)
    where = Address("discord", CHANNEL, THREAD)
    assert items[4:] == [*(Deleted(where, one) for one in said), Deleted(Address("discord", server.dm()), direct)]


async def test_a_chat_of_several_without_a_server_is_a_group(server: DiscordServer, platform: Platform) -> None:
    await server.say("hello, all of you", channel_type=3)
    [arrival], _ = await heard(platform, 1)
    assert arrival.kind == "group"


async def test_thread_belongs_to_its_channel(server: DiscordServer, platform: Platform) -> None:
    await server.say("in here", chat=CHANNEL, thread=THREAD)
    [arrival], _ = await heard(platform, 1)
    assert arrival.where == Address("discord", CHANNEL, THREAD)
    sent = await platform.send(out(arrival.where, "I am here"))
    [seen] = server.list_messages(chat=CHANNEL)
    assert (seen.id, seen.thread) == (sent, THREAD)


async def test_thread_from_before_we_came_is_known(server: DiscordServer, tmp_path: Path) -> None:
    await server.say("early", chat=CHANNEL, thread=THREAD)
    async with opened(server, tmp_path) as platform:
        await server.say("late", chat=CHANNEL, thread=THREAD)
        [arrival], _ = await heard(platform, 1)
        assert arrival.where == Address("discord", CHANNEL, THREAD)


async def test_thread_that_nobody_told_us_of_is_looked_up_once(server: DiscordServer, platform: Platform) -> None:
    server.add_channel(THREAD, parent=CHANNEL)
    await server.say("one", chat=CHANNEL, thread=THREAD)
    await server.say("two", chat=CHANNEL, thread=THREAD)
    items, _ = await heard(platform, 2)
    assert [each.where for each in items] == [Address("discord", CHANNEL, THREAD)] * 2
    assert [call["channel"] for call in server.calls("get_channel")] == [THREAD]


async def test_bots_webhooks_and_system_messages_are_ignored(server: DiscordServer, platform: Platform) -> None:
    await server.say("beep", author={**server.raw(await server.say("x"))["author"], "bot": True})
    await server.say("hook", webhook_id="55")
    await server.say("joined", type=7)
    await platform.send(out(direct(server), "our own"))
    await server.say("done")
    items, _ = await heard(platform, 2)
    assert [each.text for each in items] == ["x", "done"]


async def test_message_that_is_told_twice_has_one_id(server: DiscordServer, platform: Platform) -> None:
    await server.tell_again(await server.say("once"))
    [first, second], _ = await heard(platform, 2)
    assert first == second


async def test_slash_command_arrives_as_text_and_is_answered_at_once(server: DiscordServer, platform: Platform) -> None:
    id = await server.command("model", "gpt-5", chat=CHANNEL, thread=THREAD)
    [answered] = await server.wait_for_calls("create_interaction_response", 1)
    assert (answered["id"], answered["type"], answered["data"]["flags"]) == (id, 4, 64)
    [arrival], _ = await heard(platform, 1)
    assert (arrival.text, arrival.message_id, arrival.is_addressed) == ("/model gpt-5", id, True)
    assert (arrival.where, arrival.kind) == (Address("discord", CHANNEL, THREAD), "group")
    await platform.send(out(arrival.where, "done", reply_to=arrival.message_id))
    assert [(seen.text, seen.reply_to) for seen in server.list_messages(chat=CHANNEL)] == [("done", "")]


async def test_press_is_acknowledged_silently_and_answered_to_one_person(
    server: DiscordServer, platform: Platform
) -> None:
    buttons = (Button("Yes", "approve:1", "good"), Button("No", "deny:1", "bad"), Button("Later", "later:1"))
    sent = await platform.send(out(direct(server), "May I?", buttons=buttons))
    assert server.list_messages()[0].buttons == (("Yes", "approve:1"), ("No", "deny:1"), ("Later", "later:1"))
    await server.press(sent, "deny:1")
    [press], _ = await heard(platform, 1)
    assert (press.data, press.message_id, press.sender.id) == ("deny:1", sent, "1001")
    assert (press.where, press.kind) == (direct(server), "dm")
    [deferred] = await server.wait_for_calls("create_interaction_response", 1)
    assert deferred["type"] == 6
    await platform.answer(press, "")  # there is nothing to tell
    await platform.answer(press, "Not *yours* to press.")
    [answer] = server.calls("create_followup_message")
    assert (answer["flags"] & 64, answer["content"]) == (64, "Not *yours* to press.")


async def test_many_buttons_stand_in_rows(server: DiscordServer, platform: Platform) -> None:
    buttons = tuple(Button(f"B{at}", f"b{at}") for at in range(7))
    sent = await platform.send(out(direct(server), "Which?", buttons=buttons))
    assert [len(row["components"]) for row in server.raw(sent)["components"]] == [5, 2]


async def test_message_calls_nobody_and_shows_no_previews(server: DiscordServer, platform: Platform) -> None:
    await platform.send(out(direct(server), "@everyone <@1002> https://example.org"))
    [call] = server.calls("create_message")
    assert call["allowed_mentions"] == {"parse": [], "replied_user": False}
    assert call["flags"] == 4
    assert "@everyone" not in call["content"]


async def test_same_key_is_sent_once(server: DiscordServer, platform: Platform) -> None:
    first = await platform.send(out(direct(server), key="turn:1.part:2"))
    again = await platform.send(out(direct(server), key="turn:1.part:2"))
    other = await platform.send(out(direct(server), key="turn:1.part:3"))
    assert first == again != other
    assert len(server.list_messages()) == 2
    server.forget_nonces()
    await platform.send(out(direct(server), key="turn:1.part:2"))
    assert len(server.list_messages()) == 3


async def test_reply_refers_to_the_message_or_to_nothing(server: DiscordServer, platform: Platform) -> None:
    asked = await server.say("?")
    await platform.send(out(direct(server), "!", key="1", reply_to=asked))
    await platform.send(out(direct(server), "!", key="2", reply_to="123"))
    assert [seen.reply_to for seen in server.list_messages()] == [asked, ""]


async def test_message_is_edited_and_deleted(server: DiscordServer, platform: Platform) -> None:
    where = direct(server)
    sent = await platform.send(out(where, "thinking", buttons=(Button("Stop", "stop"),)))
    await platform.edit(sent, out(where, "**thought**"))
    await platform.edit(sent, out(where, "**thought**"))
    [seen] = server.list_messages()
    assert (seen.text, seen.edits, seen.buttons) == ("thought", 1, ())
    await platform.delete(sent, where)
    assert server.list_messages() == []
    with pytest.raises(Rejected):
        await platform.edit(sent, out(where))
    with pytest.raises(Rejected):
        await platform.delete(sent, where)


async def test_typing_and_reactions_are_shown(server: DiscordServer, platform: Platform) -> None:
    asked = await server.say("?")
    await platform.show_typing(direct(server))
    await platform.react(direct(server), asked, "👀")
    assert server.calls("trigger_typing")[0]["channel"] == server.dm()
    assert (server.calls("create_reaction")[0]["message"], server.calls("create_reaction")[0]["emoji"]) == (asked, "👀")


async def test_thread_is_made_in_a_channel_and_nowhere_else(server: DiscordServer, platform: Platform) -> None:
    made = await platform.create_thread(Address("discord", CHANNEL), "A talk")
    assert made is not None
    assert (made.chat, made.thread != "") == (CHANNEL, True)
    assert server.calls("create_thread")[0]["auto_archive_duration"] == 10080
    await platform.send(out(made, "here"))
    assert server.list_messages(chat=CHANNEL)[0].thread == made.thread
    sibling = await platform.create_thread(made, "Another")
    assert sibling is not None
    assert (sibling.chat, sibling.thread != made.thread) == (CHANNEL, True)
    assert await platform.create_thread(direct(server), "No") is None


async def test_commands_are_offered(server: DiscordServer, platform: Platform) -> None:
    await platform.offer_commands([("new", "Begin anew"), ("Bad Name", "left out"), ("status", "x" * 300)])
    assert [(each["name"], each["description"]) for each in server.commands] == [
        ("new", "Begin anew"),
        ("status", "x" * 100),
    ]


async def test_file_is_sent_with_its_caption(server: DiscordServer, platform: Platform, tmp_path: Path) -> None:
    path = tmp_path / "chart"
    path.write_bytes(b"\x89PNG...")
    sent = await platform.send(out(direct(server), "the *chart*", file=File(path, "chart.png", "image/png")))
    [seen] = server.list_messages()
    assert (seen.text, seen.file) == ("the chart", "chart.png")
    assert server.calls("create_message")[0]["files"] == [("chart.png", b"\x89PNG...", "image/png")]
    assert server.raw(sent)["attachments"][0]["size"] == 7


async def test_file_that_is_gone_from_the_disk_is_refused(server: DiscordServer, platform: Platform) -> None:
    with pytest.raises(Rejected, match=r"a\.txt"):
        await platform.send(out(direct(server), file=File(Path("/nowhere/a.txt"), "a.txt")))


@pytest.mark.parametrize(
    ("mime", "more", "kind"),
    [
        ("image/png", {}, "image"),
        ("audio/ogg", {"flags": 8192}, "voice"),
        ("audio/mpeg", {}, "audio"),
        ("video/mp4", {}, "video"),
        ("text/plain; charset=utf-8", {}, "document"),
    ],
)
async def test_attachment_arrives_and_is_fetched(
    server: DiscordServer, platform: Platform, tmp_path: Path, mime: str, more: dict[str, Any], kind: str
) -> None:
    await server.say("look", file=("thing.bin", b"content", mime), **more)
    [arrival], _ = await heard(platform, 1)
    [attachment] = arrival.attachments
    assert (attachment.kind, attachment.name, attachment.size_bytes) == (kind, "thing.bin", 7)
    assert attachment.mime == mime.partition(";")[0]
    await platform.fetch(attachment, tmp_path / "got", 100)
    assert (tmp_path / "got").read_bytes() == b"content"


async def test_expired_address_of_a_file_is_renewed(server: DiscordServer, platform: Platform, tmp_path: Path) -> None:
    said = await server.say("look", file=("a.txt", b"content", "text/plain"))
    [arrival], _ = await heard(platform, 1)
    server.expire_links()
    await platform.fetch(arrival.attachments[0], tmp_path / "got", 100)
    assert (tmp_path / "got").read_bytes() == b"content"
    assert [call["message"] for call in server.calls("get_message")] == [said]


async def test_file_beyond_the_cap_leaves_nothing_behind(
    server: DiscordServer, platform: Platform, tmp_path: Path
) -> None:
    await server.say("look", file=("a.txt", b"x" * 2_000_000, "text/plain"))
    [arrival], _ = await heard(platform, 1)
    lying = msgspec.structs.replace(arrival.attachments[0], size_bytes=10)
    with pytest.raises(Rejected, match="larger"):
        await platform.fetch(lying, tmp_path / "got", 1_000_000)
    assert not (tmp_path / "got").exists()


@pytest.mark.parametrize("ref", ["", "x", "1/2/3 ", "a/b/c ftp://x", "7001001/5/6 {cdn}", "7001001/{said}/6 {cdn}"])
async def test_attachment_that_is_not_there_is_refused(
    server: DiscordServer, platform: Platform, tmp_path: Path, ref: str
) -> None:
    cdn = server.url.replace("/api/v10", "/cdn/attachments/1/2/3")
    ref = ref.replace("{cdn}", cdn).replace("{said}", await server.say("no file"))
    with pytest.raises(Rejected):
        await platform.fetch(Attachment("image", ref), tmp_path / "got", 100)


async def test_what_was_missed_is_read_on_return_and_nothing_twice(server: DiscordServer, tmp_path: Path) -> None:
    async with opened(server, tmp_path) as platform:
        await server.say("one")
        await server.say("one in public", chat=CHANNEL)
        await server.say("one in a thread", chat=CHANNEL, thread=THREAD)
        _, cursor = await heard(platform, 3)
    await server.say("two")
    await server.say("three")
    await server.say("two in public", chat=CHANNEL)
    await server.say("two in a thread", chat=CHANNEL, thread=THREAD)
    async with opened(server, tmp_path) as platform:
        items, cursor = await heard(platform, 4, cursor)
        assert [each.text for each in items if each.kind == "dm"] == ["two", "three"]
        assert {(str(each.where), each.text) for each in items if each.kind == "group"} == {
            ("discord:2001", "two in public"),
            ("discord:2001:2500", "two in a thread"),
        }
        await server.say("four")
        items, cursor = await heard(platform, 1, cursor)
        assert [each.text for each in items] == ["four"]


async def test_missed_pages_come_in_order(server: DiscordServer, tmp_path: Path) -> None:
    async with opened(server, tmp_path) as platform:
        await server.say("first")
        _, cursor = await heard(platform, 1)
    for at in range(230):
        await server.say(str(at))
    async with opened(server, tmp_path) as platform:
        items, _ = await heard(platform, 230, cursor)
        assert [each.text for each in items] == [str(at) for at in range(230)]
        assert len(server.calls("get_messages")) == 3


async def test_first_start_answers_nothing_of_the_past(server: DiscordServer, tmp_path: Path) -> None:
    await server.say("yesterday's")
    await server.say("in public", chat=CHANNEL)
    async with opened(server, tmp_path, allowed_users=("1001",)) as platform:
        await server.say("now")
        items, _ = await heard(platform, 1)
        assert [each.text for each in items] == ["now"]
    assert server.calls("get_messages") == server.calls("create_dm") == ()


async def test_first_words_of_an_allowed_person_are_not_missed(server: DiscordServer, tmp_path: Path) -> None:
    async with opened(server, tmp_path, allowed_users=("1007",)) as platform:
        await server.say("somebody else")
        _, cursor = await heard(platform, 1)
    await server.say("my first words", user="1007")
    async with opened(server, tmp_path, allowed_users=("1007",)) as platform:
        items, _ = await heard(platform, 1, cursor)
        assert [(each.text, each.kind) for each in items] == [("my first words", "dm")]


async def test_what_is_older_than_a_day_is_not_read(server: DiscordServer, tmp_path: Path) -> None:
    async with opened(server, tmp_path) as platform:
        await server.say("first")
        _, cursor = await heard(platform, 1)
    await server.say("missed")
    later = ManualClock(SystemClock().now() + 25 * 3600)
    async with opened(server, tmp_path, later) as platform:
        await server.say("now")
        items, _ = await heard(platform, 1, cursor)
        assert [each.text for each in items] == ["now"]


async def test_channel_that_is_closed_to_us_does_not_stop_the_others(server: DiscordServer, tmp_path: Path) -> None:
    async with opened(server, tmp_path) as platform:
        await server.say("one", user="1001")
        await server.say("one", user="1002")
        _, cursor = await heard(platform, 2)
    await server.say("two", user="1001")
    server.close_chat(user="1002")
    async with opened(server, tmp_path) as platform:
        items, cursor = await heard(platform, 1, cursor)
        assert [each.text for each in items] == ["two"]
        assert server.dm("1002") not in cursor


async def test_cursor_of_another_kind_begins_now(server: DiscordServer, platform: Platform) -> None:
    await server.say("hello")
    items, _ = await heard(platform, 1, "not a cursor")
    assert [each.text for each in items] == ["hello"]


async def test_strangers_do_not_fill_the_cursor(server: DiscordServer, platform: Platform) -> None:
    for at in range(20):
        await server.say("let me in", user=f"66{at:02}")
    _, cursor = await heard(platform, 20)
    assert server.dm("6600") not in cursor


async def test_acknowledging_needs_nothing_of_discord(platform: Platform) -> None:
    await platform.acknowledge(Batch())
