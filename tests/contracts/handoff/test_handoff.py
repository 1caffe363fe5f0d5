"""Handoff of a conversation from the terminal to a chat: who takes it, and what is said there."""

import asyncio
from pathlib import Path

import pytest
from tests.contracts.handoff.conftest import FORUM, Terminal
from tests.waiting import until

from talaria.app.build import open_application
from talaria.app.settings import Settings
from talaria.config.load import decode
from talaria.core.entries import MessageAdded, TurnStarted
from talaria.core.errors import BadInput
from talaria.core.ids import SessionId
from talaria.core.messages import User
from talaria.gateway.handoffs import GIVEN_UP, NOBODY, HandoffFailed, hand_off
from talaria.gateway.service import Gateway
from talaria.runtime.builtin_commands import BUILTIN
from talaria.runtime.commands import Commands
from talaria.store.base import NewSession, Store
from talaria.store.chat_ports import HandoffState
from talaria.store.memory import MemoryStore
from talaria.testing.harness import OWNER, Harness
from talaria.testing.manual_clock import ManualClock
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.chat_service import Refusal
from talaria.testing.servers.scripted_replies import Failure, Faults, Reply

S1 = SessionId("s1")
DM = f"agent:main:telegram:dm:{OWNER}"


# At the terminal.


async def a_session(store: Store) -> None:
    await store.sessions.create(NewSession(S1, "terminal"))


@pytest.mark.clause("H-12")
@pytest.mark.clause("H-13")
def test_it_is_a_command_of_the_terminal_alone() -> None:
    commands = Commands(BUILTIN)
    (found,) = [one for one in commands.visible("terminal") if one.name == "handoff"]
    assert (found.category, found.cli_only) == ("conversation", True)
    assert "handoff" not in [name for name, _ in commands.menu(100)]
    assert found not in commands.visible("platform")


@pytest.mark.clause("H-14")
async def test_the_terminal_waits_a_minute_and_then_takes_the_request_back() -> None:
    clock = ManualClock(auto=True)
    async with MemoryStore(clock) as store:
        await a_session(store)
        with pytest.raises(HandoffFailed, match="timed out"):
            await hand_off(store, clock, S1, "telegram")
        assert clock.slept == [0.5] * 120
        assert await store.handoffs.state(S1) == HandoffState("failed", "telegram", NOBODY)
        assert await store.handoffs.request(S1, "telegram")


@pytest.mark.usefixtures("in_chat")
@pytest.mark.clause("H-14")
async def test_it_is_refused_while_a_turn_of_it_runs_anywhere(terminal: Terminal) -> None:
    harness = terminal.harness
    async with harness.serve():
        harness.model.say(Reply("Done.", faults=Faults(first_byte_delay_s=0.3)))
        await harness.telegram.say("think long")
        await asyncio.to_thread(harness.model.wait_for_requests, 1)
        session = await harness.session_of(DM)
        with pytest.raises(HandoffFailed, match="Wait until it ends"):
            await terminal.hand_off(session)
        assert await terminal.state(session) == HandoffState(None, None, None)
        await harness.wait_for_messages(1)


