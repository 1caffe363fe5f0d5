"""What goes wrong between Discord and us, and what becomes of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.platforms.test_discord import CHANNEL, direct, heard, opened, out
from tests.ports import reserved_port
from tests.servers.discord_server import DiscordServer

from talaria.core.clock import SystemClock
from talaria.core.secret import Secret
from talaria.platforms.base import (
    AccessLost,
    Address,
    NotTaken,
    Platform,
    PlatformFailure,
    Refused,
    Rejected,
    SentId,
    Unsure,
)
from talaria.testing.manual_clock import ManualClock
from talaria.testing.servers.chat_service import LostAnswer, Refusal, Slow


@pytest.fixture
async def server() -> AsyncIterator[DiscordServer]:
    async with DiscordServer() as running:
        yield running


@pytest.fixture
async def quick() -> AsyncIterator[DiscordServer]:
    """Its heart beats every 50 ms."""
    async with DiscordServer(heartbeat_s=0.05) as running:
        yield running


@pytest.fixture
async def platform(server: DiscordServer) -> AsyncIterator[Platform]:
    async with opened(server) as running:
        yield running


FAULTS = [
    (Refusal(429, 3.25), NotTaken, 3.25),
    (Refusal(429, 61, extra={"global": True}), NotTaken, 61),
    (Refusal(429, extra={"retry_after": None}), NotTaken, None),
    (Refusal(500), Unsure, None),
    (Refusal(502), Unsure, None),
    (Refusal(503), Unsure, None),
    (Refusal(504), Unsure, None),
    (LostAnswer(), Unsure, None),
    (Refusal(400, extra={"code": 50035}), Rejected, None),
    (Refusal(401), Refused, None),
    (Refusal(403, extra={"code": 50001}), AccessLost, None),
    (Refusal(403, extra={"code": 50007}), AccessLost, None),
    (Refusal(403, extra={"code": 50013}), AccessLost, None),
    (Refusal(403, extra={"code": 20009}), Rejected, None),
    (Refusal(403, extra={"code": 40333}), NotTaken, None),
    (Refusal(404, extra={"code": 10003}), AccessLost, None),
    (Refusal(404, extra={"code": 10008}), Rejected, None),
    (Refusal(413, extra={"code": 40005}), Rejected, None),
]


@pytest.mark.parametrize(("fault", "failure", "pause_s"), FAULTS)
async def test_refused_send_says_what_it_means_and_is_not_repeated(
    server: DiscordServer,
    platform: Platform,
    fault: Refusal | LostAnswer,
    failure: type[PlatformFailure],
    pause_s: float | None,
) -> None:
    server.fault("create_message", fault)
    with pytest.raises(failure) as caught:
        await platform.send(out(direct(server)))
    assert type(caught.value) is failure
    assert getattr(caught.value, "retry_after_s", None) == pause_s
    assert server.token not in str(caught.value)
    assert len(server.calls("create_message")) == 1


async def test_send_whose_answer_was_lost_is_not_doubled(server: DiscordServer, platform: Platform) -> None:
    server.fault("create_message", LostAnswer())
    with pytest.raises(Unsure):
        await platform.send(out(direct(server), key="same"))
    sent = await platform.send(out(direct(server), key="same"))
    assert [seen.id for seen in server.list_messages()] == [sent]


async def test_late_answer_is_waited_for(server: DiscordServer, platform: Platform) -> None:
    server.fault("create_message", Slow(0.05))
    assert await platform.send(out(direct(server))) == server.list_messages()[0].id


async def test_server_that_is_not_there_has_not_taken_it(server: DiscordServer, platform: Platform) -> None:
    where = direct(server)
    await server.__aexit__()
    with pytest.raises(NotTaken):
        await platform.send(out(where, key="another"))


@pytest.mark.parametrize("chat", ["404", "", "general", "../users/@me"])
async def test_chat_that_does_not_exist_is_refused(platform: Platform, chat: str) -> None:
    with pytest.raises((AccessLost, Rejected)):
        await platform.send(out(Address("discord", chat)))


async def test_blocked_bot_loses_access(server: DiscordServer, platform: Platform) -> None:
    server.close_chat()
    server.close_chat(chat=CHANNEL)
    for where in (direct(server), Address("discord", CHANNEL)):
        with pytest.raises(AccessLost):
            await platform.send(out(where))


async def test_message_that_says_nothing_is_refused(server: DiscordServer, platform: Platform) -> None:
    with pytest.raises(Rejected, match="empty"):
        await platform.send(out(direct(server), " "))


CALLS: list[tuple[str, Callable[[Platform, Address], Awaitable[Any]]]] = [
    ("edit_message", lambda platform, where: platform.edit(SentId("5"), out(where))),
    ("delete_message", lambda platform, where: platform.delete(SentId("5"), where)),
    ("trigger_typing", lambda platform, where: platform.show_typing(where)),
    ("create_reaction", lambda platform, where: platform.react(where, "5", "👍")),
    ("create_thread", lambda platform, _: platform.create_thread(Address("discord", CHANNEL), "x")),
    ("overwrite_commands", lambda platform, _: platform.offer_commands([("new", "x")])),
]


@pytest.mark.parametrize(("method", "call"), CALLS)
async def test_every_call_tells_when_to_come_back(
    server: DiscordServer,
    platform: Platform,
    method: str,
    call: Callable[[Platform, Address], Awaitable[Any]],
) -> None:
    server.fault(method, Refusal(429, 2.5))
    with pytest.raises(NotTaken) as caught:
        await call(platform, direct(server))
    assert caught.value.retry_after_s == 2.5
    assert len(server.calls(method)) == 1


async def test_message_of_somebody_else_is_not_edited(server: DiscordServer, platform: Platform) -> None:
    theirs = SentId(await server.say("mine"))
    with pytest.raises(Rejected):
        await platform.edit(theirs, out(direct(server)))


async def test_file_that_breaks_off_leaves_nothing_behind(
    server: DiscordServer, platform: Platform, tmp_path: Path
) -> None:
    await server.say("look", file=("a.txt", b"x" * 5_000_000, "text/plain"))
    [arrival], _ = await heard(platform, 1)
    for fault in (LostAnswer(), Refusal(503)):
        server.fault("get_attachment", fault)
        with pytest.raises(NotTaken):
            await platform.fetch(arrival.attachments[0], tmp_path / "got", 10_000_000)
        assert not (tmp_path / "got").exists()


async def test_wrong_token_is_refused_before_anything_is_opened(server: DiscordServer) -> None:
    with pytest.raises(Refused, match="token") as caught:
        async with opened(server, token=Secret("wrong-token")):
            pass
    assert "wrong-token" not in str(caught.value)
    assert server.gateway.identified == 0


async def test_missing_intent_says_what_to_switch_on(server: DiscordServer) -> None:
    server.gateway.allows_content = False
    with pytest.raises(Refused, match="Message Content Intent"):
        async with opened(server):
            pass


@pytest.mark.parametrize("method", ["get_current_user", "get_gateway_bot"])
@pytest.mark.parametrize("fault", [Refusal(502), Refusal(429, 5), LostAnswer()])
async def test_discord_that_is_down_may_be_up_later(
    server: DiscordServer, method: str, fault: Refusal | LostAnswer
) -> None:
    server.fault(method, fault, fault)  # a read is made again once when its connection was cut
    with pytest.raises(NotTaken):
        async with opened(server):
            pass


async def test_gateway_that_cannot_be_reached_may_be_up_later(server: DiscordServer) -> None:
    with reserved_port() as port, pytest.raises(NotTaken):
        async with opened(server, gateway_url=f"ws://127.0.0.1:{port}/"):
            pass


async def test_bot_that_connected_too_often_waits(server: DiscordServer) -> None:
    server.gateway.starts_left, server.gateway.starts_reset_s = 0, 120.0
    with pytest.raises(NotTaken) as caught:
        async with opened(server):
            pass
    assert caught.value.retry_after_s == 120
    assert server.gateway.identified == 0


@pytest.mark.parametrize(
    ("code", "words"),
    [(4004, "token"), (4011, "too many servers"), (4013, "intents"), (4014, "Message Content Intent")],
)
async def test_close_code_that_somebody_must_act_on_is_told(
    server: DiscordServer, platform: Platform, code: int, words: str
) -> None:
    await server.close_socket(code)
    with pytest.raises(Refused, match=words):
        await heard(platform, 1)


@pytest.mark.parametrize("code", [1000, 1001, 1006, 4000, 4001, 4007, 4008, 4009])
async def test_broken_line_is_resumed_and_nothing_is_missed(
    server: DiscordServer, platform: Platform, code: int
) -> None:
    await server.say("before")
    await server.close_socket(code) if code != 1006 else server.gateway.cut()
    await server.say("meanwhile")
    items, _ = await heard(platform, 2)
    assert [each.text for each in items] == ["before", "meanwhile"]
    assert (server.gateway.identified, server.gateway.resumed) == (1, 1)
    await server.say("after")
    items, _ = await heard(platform, 1)
    assert [each.text for each in items] == ["after"]


async def test_line_moves_when_discord_asks_for_it(server: DiscordServer, platform: Platform) -> None:
    await server.gateway.reconnect()
    await server.gateway.wait_until(lambda: server.gateway.resumed == 1)
    await server.gateway.invalidate(is_resumable=True)
    await server.gateway.wait_until(lambda: server.gateway.resumed == 2)
    await server.say("hello")
    items, _ = await heard(platform, 1)
    assert [each.text for each in items] == ["hello"]


async def test_session_that_is_not_resumed_is_opened_anew_and_reads_what_was_missed(server: DiscordServer) -> None:
    async with opened(server) as platform:
        await server.say("before")
        _, cursor = await heard(platform, 1)
        server.refuse_resume()
        await server.close_socket(4000)
        await server.say("meanwhile")
        with pytest.raises(NotTaken):
            await heard(platform, 1)
    async with opened(server) as platform:
        items, _ = await heard(platform, 1, cursor)
        assert [each.text for each in items] == ["meanwhile"]


async def test_session_that_discord_ends_is_not_resumed(server: DiscordServer, platform: Platform) -> None:
    await server.gateway.invalidate()
    with pytest.raises(NotTaken):
        await heard(platform, 1)
    assert server.gateway.resumed == 0


async def test_line_that_breaks_whenever_it_is_resumed_is_given_up(server: DiscordServer, platform: Platform) -> None:
    server.gateway.hangs_up_on_resume = True
    await server.close_socket(4000)
    with pytest.raises(NotTaken):
        await heard(platform, 1)


async def test_what_came_before_the_end_is_handed_over_first(server: DiscordServer, platform: Platform) -> None:
    await server.say("last words")
    await server.close_socket(4004)
    items, _ = await heard(platform, 1)
    assert [each.text for each in items] == ["last words"]
    for _ in range(2):
        with pytest.raises(Refused):
            await heard(platform, 1)


async def test_empty_batch_comes_with_each_acknowledged_heartbeat(quick: DiscordServer) -> None:
    async with opened(quick) as platform, aclosing(platform.receive(None)) as batches:
        for _ in range(5):  # the first says from where on nothing is missed
            batch = await anext(batches)
            assert batch.items == ()
            assert batch.cursor
    assert quick.gateway.beats >= 4


async def test_unacknowledged_heartbeats_break_the_line(quick: DiscordServer) -> None:
    """It is resumed, and given up when it is as silent as before."""
    async with opened(quick) as platform:
        quick.gateway.acknowledges = False
        with pytest.raises(NotTaken):
            await heard(platform, 1)
    assert quick.gateway.resumed == 1


async def test_event_that_cannot_be_read_does_not_break_the_line(server: DiscordServer, platform: Platform) -> None:
    await server.gateway.tell("MESSAGE_CREATE", {"nonsense": True})
    await server.gateway.tell("INTERACTION_CREATE", {"id": [], "type": "?"})
    await server.gateway.tell("GUILD_CREATE", {})
    await server.gateway.tell("SOMETHING_NEW", {"a": 1})
    await server.gateway.order(99)
    await server.say("still here")
    items, _ = await heard(platform, 1)
    assert [each.text for each in items] == ["still here"]
    assert server.gateway.identified == 1


async def test_unanswered_interaction_does_not_break_the_line(server: DiscordServer, platform: Platform) -> None:
    server.fault("create_interaction_response", Refusal(404, extra={"code": 10062}))
    await server.command("new")
    await server.wait_for_calls("create_interaction_response", 1)
    await platform.show_typing(direct(server))
    await server.say("and")
    items, _ = await heard(platform, 2)
    assert [each.text for each in items] == ["/new", "and"]


async def test_interaction_is_greeted_while_nobody_listens(server: DiscordServer, platform: Platform) -> None:
    await server.command("status")
    assert len(await server.wait_for_calls("create_interaction_response", 1)) == 1


async def test_reading_what_was_missed_waits_as_long_as_it_is_told(server: DiscordServer) -> None:
    async with opened(server) as platform:
        await server.say("one")
        _, cursor = await heard(platform, 1)
    await server.say("two")
    clock = ManualClock(SystemClock().now(), auto=True)
    server.fault("get_messages", Refusal(429, 7.5), Refusal(429, 1.5))
    async with opened(server, clock=clock) as platform:
        items, _ = await heard(platform, 1, cursor)
        assert [each.text for each in items] == ["two"]
    assert clock.slept == [7.5, 1.5]


@pytest.mark.parametrize("fault", [Refusal(500), Refusal(429, 3600)])
async def test_history_that_cannot_be_read_now_is_not_skipped(server: DiscordServer, fault: Refusal) -> None:
    async with opened(server) as platform:
        await server.say("one")
        _, cursor = await heard(platform, 1)
    await server.say("two")
    server.fault("get_messages", fault)
    async with opened(server) as platform:
        with pytest.raises(NotTaken):
            await heard(platform, 1, cursor)
        items, _ = await heard(platform, 1, cursor)
        assert [each.text for each in items] == ["two"]


async def test_person_who_cannot_be_written_to_does_not_stop_the_others(server: DiscordServer) -> None:
    async with opened(server, allowed_users=("1007",)) as platform:
        await server.say("one")
        _, cursor = await heard(platform, 1)
    await server.say("first words", user="1008")
    server.fault("create_dm", Refusal(403, extra={"code": 50007}))
    async with opened(server, allowed_users=("1007", "1008")) as platform:
        items, _ = await heard(platform, 1, cursor)
        assert [each.text for each in items] == ["first words"]
    server.fault("create_dm", Refusal(500))
    async with opened(server, allowed_users=("1007",)) as platform:
        with pytest.raises(NotTaken):
            await heard(platform, 1, cursor)


async def test_line_is_let_go_of_in_the_end(server: DiscordServer) -> None:
    async with opened(server):
        assert server.gateway.connections == 1
    await server.gateway.wait_until(lambda: server.gateway.connections == 0)


async def test_slow_reader_loses_nothing(server: DiscordServer, platform: Platform) -> None:
    for at in range(2500):
        await server.say(str(at))
        if at % 100 == 0:
            await asyncio.sleep(0)
    items, _ = await heard(platform, 2500)
    assert [each.text for each in items] == [str(at) for at in range(2500)]
