"""A chat's conversation whose turn another process runs, such as a terminal: people in the chat can stop and steer it,
and the terminal can do the same with a turn of the gateway."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from threading import Event
from typing import TypeVar

from talaria.app.build import Application, open_application
from talaria.core.entries import MessageAdded
from talaria.core.events import Event as TurnEvent
from talaria.core.events import QuestionAsked, QuestionClosed, TextDelta, TurnBegan, TurnDone
from talaria.core.ids import SessionId
from talaria.core.messages import ToolResult, User, user
from talaria.core.questions import Question
from talaria.runtime.live_socket import Live
from talaria.runtime.session import LiveSession
from talaria.runtime.turn_runner import Report
from talaria.runtime.turn_signals import SignalSender
from talaria.runtime.watching import Watched
from talaria.testing import Reply, call
from talaria.testing.harness import OWNER, Harness
from talaria.testing.servers.scripted_replies import Faults

EventT = TypeVar("EventT", bound=TurnEvent)

KEY = f"agent:main:telegram:dm:{OWNER}"


async def first_turn(harness: Harness) -> SessionId:
    harness.model.say("One.")
    await harness.telegram.say("first")
    await harness.wait_for_messages(1)
    return await harness.session_of(KEY)


@asynccontextmanager
async def terminal(harness: Harness) -> AsyncGenerator[Application]:
    """Another process on the same home."""
    async with open_application(harness.settings()) as app:
        yield app


async def resume(app: Application, session: SessionId) -> LiveSession:
    row = await app.store.sessions.get(session)
    assert row is not None
    return app.session(row, cwd=app.home, origin="terminal")


@asynccontextmanager
async def a_turn_at_the_terminal(harness: Harness, session: SessionId) -> AsyncGenerator["asyncio.Task[Report]"]:
    """The model thinks until the end of the block."""
    until_then = Event()
    harness.model.say(Reply("Two.", faults=Faults(held_by=until_then)), "Three.")
    async with terminal(harness) as app:
        live = await resume(app, session)
        turn = asyncio.create_task(live.ask(user("think long")))
        try:
            await harness.until(lambda: live.running is not None)
            yield turn
        finally:
            until_then.set()
            await asyncio.wait([turn])


def sender(app: Application) -> SignalSender:
    return SignalSender(app.store, app.links.changes, app.links.folder, by="local", surface="terminal")


async def test_stop_in_the_chat_stops_the_turn_at_the_terminal(harness: Harness) -> None:
    async with harness.serve():
        session = await first_turn(harness)
        async with a_turn_at_the_terminal(harness, session) as turn:
            await harness.telegram.say("/stop")
            assert (await turn).outcome == "interrupted"
            assert (await harness.wait_for_messages(2))[-1].text == "Stopped at the terminal."


async def test_an_admin_steers_the_turn_at_the_terminal_from_the_chat(harness: Harness) -> None:
    async with harness.serve():
        session = await first_turn(harness)
        async with a_turn_at_the_terminal(harness, session) as turn:
            await harness.telegram.say("/steer be brief")
            reply = (await harness.wait_for_messages(2))[-1].text
            assert reply == "The model will read it in its next round, at the terminal."
        assert (await turn).text == "Three."
        entries = [one.entry for one in await harness.store.journal.entries(session)]
    steered = [
        one.message.text
        for one in entries
        if isinstance(one, MessageAdded) and isinstance(one.message, User) and one.message.author == "steering"
    ]
    assert steered == ["be brief"]


async def test_without_a_turn_anywhere_there_is_nothing_to_stop(harness: Harness) -> None:
    async with harness.serve():
        await first_turn(harness)
        await harness.telegram.say("/stop")
        assert (await harness.wait_for_messages(2))[-1].text == "Nothing is running here."


async def first_event(watching: AsyncGenerator[Watched], kind: type[EventT]) -> EventT:
    async for one in watching:
        if isinstance(one, Live) and isinstance(one.event, kind):
            return one.event
    raise AssertionError("watching never ends by itself")


async def test_a_terminal_watches_and_stops_a_turn_of_the_gateway(harness: Harness) -> None:
    async with harness.serve(), terminal(harness) as app:
        session = await first_turn(harness)
        harness.model.say(Reply("word " * 100, chunk_chars=5, faults=Faults(chunk_delay_s=0.1)))
        await harness.telegram.say("tell me much")
        async with aclosing(app.links.watching.watch(session)) as watching:
            await first_event(watching, TextDelta)
            assert (await sender(app).stop(session)).state == "obeyed"
            assert (await first_event(watching, TurnDone)).outcome == "interrupted"


async def test_what_a_terminal_has_queued_is_asked_by_the_gateway_if_the_terminal_is_gone(harness: Harness) -> None:
    harness.config["terminal"] = {"backend": "local"}
    until_then = Event()
    async with harness.serve():
        session = await first_turn(harness)
        harness.model.say(Reply("Two.", faults=Faults(held_by=until_then)))
        harness.model.say(Reply(calls=(call("terminal", command="touch ran"),)), "Three.")
        await harness.telegram.say("second")
        async with terminal(harness) as app, aclosing(app.links.watching.watch(session)) as watching:
            await first_event(watching, TurnBegan)
            line = await sender(app).queue(session, "third")
        until_then.set()
        await harness.wait_for_messages(2)

        async def is_answered() -> bool:
            return any(
                isinstance(one.entry, MessageAdded) and one.entry.message.text == "Three."
                for one in await harness.store.journal.latest(session, 5)
            )

        await harness.until(is_answered)
        entries = [one.entry for one in await harness.store.journal.entries(session)]
        messages = [one.message for one in entries if isinstance(one, MessageAdded)]
        said = [one.text.split("\n")[-1] for one in messages if isinstance(one, User)]
        assert said == ["first", "second", "third"]
        (refused,) = [one.text for one in messages if isinstance(one, ToolResult)]
        assert "nobody" in refused.lower()
        found = await harness.store.signals.find(line.key)
        assert found is not None
        assert found.state == "obeyed"
        assert [one.text for one in harness.telegram.list_messages()] == ["One.", "Two."]


async def test_a_question_in_a_chat_can_be_answered_at_the_terminal(harness: Harness) -> None:
    harness.config["terminal"] = {"backend": "local"}
    allowed, until_then = "Allowed, this once. (answered by local, terminal)", Event()
    async with harness.serve(), terminal(harness) as app:
        session = await first_turn(harness)
        runs = Reply(calls=(call("terminal", command="echo it ran"),))
        harness.model.say(runs, Reply("Done.", faults=Faults(held_by=until_then)))
        await harness.telegram.say("run it")
        async with aclosing(app.links.watching.watch(session)) as watching:
            asked = (await first_event(watching, QuestionAsked)).question
            assert isinstance(asked, Question)
            assert "echo it ran" in asked.text
            await harness.wait_for_messages(2)
            assert (await sender(app).answer(session, asked.id, "always and ever")).state == "late"
            assert (await sender(app).answer(session, asked.id, "once")).state == "obeyed"
            assert (await first_event(watching, QuestionClosed)).sentence == allowed
            late = await sender(app).answer(session, asked.id, "no")
            assert (late.state, late.outcome) == ("late", allowed)
        until_then.set()
        assert (await harness.wait_for_messages(3))[-1].text == "Done."
        await harness.until(lambda: allowed in harness.telegram.list_messages()[1].text)
