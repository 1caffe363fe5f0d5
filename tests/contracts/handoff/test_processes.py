"""Handoff between two processes on one home: `talaria` at a terminal and `talaria gateway run`."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable

import pytest
from tests.contracts.handoff.conftest import FORUM
from tests.scenarios.conftest import environment, home
from tests.scenarios.gateway.test_operation import OWNER, Station, station
from tests.scenarios.test_cli_terminal import Terminal

from talaria.app.build import open_store
from talaria.core.ids import SessionId
from talaria.store.chat_ports import HandoffState
from talaria.testing import Reply
from talaria.testing.servers.scripted_replies import Faults

__all__ = ["environment", "home", "station"]

PROMPT = "› "


class Person:
    """At a terminal, while the chat service lives in this very thread."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    async def sees(self, text: str) -> str:
        return await asyncio.to_thread(self._terminal.see, text)

    async def types(self, line: str, answer: str) -> str:
        self._terminal.type(f"{line}\n")
        return await self.sees(answer)

    async def leaves(self) -> int:
        return await asyncio.to_thread(self._terminal.end)


Sit = Callable[..., Person]


@pytest.fixture
async def sit_down(environment: dict[str, str]) -> AsyncIterator[Sit]:
    opened: list[Terminal] = []

    def start(*arguments: str) -> Person:
        opened.append(Terminal(environment, *arguments))
        return Person(opened[-1])

    yield start
    for terminal in opened:
        await asyncio.to_thread(terminal.close)


def settings(station: Station, **more: object) -> None:
    given = {**station.telegram.settings, "allowed_users": [OWNER], **more}
    station.config["gateway"]["platforms"]["telegram"] = given


async def state(station: Station, session: str) -> HandoffState | None:
    async with open_store(station.home) as store:
        return await store.handoffs.state(SessionId(session))


@pytest.mark.clause("H-14")
@pytest.mark.clause("H-15")
@pytest.mark.clause("H-17")
@pytest.mark.clause("H-20")
async def test_over_to_a_thread_and_back_to_the_terminal(station: Station, sit_down: Sit) -> None:
    station.telegram.group(FORUM, is_forum=True)
    settings(station, home_channel=FORUM, allowed_chats=[FORUM], require_mention=False)
    gateway = asyncio.create_task(station.gateway())
    station.write()
    person = sit_down()
    found = re.search(r"session (\S+)", await person.sees("/help"))
    assert found is not None
    session = found[1]
    await person.sees(PROMPT)
    station.model.say("Noted.")
    await person.types("the cat is white", "Noted.")
    await gateway
    station.model.say("We spoke of the cat.")
    assert "Waiting for the gateway" in await person.types("/handoff telegram", "continues in telegram.")
    await person.sees(f"talaria -r {session}")
    assert await person.leaves() == 0
    assert await state(station, session) == HandoffState("completed", "telegram", None)
    (greeting,) = await station.telegram.wait_for(1, chat=FORUM)
    assert (greeting.text, bool(greeting.thread)) == ("We spoke of the cat.", True)
    station.model.say("White.")
    await station.telegram.say("what colour?", chat=FORUM, thread=greeting.thread)
    await station.telegram.wait_for(2, chat=FORUM)
    # Back, while the chat goes on; each waits for the other's turn.
    person = sit_down("-r", session)
    assert "what colour?" in await person.sees("White.")
    await person.sees(PROMPT)
    station.model.say(Reply("Slowly at the terminal.", faults=Faults(first_byte_delay_s=1.0)), "In the chat.")
    asking = asyncio.create_task(person.types("the dog is black", "Slowly at the terminal."))
    await station.asked(4)
    await station.telegram.say("and now?", chat=FORUM, thread=greeting.thread)
    await asking
    seen = await station.telegram.wait_for(3, chat=FORUM)
    assert [one.text for one in seen] == ["We spoke of the cat.", "White.", "In the chat."]
    said = station.model.requests[-1].body.decode()
    assert said.index("the dog is black") < said.index("Slowly at the terminal.") < said.index("and now?")
    await person.sees(PROMPT)
    station.model.say("Of course.")
    await person.types("and here?", "Of course.")
    assert "In the chat." in station.model.requests[-1].body.decode()


@pytest.mark.clause("H-14")
@pytest.mark.clause("H-15")
async def test_a_handoff_that_fails_says_why_and_the_conversation_stays(station: Station, sit_down: Sit) -> None:
    settings(station)
    await station.gateway()
    person = sit_down()
    await person.sees(PROMPT)
    await person.types("/handoff telegram", "talaria: Say something first")
    await person.sees(PROMPT)
    station.model.say("Noted.")
    await person.types("the cat is white", "Noted.")
    for given, answer in [
        ("/handoff", "needs a platform"),
        ("/handoff pigeon", "'pigeon' is not set up here"),
        ("/handoff telegram", "telegram has no home channel"),
    ]:
        await person.sees(PROMPT)
        await person.types(given, answer)
    await station.telegram.say("/sethome")
    await station.wait_for_messages(1)
    station.telegram.block(OWNER)
    station.model.say("never seen")
    await person.sees(PROMPT)
    await person.types("/handoff telegram", "The handoff failed: It could not be sent")
    await person.sees(PROMPT)
    station.model.say("Still here.")
    await person.types("are you there?", "Still here.")


@pytest.mark.clause("H-14")
async def test_with_no_gateway_running_it_is_said_at_once(station: Station, sit_down: Sit) -> None:
    settings(station, home_channel=OWNER)
    station.write()
    person = sit_down()
    found = re.search(r"session (\S+)", await person.sees("/help"))
    assert found is not None
    await person.sees(PROMPT)
    station.model.say("Noted.")
    await person.types("the cat is white", "Noted.")
    await person.sees(PROMPT)
    assert "Waiting" not in await person.types("/handoff telegram", "No gateway is running: start one")
    assert await state(station, found[1]) == HandoffState(None, None, None)