@pytest.mark.clause("H-14")
@pytest.mark.parametrize(
    ("platform", "sentence"),
    [("discord", "is not set up here"), ("telegram", "no home channel"), ("../etc", "is not set up here")],
)
async def test_a_platform_that_cannot_take_it_is_refused_at_once(
    terminal: Terminal, platform: str, sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        await terminal.app.check_handoff(platform)


@pytest.mark.clause("H-14")
async def test_a_platform_that_is_turned_off_is_refused_at_once(harness: Harness) -> None:
    off = {**harness.telegram.settings, "allowed_users": [OWNER], "home_channel": OWNER, "enabled": False}
    harness.add_platform("telegram", off)
    async with open_application(harness.settings(), tools=()) as app:
        with pytest.raises(BadInput, match="telegram is turned off"):
            await app.check_handoff("telegram")


@pytest.mark.usefixtures("in_chat")
@pytest.mark.clause("H-14")
async def test_a_platform_with_a_home_channel_can_take_it(terminal: Terminal) -> None:
    await terminal.app.check_handoff("telegram")


@pytest.mark.clause("H-14")
async def test_who_does_not_want_to_wait_takes_the_request_back() -> None:
    clock = ManualClock()
    async with MemoryStore(clock) as store:
        await a_session(store)
        waiting = asyncio.create_task(hand_off(store, clock, S1, "telegram"))
        while not clock.slept:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert await store.handoffs.state(S1) == HandoffState("failed", "telegram", GIVEN_UP)


@pytest.mark.clause("H-15")
async def test_it_returns_when_the_conversation_is_there_and_says_why_not() -> None:
    clock = ManualClock()
    async with MemoryStore(clock) as store:
        await a_session(store)
        for end in (store.handoffs.complete(S1), store.handoffs.fail(S1, "no home channel")):
            handing = asyncio.create_task(hand_off(store, clock, S1, "telegram"))
            while not await store.handoffs.claim(S1):
                await asyncio.sleep(0)
            await end
            while not handing.done():
                clock.advance(0.5)
                await asyncio.sleep(0)
            if (fault := handing.exception()) is not None:
                assert str(fault) == "The handoff failed: no home channel"
        assert (await store.handoffs.state(S1)) == HandoffState("failed", "telegram", "no home channel")


@pytest.mark.clause("H-03")
async def test_one_that_is_on_its_way_is_not_sent_again() -> None:
    clock = ManualClock(auto=True)
    async with MemoryStore(clock) as store:
        await a_session(store)
        await store.handoffs.request(S1, "discord")
        with pytest.raises(HandoffFailed, match="already being handed over"):
            await hand_off(store, clock, S1, "telegram")
        assert await store.handoffs.state(S1) == HandoffState("pending", "discord", None)


# In the gateway.


@pytest.mark.clause("H-16")
@pytest.mark.clause("H-X2")
async def test_the_gateway_looks_after_five_seconds_and_then_every_two(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = Settings(tmp_path, decode({"model": {"default": "demo"}}, tmp_path / "config.yaml"), {})
    async with open_application(settings, clock=clock, tools=(), open_store=lambda _, clock: MemoryStore(clock)) as app:
        await a_session(app.store)
        gateway = Gateway(app, settings.config.gateway, ())
        running = asyncio.create_task(gateway.run())
        pending = HandoffState("pending", "telegram", None)
        for wait_s, count in ((5.0, 1), (2.0, 1), (2.0, 2)):
            await until(lambda wait_s=wait_s, count=count: clock.slept.count(wait_s) >= count)
            await app.store.handoffs.request(S1, "telegram")
            clock.advance(wait_s - 0.1)
            for _ in range(50):
                await asyncio.sleep(0)
            assert await app.store.handoffs.state(S1) == pending
            clock.advance(0.1)
            async with asyncio.timeout(PATIENCE_S):
                while (state := await app.store.handoffs.state(S1)) is None or state.state != "failed":
                    await asyncio.sleep(0)
            assert state == HandoffState("failed", "telegram", "telegram is not connected.")
        gateway.stop()
        while not running.done():
            clock.advance(1)
            await asyncio.sleep(0)
        await running


@pytest.mark.usefixtures("in_chat")
@pytest.mark.clause("H-15")
@pytest.mark.clause("H-18")
@pytest.mark.clause("H-19")
@pytest.mark.clause("H-X4")
async def test_it_is_greeted_in_the_home_chat_by_a_real_turn_that_knows_everything(terminal: Terminal) -> None:
    harness = terminal.harness
    async with harness.serve() as gateway_app:
        session = await terminal.talk()
        harness.model.say("We spoke of the cat.", "White.")
        handing = asyncio.create_task(terminal.hand_off(session))
        await terminal.ended(session)
        await handing
        assert [one.text for one in await harness.wait_for_messages(1)] == ["We spoke of the cat."]
        asked = harness.model.requests[-1].json["messages"]
        assert [one["role"] for one in asked] == ["system", "user", "assistant", "user"]
        assert "the cat is white" in str(asked[1]["content"])
        assert asked[2]["content"] == "Noted."
        assert "moved this conversation from their terminal to telegram" in str(asked[3]["content"])
        assert await harness.session_of(DM) == session
        entries = [one.entry for one in await harness.store.journal.entries(session)]
        assert [one.origin for one in entries if isinstance(one, TurnStarted)] == ["terminal", "platform"]
        said = [one.message for one in entries if isinstance(one, MessageAdded)]
        assert [one.author for one in said if isinstance(one, User)] == ["person", "host"]
        await harness.telegram.say("what colour?")
        assert [one.text for one in await harness.wait_for_messages(2)] == ["We spoke of the cat.", "White."]
        assert len(harness.model.requests[-1].json["messages"]) == 6
        assert gateway_app.gateway.pool.find(session) is not None


@pytest.mark.usefixtures("in_forum")
@pytest.mark.clause("H-17")
@pytest.mark.clause("H-18")
@pytest.mark.clause("H-20")
@pytest.mark.clause("H-X4")
async def test_where_the_platform_has_threads_it_gets_one_that_everybody_there_shares(terminal: Terminal) -> None:
    harness = terminal.harness
    async with harness.serve():
        session = await terminal.talk()
        await terminal.app.store.sessions.rename(session, "About cats")
        harness.model.say("We spoke of the cat.", "White.", "Still white.")
        assert (await terminal.request(session)).state == "completed"
        (greeting,) = await harness.wait_for_messages(1, chat=FORUM)
        (topic,) = harness.telegram.calls("createForumTopic")
        assert topic["name"] == "Talaria — About cats"
        assert greeting.thread
        assert await harness.session_of(f"agent:main:telegram:thread:{FORUM}:{greeting.thread}") == session
        for number, person in enumerate((OWNER, "1002"), 2):
            await harness.telegram.say("what colour?", chat=FORUM, thread=greeting.thread, user=person)
            await harness.wait_for_messages(number, chat=FORUM)
        seen = [(one.text, one.thread) for one in harness.telegram.list_messages(chat=FORUM)]
        assert seen == [(text, greeting.thread) for text in ("We spoke of the cat.", "White.", "Still white.")]
        assert "the cat is white" in harness.model.requests[-1].body.decode()


@pytest.mark.usefixtures("in_forum")
@pytest.mark.clause("H-17")
@pytest.mark.parametrize("status", [400, 403, 502])
async def test_a_thread_that_cannot_be_made_is_done_without(terminal: Terminal, status: int) -> None:
    harness = terminal.harness
    harness.telegram.fault("createForumTopic", Refusal(status))
    async with harness.serve():
        session = await terminal.talk()
        harness.model.say("We spoke of the cat.")
        assert (await terminal.request(session)).state == "completed"
        (greeting,) = await harness.wait_for_messages(1, chat=FORUM)
        assert greeting.thread == ""
        assert await harness.session_of(f"agent:main:telegram:thread:{FORUM}:1") == session


@pytest.mark.clause("H-X4")
async def test_a_title_less_conversation_lends_its_thread_a_bit_of_its_id(terminal: Terminal, in_forum: None) -> None:
    harness = terminal.harness
    async with harness.serve():
        session = await terminal.talk("20260101_120000_abcdef")
        harness.model.say("Here.")
        await terminal.request(session)
        assert harness.telegram.calls("createForumTopic")[0]["name"] == "Talaria — 20260101"


@pytest.mark.clause("H-X4")
async def test_the_home_channel_is_where_an_admin_says(terminal: Terminal) -> None:
    harness = terminal.harness
    async with harness.serve():
        await harness.telegram.say("/sethome")
        await harness.wait_for_messages(1)
        await terminal.app.check_handoff("telegram")
        session = await terminal.talk()
        harness.model.say("Here I am.")
        assert (await terminal.request(session)).state == "completed"
        assert [one.text for one in await harness.wait_for_messages(2)][1] == "Here I am."


@pytest.mark.usefixtures("in_chat")
@pytest.mark.clause("H-X5")
async def test_a_greeting_that_is_not_sent_is_a_success(terminal: Terminal) -> None:
    async with terminal.harness.serve():
        session = await terminal.talk()
        terminal.harness.model.say("[SILENT]")
        assert await terminal.request(session) == HandoffState("completed", "telegram", None)
        assert not terminal.harness.telegram.list_messages()


@pytest.mark.usefixtures("in_chat")
@pytest.mark.clause("H-X5")
async def test_one_that_comes_a_second_time_knows_what_was_said_at_the_terminal_meanwhile(terminal: Terminal) -> None:
    harness = terminal.harness
    async with harness.serve():
        session = await terminal.talk()
        harness.model.say("First.")
        await terminal.request(session)
        await terminal.talk(text="the dog is black", answer="That, too.")
        harness.model.say("Second.")
        assert (await terminal.request(session)).state == "completed"
        assert [one.text for one in await harness.wait_for_messages(2)] == ["First.", "Second."]
        assert "the dog is black" in harness.model.requests[-1].body.decode()


@pytest.mark.clause("H-16")
@pytest.mark.clause("H-X3")
@pytest.mark.parametrize(
    ("platform", "reason"),
    [("discord", "discord is not connected."), ("telegram", "telegram has no home channel")],
)
async def test_why_it_failed_is_kept(terminal: Terminal, platform: str, reason: str) -> None:
    async with terminal.harness.serve():
        session = await terminal.talk()
        ended = await terminal.request(session, platform)
        assert ended.state == "failed"
        assert reason in (ended.error or "")


@pytest.mark.usefixtures("in_chat")
@pytest.mark.clause("H-16")
@pytest.mark.clause("H-X3")
@pytest.mark.parametrize("broken", ["model", "platform"])
async def test_a_greeting_that_fails_fails_the_handoff_and_the_chat_is_about_what_it_was(
    terminal: Terminal, broken: str
) -> None:
    harness = terminal.harness
    async with harness.serve():
        harness.model.say("Of my own.")
        await harness.telegram.say("hello")
        await harness.wait_for_messages(1)
        before = await harness.session_of(DM)
        session = await terminal.talk()
        if broken == "model":
            harness.model.say(Failure(400))
        else:
            harness.model.say("never seen")
            harness.telegram.fault("sendMessage", Refusal(403, words="Forbidden: bot was blocked by the user"))
        ended = await terminal.request(session)
        assert ended.state == "failed"
        assert ("blocked" in (ended.error or "")) == (broken == "platform")
        assert await harness.session_of(DM) == before
        harness.model.say("Still of my own.")
        await harness.telegram.say("and now?")
        await harness.until(lambda: harness.telegram.list_messages()[-1].text == "Still of my own.")
        assert "the cat is white" not in harness.model.requests[-1].body.decode()


@pytest.mark.usefixtures("in_forum")
@pytest.mark.clause("H-X3")
async def test_one_that_a_crash_left_running_is_taken_up_by_the_next_gateway(terminal: Terminal) -> None:
    harness = terminal.harness
    session = await terminal.talk()
    await terminal.app.store.handoffs.request(session, "telegram")
    await terminal.app.store.handoffs.claim(session)
    harness.model.say("Here.")
    async with harness.serve():
        assert (await terminal.ended(session)).state == "completed"
        assert [one.text for one in await harness.wait_for_messages(1, chat=FORUM)] == ["Here."]
        assert len(harness.telegram.calls("createForumTopic")) == 1


# Back at the terminal.


@pytest.mark.usefixtures("in_chat")
async def test_chat_and_terminal_go_on_with_one_conversation_one_at_a_time(terminal: Terminal) -> None:
    harness = terminal.harness
    async with harness.serve():
        session = await terminal.talk()
        harness.model.say("Here.")
        await terminal.request(session)
        slow = Reply("At the terminal.", faults=Faults(first_byte_delay_s=0.3))
        working = asyncio.create_task(terminal.talk(text="the dog is black", answer=slow))
        await asyncio.to_thread(harness.model.wait_for_requests, 3)
        harness.model.say("In the chat.", "Once more.")
        await harness.telegram.say("and now?")
        assert [one.text for one in await harness.wait_for_messages(2)] == ["Here.", "In the chat."]
        assert working.done()
        said = harness.model.requests[-1].body.decode()
        assert said.index("the dog is black") < said.index("At the terminal.") < said.index("and now?")
        await terminal.talk(text="and here?", answer="Of course.")
        assert "In the chat." in harness.model.requests[-1].body.decode()
