"""Going on with a conversation, and leaving one behind."""

import asyncio
import re
from pathlib import Path

from tests.scenarios.screen.conftest import OpenScreen, Run, see_quiet
from tests.scenarios.screen.emulator import DETAILS

from talaria.core.clock import SystemClock
from talaria.core.entries import Entry, MessageAdded, Recorded, TurnEnded, TurnStarted
from talaria.core.ids import SessionId, TurnId
from talaria.core.messages import Assistant, Text, user
from talaria.store.base import NewSession
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply, ReplyUsage, call

TALK = (
    Reply("Looking.", thinking="Where might it be?", calls=(call("terminal", command="echo found; echo it"),)),
    Reply("It is **there**:\n\n- one\n- two", usage=ReplyUsage(1_200, 34)),
)

LONG = SessionId("20250101_120000_abcdef01")


def turn(number: int) -> list[Entry]:
    id = TurnId(f"turn-{number}")
    asked, answered = user(f"Question {number}?"), Assistant((Text(f"Answer {number}."),))
    return [TurnStarted(id, "terminal"), MessageAdded(asked), MessageAdded(answered), TurnEnded(id, "completed")]


def test_conversation_is_painted_again_with_its_tools(
    open_screen: OpenScreen, server: ModelServer, talaria: Run
) -> None:
    server.say("An early answer.", *TALK)
    talaria("-q", "An early question?")
    talaria("-c", "-q", "Where is it?")
    session = talaria("sessions", "list").stdout.split()[0]
    screen = open_screen("-c", rows=40)
    screen.see("An early question? · 6 messages")
    see_quiet(screen)
    told = "\n".join(line.rstrip() for line in screen.text.split("\n"))
    assert re.search(
        r"\n› An early question\?\n\nAn early answer\.\n\n› Where is it\?\n\nLooking\.\n\n"
        r"  ✓ terminal  echo found; echo it  \d+\.\d s\n    found\n    it\n\nIt is there:\n\n • one\n • two\n",
        told,
    ), told
    assert "sessions show" not in told
    assert "· 1,234 tokens ·" in screen.status
    screen.type(DETAILS)
    screen.see("✻ Thinking:", "Where might it be?", "● terminal", '    {"command": "echo found; echo it"}', "    found")
    screen.say("/new")
    screen.wait(lambda: "· 0 tokens ·" in screen.status, "nothing is said yet")
    screen.say("/details")
    screen.see("No tools were used")
    server.say("Another talk.")
    screen.say("hi")
    screen.see("Another talk.")
    see_quiet(screen)
    screen.say(f"/resume {session}")
    screen.wait(lambda: screen.scrollback.count("It is there:") == 2, "the conversation once more")
    see_quiet(screen)
    screen.say("/details")
    screen.wait(lambda: screen.scrollback.count("● terminal") == 2, "its tools once more")


def test_end_of_a_long_conversation_is_painted_and_the_rest_is_told_how_to_see(
    open_screen: OpenScreen, server: ModelServer, home: Path
) -> None:
    async def adopt() -> None:
        entries = [entry for number in range(300) for entry in turn(number)]
        async with SqliteStore(home, SystemClock()) as store:
            await store.sessions.adopt(
                NewSession(LONG, "terminal"), 1.0, [Recorded(seq, 1.0, entry) for seq, entry in enumerate(entries, 1)]
            )

    asyncio.run(adopt())
    screen = open_screen("-r", LONG, rows=20)
    screen.see("Question 0? · 600 messages", f"Earlier messages: talaria sessions show {LONG}", "Answer 299.")
    see_quiet(screen)
    told = [line for line in screen.scrollback if line.startswith("› Question")]
    assert told[-1] == "› Question 299?"
    assert 10 <= len(told) <= 60 // 4, "as much as three screens hold"


def test_clear_begins_anew_on_an_empty_screen(open_screen: OpenScreen, server: ModelServer, talaria: Run) -> None:
    server.say("A first answer.", "A second one.")
    screen = open_screen()
    screen.say("first")
    screen.see("A first answer.")
    see_quiet(screen)
    screen.say("/clear")
    screen.see("A new conversation.")
    screen.wait(lambda: "· 0 tokens ·" in screen.status, "nothing is said yet")
    assert screen.lines[0] == "A new conversation."
    assert "A first answer." not in screen.text
    assert "A first answer." in screen.scrollback, "it is the person's"
    screen.say("second")
    screen.see("A second one.")
    assert [one["content"] for one in server.requests[-1].json["messages"] if one["role"] == "assistant"] == []
    assert len(talaria("sessions", "list").stdout.splitlines()) == 2
