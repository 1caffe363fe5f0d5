"""What happens on Slack arrives through the port: once it is durable it is acknowledged, and what was missed is asked
for."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from talaria.core.clock import Clock, SystemClock
from talaria.core.secret import decode_secret
from talaria.platforms.base import (
    Address,
    Arrival,
    Attachment,
    Batch,
    Deleted,
    Item,
    Kit,
    NotTaken,
    Outbound,
    Platform,
    Refused,
    Sender,
)
from talaria.platforms.slack import history
from talaria.platforms.slack.config import SlackSettings
from talaria.platforms.slack.platform import open as open_slack
from talaria.testing.manual_clock import ManualClock
from talaria.testing.servers.chat_service import ChatService, LostAnswer, Refusal
from talaria.testing.servers.slack_server import SlackServer

DM = Address("slack", "D1001")
CHANNEL = Address("slack", "C7")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
async def server() -> AsyncIterator[SlackServer]:
    async with SlackServer() as server:
        yield server


def settings_of(server: ChatService, **more: Any) -> SlackSettings:
    return msgspec.convert({"ping_s": 5.0, **server.settings, **more}, SlackSettings, dec_hook=decode_secret)


@asynccontextmanager
async def opened(
    server: ChatService,
    *,
    clock: Clock | None = None,
    is_allowed: Callable[[Sender], bool] = lambda _: True,
    **settings: Any,
) -> AsyncGenerator[Platform]:
    kit = Kit(Path("unused"), clock or SystemClock(), is_allowed)
    async with asyncio.timeout(20), open_slack(settings_of(server, **settings), kit) as platform:
        yield platform


class Reader:
    """Reads, and makes durable what it reads."""

    def __init__(self, platform: Platform, cursor: str | None = None) -> None:
        self.platform = platform
        self.stream = platform.receive(cursor)
        self.cursor = cursor

    async def batch(self) -> Batch:
        """Acknowledged."""
        batch = await anext(self.stream)
        self.cursor = batch.cursor or self.cursor
        await self.platform.acknowledge(batch)
        return batch

    async def items(self, count: int) -> list[Item]:
        items: list[Item] = []
        while len(items) < count:
            items += (await self.batch()).items
        return items

    async def arrival(self) -> Arrival:
        (item,) = await self.items(1)
        assert isinstance(item, Arrival)
        return item

    async def to_the_end(self) -> None:
        while True:
            await self.batch()

    async def texts(self, count: int) -> list[str]:
        return [item.text for item in await self.items(count) if isinstance(item, Arrival)]


async def cursor_after(server: SlackServer, *words: str, **place: str) -> str:
    """Of somebody who has read these, and went away."""
    async with opened(server) as platform:
        reader = Reader(platform)
        for one in words:
            await server.say(one, **place)
            await reader.items(1)
    await server.wait_for_lines(0)
    assert reader.cursor
    return reader.cursor


async def test_a_direct_message_arrives_with_who_said_it_and_where(server: SlackServer) -> None:
    async with opened(server) as platform:
        reader = Reader(platform)
        id = await server.say("hello &amp; <https://a.example|a page> &lt;b&gt;")
        arrival = await reader.arrival()
    assert arrival == Arrival(
        id,
        DM,
        "dm",
        Sender("U1001", "name-of-U1001"),
        "hello & a page (https://a.example) <b>",
        sent_at=float(id),
    )
    assert platform.account == "T0001:UBOT1"


async def test_an_envelope_is_acknowledged_when_it_is_durable_and_not_before(server: SlackServer) -> None:
    async with opened(server) as platform:
        reader = Reader(platform)
        await server.say("one")
        batch = Batch()
        while not batch.items:
            batch = await anext(reader.stream)
        assert server.acknowledged == ()
        await platform.acknowledge(batch)
        assert list(await server.wait_for_acknowledged(1)) == batch.token.split()


async def test_what_is_not_acknowledged_comes_again_with_the_same_id() -> None:
    async with SlackServer(ack_within_s=0.05) as server, opened(server) as platform:
        stream = platform.receive(None)
        await server.say("one")
        seen: list[str] = []
        while len(seen) < 2:
            seen += [item.message_id for item in (await anext(stream)).items if isinstance(item, Arrival)]
    assert len(set(seen)) == 1


async def test_what_was_not_acknowledged_before_a_crash_comes_over_the_next_line() -> None:
    async with SlackServer() as server:
        async with opened(server) as platform:
            await server.command("status")
            batch = Batch()
            async for batch in platform.receive(None):
                if batch.items:
                    break
        async with opened(server) as platform:
            again = await Reader(platform).arrival()
    assert again == batch.items[0]


async def test_what_concerns_nobody_is_acknowledged_too(server: SlackServer) -> None:
    async with opened(server) as platform:
        reader = Reader(platform)
        await reader.batch()  # from where on nothing is missed
        await server.tell({"type": "channel_created", "channel": {"id": "C9", "name": "new"}})
        batch = await reader.batch()
        assert list(await server.wait_for_acknowledged(1)) == batch.token.split()
    assert batch.items == ()


@pytest.mark.parametrize(
    "event",
    [
        {"subtype": "message_changed", "message": {"text": "new", "user": "U1001"}},
        {"subtype": "bot_message", "bot_id": "B9"},
        {"bot_id": "B9"},
        {"user": "UBOT1"},
        {"subtype": "channel_join"},
        {"hidden": True},
    ],
    ids=str,
)
async def test_edits_bots_and_our_own_words_are_not_heard(server: SlackServer, event: dict[str, Any]) -> None:
    async with opened(server) as platform:
        reader = Reader(platform)
        usual = {"type": "message", "channel": "C7", "user": "U1001", "text": "x", "ts": "1700000000.000100"}
        await server.tell({**usual, **event})
        await server.say("after")
        assert await reader.texts(1) == ["after"]


async def test_a_mention_comes_twice_with_one_id_and_both_are_for_us(server: SlackServer) -> None:
    async with opened(server) as platform:
        reader = Reader(platform)
        id = await server.say(f"{server.mention} what is this?", chat="C7")
        items = await reader.items(2)
    for item in items:
        assert isinstance(item, Arrival)
        assert (item.message_id, item.is_addressed, item.text, item.kind) == (id, True, "what is this?", "group")
        assert item.where == CHANNEL


async def test_in_a_channel_only_a_mention_or_a_reply_to_us_is_for_us(server: SlackServer) -> None:
    async with opened(server) as platform:
        reader = Reader(platform)

        async def is_addressed(text: str, thread: str = "") -> bool:
            await server.say(text, chat="C7", thread=thread)
            return (await reader.arrival()).is_addressed

        stranger = await server.say("something", chat="C7")
        assert not (await reader.arrival()).is_addressed
        assert not await is_addressed("<@U2> look", stranger)
        assert not await is_addressed("a reply to somebody", stranger)
        ours = await platform.send(Outbound(CHANNEL, "a word of ours", "k1"))
        assert await is_addressed("a reply to us", ours)
        assert not await is_addressed("<@U2> a reply to somebody there", ours)
        await platform.send(Outbound(Address("slack", "C7", stranger), "we join in", "k2"))
        assert await is_addressed("a reply in a thread that we joined", stranger)


async def test_a_second_word_in_the_same_breath_is_for_us_like_the_first(server: SlackServer) -> None:
    thread = await server.say("a thread", chat="C7")
    async with opened(server) as platform:
        reader = Reader(platform)
        await server.say(f"{server.mention} join us", chat="C7", thread=thread)
        await server.say("and do this", chat="C7", thread=thread)
        items = await reader.items(3)
    assert all(isinstance(item, Arrival) and item.is_addressed for item in items)


async def test_a_reply_in_a_thread_comes_from_that_thread(server: SlackServer) -> None:
    async with opened(server) as platform:
        reader = Reader(platform)
        parent = await server.say("top", chat="C7")
        await server.say("reply", chat="C7", thread=parent)
        top, reply = await reader.items(2)
    assert (top.where, reply.where) == (CHANNEL, Address("slack", "C7", parent))


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("status", "/status"),
        ("", "/help"),
        ("  model  gpt ", "/model  gpt"),
        ("/stop", "/stop"),
        ("what now?", "/what now?"),
    ],
)
async def test_a_slash_command_is_a_command_for_us(server: SlackServer, typed: str, text: str) -> None:
    async with opened(server) as platform:
        reader = Reader(platform)
        await server.command(typed, chat="C7")
        arrival = await reader.arrival()
    assert (arrival.text, arrival.is_addressed, arrival.where, arrival.sender.id) == (text, True, CHANNEL, "U1001")


async def test_files_arrive_as_attachments(server: SlackServer) -> None:
    async with opened(server) as platform:
        reader = Reader(platform)
        await server.share("cat.png", b"png", "image/png", text="look")
        arrival = await reader.arrival()
    assert arrival.text == "look"
    assert arrival.attachments == (Attachment("image", "F0001", "cat.png", "image/png", 3),)


async def test_people_are_told_apart_by_id_whatever_they_call_themselves(server: SlackServer) -> None:
    server.rename("1001", "Ann")
    server.rename("1002", "Ann")
    async with opened(server) as platform:
        reader = Reader(platform)
        await server.say("I", chat="C7")
        await server.say("me too", chat="C7", user="1002")
        items = await reader.items(2)
    assert [item.sender for item in items if isinstance(item, Arrival)] == [
        Sender("U1001", "Ann"),
        Sender("U1002", "Ann"),
    ]


async def test_a_deletion_is_told(server: SlackServer) -> None:
    async with opened(server) as platform:
        reader = Reader(platform)
        said = await server.say("not this", chat="C7")
        await server.remove(said, chat="C7")
        _, item = await reader.items(2)
    assert item == Deleted(Address("slack", "C7"), said)


async def test_nobody_asks_who_a_stranger_is(server: SlackServer) -> None:
    async with opened(server, is_allowed=lambda sender: sender.id == "U1001") as platform:
        reader = Reader(platform)
        for user in ("2001", "2002", "1001", "1001"):
            await server.say("x", user=user)
        items = await reader.items(4)
    assert [item.sender.name for item in items if isinstance(item, Arrival)] == [
        "",
        "",
        "name-of-U1001",
        "name-of-U1001",
    ]
    assert [call["user"] for call in server.calls("users.info")] == ["U1001"]


async def test_a_name_that_cannot_be_read_holds_nothing_up(server: SlackServer) -> None:
    server.fault("users.info", Refusal(200, words="missing_scope"))
    async with opened(server) as platform:
        reader = Reader(platform)
        await server.say("x")
        assert (await reader.arrival()).sender == Sender("U1001", "")


async def test_an_empty_batch_says_that_the_line_was_proven_alive(server: SlackServer) -> None:
    async with opened(server, ping_s=1.0) as platform:
        reader = Reader(platform)
        assert (await reader.batch()).cursor  # from where on nothing is missed
        assert [await reader.batch(), await reader.batch()] == [Batch(), Batch()]


async def test_a_line_on_which_no_ping_is_answered_is_not_called_alive(server: SlackServer) -> None:
    server.answers_pings = False
    async with opened(server, ping_s=0.3) as platform:
        reader = Reader(platform)
        await reader.batch()
        with pytest.raises(NotTaken):
            await reader.batch()


@pytest.mark.parametrize("how", ["silence", "cut", "close", "warning", "refresh_requested", "too_many_websockets"])
async def test_a_line_that_ends_is_told(server: SlackServer, how: str) -> None:
    async with opened(server, ping_s=0.2) as platform:
        reader = Reader(platform)
        match how:
            case "silence":
                server.answers_pings = False
            case "cut":
                server.cut_lines()
            case "close":
                await server.close_lines()
            case _:
                await server.disconnect(how)
        with pytest.raises(NotTaken):
            await reader.to_the_end()
    await server.wait_for_lines(0)


async def test_what_came_before_the_end_of_the_line_is_handed_over_first(server: SlackServer) -> None:
    async with opened(server) as platform:
        reader = Reader(platform)
        await server.say("last words")
        await server.disconnect("refresh_requested")
        assert await reader.texts(1) == ["last words"]
        await server.wait_for_acknowledged(1)
        with pytest.raises(NotTaken, match="refresh_requested"):
            await reader.batch()


async def test_socket_mode_that_is_turned_off_needs_somebody_to_act(server: SlackServer) -> None:
    async with opened(server) as platform:
        reader = Reader(platform)
        await server.disconnect("link_disabled")
        with pytest.raises(Refused, match="Socket Mode is turned off"):
            await reader.to_the_end()


@pytest.mark.parametrize(
    ("method", "fault", "expected"),
    [
        ("auth.test", Refusal(200, words="invalid_auth"), Refused),
        ("auth.test", Refusal(503), NotTaken),
        ("auth.test", LostAnswer(), NotTaken),
        ("apps.connections.open", Refusal(200, words="not_allowed_token_type"), Refused),
        ("apps.connections.open", Refusal(429, retry_after_s=30), NotTaken),
        ("apps.connections.open", Refusal(200, words="missing_scope", extra={"needed": "connections:write"}), Refused),
    ],
)
async def test_a_door_that_stays_shut_says_why(
    server: SlackServer, method: str, fault: Refusal | LostAnswer, expected: type[Exception]
) -> None:
    server.fault(method, fault)
    with pytest.raises(expected) as failure:
        async with opened(server):
            pass
    assert "xoxb" not in str(failure.value)
    if isinstance(fault, Refusal) and fault.extra:
        assert "connections:write" in str(failure.value)
    assert getattr(failure.value, "retry_after_s", None) == (
        30 if isinstance(fault, Refusal) and fault.status == 429 else None
    )


async def test_a_second_program_on_the_same_app_is_told_in_the_log(
    server: SlackServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(server), opened(server):
        pass
    assert "2 programs are connected" in caplog.text


async def test_no_message_is_logged(server: SlackServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with opened(server) as platform:
        reader = Reader(platform)
        await server.say("a secret matter")
        await reader.items(1)
        await platform.send(Outbound(DM, "a secret answer", "k"))
    assert "secret" not in caplog.text


async def test_what_was_said_while_we_were_away_is_asked_for_in_order(server: SlackServer) -> None:
    cursor = await cursor_after(server, "before")
    await server.say("first")
    await server.say("second")
    async with opened(server) as platform:
        texts = await Reader(platform, cursor).texts(3)
    assert texts == ["before", "first", "second"]  # what was read already is known by its id


async def test_a_first_visit_asks_for_nothing(server: SlackServer) -> None:
    await server.say("long ago")
    async with opened(server) as platform:
        reader = Reader(platform)
        await server.say("now")
        assert await reader.texts(1) == ["now"]
    assert server.calls("conversations.history") == ()


async def test_somebody_new_who_wrote_meanwhile_is_heard(server: SlackServer) -> None:
    cursor = await cursor_after(server, "before")
    await server.say("hello, I am new", user="1002")
    async with opened(server) as platform:
        texts = await Reader(platform, cursor).texts(2)
    assert sorted(texts) == ["before", "hello, I am new"]


async def test_missed_words_in_channels_and_their_threads_are_found(server: SlackServer) -> None:
    thread = await server.say("an old thread", chat="C7")
    async with opened(server) as platform:
        reader = Reader(platform)
        await server.say(f"{server.mention} join us", chat="C7", thread=thread)
        await server.say("top", chat="C7")
        await reader.items(3)
    await server.wait_for_lines(0)
    await server.say("missed in the thread", chat="C7", thread=thread)
    new = await server.say(f"{server.mention} missed at the top", chat="C7")
    await server.say("missed in a new thread", chat="C7", thread=new)
    async with opened(server) as platform:
        again = Reader(platform, reader.cursor)
        found: dict[str, Arrival] = {}
        while not {"missed in the thread", "missed at the top", "missed in a new thread"} <= set(found):
            found |= {item.text: item for item in (await again.batch()).items if isinstance(item, Arrival)}
    assert found["missed in the thread"].where == Address("slack", "C7", thread)
    assert found["missed in the thread"].is_addressed
    assert found["missed at the top"].is_addressed
    assert found["missed in a new thread"].where == Address("slack", "C7", new)


async def test_missed_words_come_page_by_page_and_are_bounded(server: SlackServer) -> None:
    cursor = await cursor_after(server, "before")
    most = history.PAGE * history.MOST_PAGES
    for number in range(most + 50):
        await server.say(f"n{number}")
    async with opened(server) as platform:
        texts = await Reader(platform, cursor).texts(most)
    assert texts == [f"n{number}" for number in range(50, most + 50)]


async def test_what_is_older_than_a_day_is_not_answered_any_more(server: SlackServer) -> None:
    cursor = await cursor_after(server, "before")
    await server.say("yesterday")
    clock = ManualClock(SystemClock().now() + history.HORIZON_S + 60)
    async with opened(server, clock=clock) as platform:
        await server.say("now")
        assert await Reader(platform, cursor).texts(1) == ["now"]
    assert len(server.calls("conversations.history")) == 1


async def test_a_limit_on_asking_holds_up_neither_what_arrives_nor_the_rest_for_good(server: SlackServer) -> None:
    cursor = await cursor_after(server, "before")
    await server.say("missed")
    server.fault("conversations.history", Refusal(429, retry_after_s=120))
    clock = ManualClock(SystemClock().now())
    async with opened(server, clock=clock) as platform:
        reader = Reader(platform, cursor)
        while server.calls("conversations.history") == ():
            await reader.batch()
        await server.say("live")
        assert await reader.texts(1) == ["live"]
        assert reader.cursor
        assert json.loads(reader.cursor)["D1001"] == json.loads(cursor)["D1001"]  # so that a crash now loses nothing
        assert len(server.calls("conversations.history")) == 1
        clock.advance(120)
        assert await reader.texts(3) == ["before", "missed", "live"]
        assert json.loads(reader.cursor)["D1001"] > json.loads(cursor)["D1001"]


async def test_what_was_missed_comes_before_what_arrives_in_the_same_chat(server: SlackServer) -> None:
    cursor = await cursor_after(server, "before", chat="C7")
    for number in range(30):
        await server.say("x", chat=f"C{100 + number}")
    await server.say("missed", chat="C7")
    async with opened(server) as platform:
        await server.say("live", chat="C7")
        texts = await Reader(platform, cursor).texts(3)
    assert texts[:2] == ["before", "missed"]


async def test_a_channel_that_cannot_be_read_any_more_is_passed_over(
    server: SlackServer, caplog: pytest.LogCaptureFixture
) -> None:
    cursor = await cursor_after(server, "before", chat="C7")
    server.remove_bot("C7")
    await server.say("missed")
    async with opened(server) as platform:
        assert await Reader(platform, cursor).texts(1) == ["missed"]
    assert "C7" in caplog.text


async def test_a_thread_of_ours_is_still_ours_after_a_restart(server: SlackServer) -> None:
    thread = await server.say("a thread", chat="C7")
    async with opened(server) as platform:
        reader = Reader(platform)
        await server.say(f"{server.mention} join us", chat="C7", thread=thread)
        await reader.items(2)
    async with opened(server) as platform:
        again = Reader(platform, reader.cursor)
        await server.say("and now?", chat="C7", thread=thread)
        found: dict[str, Arrival] = {}
        while "and now?" not in found:
            found |= {item.text: item for item in (await again.batch()).items if isinstance(item, Arrival)}
    assert found["and now?"].is_addressed


async def test_the_cursor_stays_small(server: SlackServer) -> None:
    async with opened(server) as platform:
        reader = Reader(platform)
        for number in range(history.MOST_MARKS + 20):
            await server.say("x", chat=f"C{number:04}")
        await reader.items(history.MOST_MARKS + 20)
    marks = msgspec.json.decode(reader.cursor or "", type=dict[str, str])
    assert len(marks) == history.MOST_MARKS + 1
    assert "C0000" not in marks
    assert f"C{history.MOST_MARKS + 19:04}" in marks


@pytest.mark.parametrize("cursor", ["nonsense", "[]", '{"C7": "x", "D1001": "-1"}', '{"a:b:c": "1.5"}'])
async def test_a_cursor_that_cannot_be_read_does_not_keep_us_out(server: SlackServer, cursor: str) -> None:
    async with opened(server) as platform:
        reader = Reader(platform, cursor)
        await server.say("hello")
        assert "hello" in await reader.texts(1)
