"""Handoff that fails or is answered too late: nothing is left behind, and the next try is a real one."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest
from tests.contracts.handoff.conftest import FORUM, Terminal, harness, in_chat, in_forum, run_folder, terminal
from tests.security.chats import logged

from talaria.app.gateway_app import load_wanted
from talaria.cli.gateway import log as gateway_log
from talaria.core.entries import MessageAdded
from talaria.core.ids import SessionId
from talaria.core.redaction import Redactor
from talaria.gateway.handoffs import EVERY_S, TOO_SLOW, HandoffFailed
from talaria.platforms.base import Address, ChatInfo, Platform, Sender
from talaria.runtime.transcript import without_undone
from talaria.store.chat_ports import HandoffState
from talaria.testing.harness import OWNER
from talaria.testing.servers.chat_service import Refusal, Slow
from talaria.testing.servers.scripted_replies import Failure, Faults, Reply

__all__ = ["harness", "in_chat", "in_forum", "run_folder", "terminal"]

DM = f"agent:main:telegram:dm:{OWNER}"
BLOCKED = Refusal(403, words="Forbidden: bot was blocked by the user")


async def said(terminal: Terminal, session: SessionId) -> list[str]:
    """What the conversation consists of, for whoever goes on with it."""
    entries = without_undone(await terminal.app.store.journal.entries(session))
    return [one.entry.message.text for one in entries if isinstance(one.entry, MessageAdded)]


def without_date(texts: Sequence[str]) -> list[str]:
    return [text.split("]\n\n")[-1] for text in texts]


async def hanging(terminal: Terminal) -> SessionId:
    """A conversation whose greeting the model never ends."""
    harness = terminal.harness
    session = await terminal.talk()
    harness.model.say(Reply("never seen", faults=Faults(hang=True)))
    await harness.store.handoffs.request(session, "telegram")
    terminal.clock.advance(EVERY_S)
    await asyncio.to_thread(harness.model.wait_for_requests, 2)
    return session


@pytest.mark.usefixtures("in_chat")
@pytest.mark.clause("H-15")
@pytest.mark.parametrize("broken", ["model", "platform"])
async def test_a_chat_that_was_never_used_is_unbound_and_the_transcript_is_as_before(
    terminal: Terminal, broken: str
) -> None:
    harness = terminal.harness
    async with harness.serve():
        session = await terminal.talk()
        harness.model.say(Failure(400) if broken == "model" else "never seen")
        if broken == "platform":
            harness.telegram.fault("sendMessage", BLOCKED)
        assert (await terminal.request(session)).state == "failed"
        assert await harness.store.chats.get(DM) is None
        assert await harness.store.chats.list_for(session) == []
        assert without_date(await said(terminal, session)) == ["the cat is white", "Noted."]
        assert not harness.telegram.list_messages()
        harness.model.say("Who are you?")
        await harness.telegram.say("hello")
        assert [one.text for one in await harness.wait_for_messages(1)] == ["Who are you?"]
        assert "the cat is white" not in harness.model.requests[-1].body.decode()


@pytest.mark.usefixtures("in_chat")
@pytest.mark.clause("H-19")
async def test_a_retry_after_a_failed_delivery_is_heard(terminal: Terminal) -> None:
    harness = terminal.harness
    async with harness.serve():
        session = await terminal.talk()
        harness.model.say("never seen", "We spoke of the cat.")
        harness.telegram.fault("sendMessage", BLOCKED)
        assert (await terminal.request(session)).state == "failed"
        assert await terminal.request(session) == HandoffState("completed", "telegram", None)
        assert [one.text for one in await harness.wait_for_messages(1)] == ["We spoke of the cat."]
        assert without_date(await said(terminal, session))[:2] == ["the cat is white", "Noted."]
        assert len(await said(terminal, session)) == 4


@pytest.mark.usefixtures("in_chat")
@pytest.mark.clause("H-19")
async def test_a_second_handoff_with_no_message_in_between_is_heard(terminal: Terminal) -> None:
    harness = terminal.harness
    async with harness.serve():
        session = await terminal.talk()
        harness.model.say("First.", "Second.")
        for _ in range(2):
            assert (await terminal.request(session)).state == "completed"
        assert [one.text for one in await harness.wait_for_messages(2)] == ["First.", "Second."]


@pytest.mark.usefixtures("in_chat")
@pytest.mark.clause("H-19")
async def test_after_the_home_channel_has_moved_it_is_heard_there(terminal: Terminal) -> None:
    harness = terminal.harness
    settings = {
        **harness.telegram.settings,
        "allowed_users": [OWNER],
        "home_channel": OWNER,
        "allowed_chats": ["-4002"],
    }
    harness.add_platform("telegram", settings)
    async with harness.serve():
        session = await terminal.talk()
        harness.model.say("In the chat.", "In the group.", "White.")
        await terminal.request(session)
        await harness.wait_for_messages(1)
        await harness.telegram.say("/sethome", chat="-4002")
        await harness.wait_for_messages(1, chat="-4002")
        assert (await terminal.request(session)).state == "completed"
        assert (await harness.wait_for_messages(2, chat="-4002"))[1].text == "In the group."
        await harness.telegram.say("@talaria_bot what colour?", chat="-4002")
        assert (await harness.wait_for_messages(3, chat="-4002"))[2].text == "White."
        assert "the cat is white" in harness.model.requests[-1].body.decode()


@pytest.mark.usefixtures("in_forum")
@pytest.mark.clause("H-17")
async def test_a_second_handoff_uses_the_thread_of_the_first(terminal: Terminal) -> None:
    harness = terminal.harness
    async with harness.serve():
        session = await terminal.talk()
        harness.model.say("First.", "Second.")
        for _ in range(2):
            await terminal.request(session)
        first, second = await harness.wait_for_messages(2, chat=FORUM)
        assert first.thread == second.thread != ""
        assert len(harness.telegram.calls("createForumTopic")) == 1


@pytest.mark.usefixtures("in_chat")
@pytest.mark.clause("H-14")
@pytest.mark.clause("H-15")
async def test_one_that_is_taken_but_too_slow_is_undone_and_the_terminal_says_so(terminal: Terminal) -> None:
    harness, clock = terminal.harness, terminal.clock
    async with harness.serve():
        session = await terminal.talk()
        harness.model.say(Reply("never seen", faults=Faults(hang=True)))
        handing = asyncio.create_task(terminal.hand_off(session))
        clock.advance(EVERY_S)
        await asyncio.to_thread(harness.model.wait_for_requests, 2)
        assert (await harness.store.chats.get(DM)) is not None
        while not handing.done():
            clock.advance(1)
            await asyncio.sleep(0)
        with pytest.raises(HandoffFailed, match="a gateway picked it up, but did not finish within 60 s"):
            await handing
        assert await terminal.state(session) == HandoffState("failed", "telegram", TOO_SLOW)
        assert await harness.store.chats.get(DM) is None

        async def is_undone() -> bool:
            clock.advance(EVERY_S)
            return without_date(await said(terminal, session)) == ["the cat is white", "Noted."]

        await harness.until(is_undone)
        assert not harness.telegram.list_messages()
        assert without_date([await terminal.talk(text="and now?", answer="Now.")]) == [session]


@pytest.mark.usefixtures("in_chat")
@pytest.mark.clause("H-15")
async def test_a_greeting_that_was_sent_too_late_is_taken_back(terminal: Terminal) -> None:
    """The terminal gives up in the moment in which the answer is on its way."""
    harness = terminal.harness
    async with harness.serve():
        session = await terminal.talk()
        harness.model.say("Here.")
        harness.telegram.fault("sendMessage", Slow(0.5))
        handoffs = harness.store.handoffs
        await handoffs.request(session, "telegram")
        terminal.clock.advance(EVERY_S)
        await harness.until(lambda: bool(harness.telegram.calls("sendMessage")))
        assert await handoffs.fail(session, TOO_SLOW)
        await harness.until(lambda: bool(harness.telegram.calls("deleteMessage")))
        await harness.until(lambda: not harness.telegram.list_messages())
        assert await terminal.state(session) == HandoffState("failed", "telegram", TOO_SLOW)
        assert await harness.store.chats.get(DM) is None
        assert without_date(await said(terminal, session)) == ["the cat is white", "Noted."]


@pytest.mark.usefixtures("in_chat")
@pytest.mark.clause("H-15")
async def test_what_a_dead_gateway_left_of_one_that_failed_is_undone_by_the_next(terminal: Terminal) -> None:
    harness = terminal.harness
    harness.config["gateway"]["drain_s"] = 0.05
    async with harness.serve():
        session = await hanging(terminal)
    assert (await terminal.state(session)).state == "running"
    assert await terminal.app.store.handoffs.fail(session, TOO_SLOW)
    async with harness.serve():

        async def is_undone() -> bool:
            terminal.clock.advance(EVERY_S)
            return without_date(await said(terminal, session)) == ["the cat is white", "Noted."]

        await harness.until(is_undone)
    assert not harness.telegram.list_messages()


@pytest.mark.usefixtures("in_chat")
@pytest.mark.clause("H-19")
async def test_one_that_is_greeting_when_the_gateway_stops_goes_on_at_the_next_start(terminal: Terminal) -> None:
    harness = terminal.harness
    harness.config["gateway"]["drain_s"] = 0.05
    async with harness.serve():
        session = await hanging(terminal)
    assert (await terminal.state(session)).state == "running"
    harness.model.say("Here.")
    async with harness.serve():
        assert (await terminal.ended(session)).state == "completed"
        assert [one.text for one in await harness.wait_for_messages(1)] == ["Here."]
    texts = without_date(await said(terminal, session))
    assert (texts[:2], texts[-1], len(texts)) == (["the cat is white", "Noted."], "Here.", 4)


@pytest.mark.usefixtures("in_forum")
@pytest.mark.clause("H-16")
async def test_a_slow_one_does_not_hold_up_another(terminal: Terminal) -> None:
    harness = terminal.harness
    async with harness.serve():
        slow, quick = await terminal.talk("s1"), await terminal.talk("s2", "the dog is black")
        harness.model.say(Reply("never seen", faults=Faults(hang=True)), "About the dog.")
        await harness.store.handoffs.request(slow, "telegram")
        terminal.clock.advance(EVERY_S)
        await asyncio.to_thread(harness.model.wait_for_requests, 3)
        assert (await terminal.request(quick)).state == "completed"
        assert (await terminal.state(slow)).state == "running"
        await harness.store.handoffs.fail(slow, "enough")


@pytest.mark.usefixtures("in_chat")
@pytest.mark.clause("H-16")
@pytest.mark.clause("C-X8")
async def test_the_live_session_of_the_gateway_makes_way_for_a_new_one(terminal: Terminal) -> None:
    harness = terminal.harness
    async with harness.serve() as gateway_app:
        session = await terminal.talk()
        harness.model.say("First.", "Second.")
        await terminal.request(session)
        before = gateway_app.gateway.pool.find(session)
        await terminal.request(session)
        after = gateway_app.gateway.pool.find(session)
        assert before is not None
        assert after is not None
        assert after is not before
        assert before.is_unloaded


class _Odd:
    """A platform with a bug where nobody expects one."""

    def __init__(self, platform: Platform) -> None:
        self.name, self.account, self.capabilities = platform.name, platform.account, platform.capabilities
        self.receive, self.acknowledge, self.send = platform.receive, platform.acknowledge, platform.send
        self.edit, self.delete, self.show_typing = platform.edit, platform.delete, platform.show_typing
        self.react, self.answer, self.fetch = platform.react, platform.answer, platform.fetch
        self.create_thread, self.offer_commands = platform.create_thread, platform.offer_commands

    async def chat_info(self, where: Address) -> ChatInfo:
        raise ZeroDivisionError(f"of {where}")


@pytest.mark.usefixtures("in_chat")
@pytest.mark.clause("H-16")
async def test_any_exception_ends_it_as_failed_and_the_gateway_goes_on(terminal: Terminal) -> None:
    harness = terminal.harness
    async with harness.serve() as gateway_app:
        (door,) = load_wanted(gateway_app.app.settings, terminal.clock).specs

        @asynccontextmanager
        async def opened(is_allowed: Callable[[Sender], bool]) -> AsyncGenerator[Platform]:
            async with door.open(is_allowed) as platform:
                yield _Odd(platform)

        settings = msgspec.structs.replace(door.settings, require_mention=False)  # so that it is opened anew
        odd = msgspec.structs.replace(door, open=opened, settings=settings)
        await gateway_app.gateway.reload(gateway_app.app, gateway_app.app.settings.config.gateway, [odd])
        await harness.until(lambda: all(one.heard_at for one in gateway_app.gateway.health))
        session = await terminal.talk()
        ended = await terminal.request(session)
        assert ended.state == "failed"
        assert "ZeroDivisionError" in (ended.error or "")
        harness.model.say("Still here.")
        await harness.telegram.say("hello")
        assert [one.text for one in await harness.wait_for_messages(1)] == ["Still here."]


@pytest.mark.usefixtures("in_forum")
@pytest.mark.clause("H-17")
async def test_a_thread_that_was_made_before_a_crash_is_used(terminal: Terminal) -> None:
    harness, handoffs = terminal.harness, terminal.app.store.handoffs
    session = await terminal.talk()
    await harness.telegram.say("somebody began it", chat=FORUM, thread="7", user="1")
    await handoffs.request(session, "telegram")
    await handoffs.claim(session)
    await handoffs.bind(session, [f"agent:main:telegram:thread:{FORUM}:7"], f"telegram:{FORUM}:7")
    harness.model.say("Here.")
    async with harness.serve():
        assert (await terminal.ended(session)).state == "completed"
        assert [(one.text, one.thread) for one in await harness.wait_for_messages(1, chat=FORUM)] == [("Here.", "7")]
    assert not harness.telegram.calls("createForumTopic")


@pytest.mark.usefixtures("in_chat")
@pytest.mark.clause("H-19")
async def test_one_that_was_greeted_before_a_crash_is_not_greeted_again(terminal: Terminal) -> None:
    harness = terminal.harness
    harness.config["gateway"]["drain_s"] = 0.05
    async with harness.serve():
        session = await terminal.talk()
        harness.model.say("Here.")
        harness.telegram.fault("sendMessage", *[Refusal(502)] * 50)
        await harness.store.handoffs.request(session, "telegram")
        terminal.clock.advance(EVERY_S)
        await harness.until(lambda: bool(harness.telegram.calls("sendMessage")))
    assert (await terminal.state(session)).state == "running"
    harness.telegram.forget_faults()
    async with harness.serve():
        assert (await terminal.ended(session)).state == "completed"
        assert "Here." in (await harness.wait_for_messages(1))[-1].text
    assert len(harness.model.requests) == 2


@pytest.mark.usefixtures("in_chat")
async def test_each_handoff_and_its_greeting_are_a_line_in_the_log(terminal: Terminal) -> None:
    harness = terminal.harness
    with logged(harness.home, Redactor()):
        async with harness.serve():
            session = await terminal.talk()
            harness.model.say("Here.", Failure(400, {"error": {"message": "no such cat"}}))
            await terminal.request(session)
            await terminal.request(session)
            log = gateway_log.file(harness.home)
            await harness.until(lambda: log.read_text().count("handoff ended") == 2)
    lines = [line["message"] for line in map(json.loads, log.read_text().splitlines()) if "ended:" in line["message"]]
    assert [line.partition(" seconds=")[0] for line in lines] == [
        f"turn ended: outcome=completed person=telegram:{OWNER} chat=telegram:{OWNER}",
        "handoff ended: outcome=completed platform=telegram",
        f"turn ended: outcome=failed person=telegram:{OWNER} chat=telegram:{OWNER}",
        "handoff ended: outcome=failed platform=telegram",
    ]
    assert "cat" not in log.read_text()
