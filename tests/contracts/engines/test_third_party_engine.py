"""An engine of others, unmodified: installed, enabled, chosen, at work in conversations that share nothing."""

import asyncio
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

from tests.contracts.engines.conftest import OpenHarness

from talaria.core.entries import Compacted
from talaria.runtime.session import LiveSession
from talaria.testing.harness import Harness
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply, ReplyUsage, call

Install = Callable[..., Path]


async def test_it_is_the_engine_of_a_conversation_and_its_tools_work(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("ledger")
    async with harness(enabled=("ledger",), engine="ledger") as one:
        live = one.session()
        server.say(Reply(calls=(call("ledger_search", query="teapot"),)), "found")
        report = await one.ask("where is the teapot?", live)
        assert report.text == "found"
        asked = json.loads(server.requests[0].body)
        assert {tool["function"]["name"] for tool in asked["tools"]} >= {"ledger_search", "ledger_count"}
        result = json.loads(server.requests[1].body)["messages"][-1]
        found = json.loads(result["content"])["found"]
        assert any("where is the teapot?" in page for page in found)
        assert (await live.services.context_status())["engine"] == "ledger"


async def test_two_conversations_at_once_share_no_state(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("ledger")
    async with harness(enabled=("ledger",), engine="ledger") as one:
        lives = [one.session("left"), one.session("right")]
        server.say("a", "b")
        await asyncio.gather(*(one.ask(f"I am {live.id}", live) for live in lives))
        pages = rows(one, "SELECT session, content FROM pages WHERE role = 'user'")
        assert {(session, f"I am {session}" in content) for session, content in pages} == {
            ("left", True),
            ("right", True),
        }
        starts = rows(one, "SELECT session FROM events WHERE what = 'start'")
        assert sorted(session for (session,) in starts) == ["left", "right"]


async def test_it_compacts_a_conversation_that_overflows(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("ledger")
    async with harness(enabled=("ledger",), engine="ledger", window=8_000) as one:
        live = one.session()
        for turn in range(5):
            server.say(Reply(f"answer {turn} " + "word " * 50, usage=ReplyUsage(input=1000 * turn)))
            await one.ask(f"question {turn}", live)
        server.say("the gist of it", "after")
        report = await one.ask("and now?", live)
        assert report.text == "after"
        assert one.notices[0].startswith("The conversation was made shorter by its context engine")
        sent = json.loads(server.requests[-1].body)["messages"]
        assert "[LEDGER] the gist of it" in json.dumps(sent)
        assert "and now?" in json.dumps(sent[-1])
        assert "question 1" not in json.dumps(sent)
        assert [entry.summary_by for entry in await compactions(one, live)] == ["engine"]
        boundary = rows(one, "SELECT facts FROM events WHERE what = 'start' AND facts LIKE '%compression%'")
        assert json.loads(boundary[0][0])["old_session_id"] == live.id


async def test_a_conversation_that_is_opened_again_goes_on_with_it(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("ledger")
    async with harness(enabled=("ledger",), engine="ledger") as one:
        server.say("hello")
        live = one.session()
        await one.ask(live=live)
        await live.close()
        row = await one.app.store.sessions.get(live.id)
        again = one.app.session(row, cwd=one.project, origin="terminal")
        server.say(Reply(calls=(call("ledger_count"),)), "many")
        report = await one.ask("how many?", again)
        assert report.text == "many"
        assert json.loads(json.loads(server.requests[-1].body)["messages"][-1]["content"])["pages"] >= 3


def rows(here: Harness, query: str) -> list[tuple[str, ...]]:
    with sqlite3.connect(here.home / "hermes" / "ledger.db") as database:
        return database.execute(query).fetchall()


async def compactions(here: Harness, live: LiveSession) -> list[Compacted]:
    entries = [recorded.entry for recorded in await here.app.store.journal.entries(live.id)]
    return [entry for entry in entries if isinstance(entry, Compacted)]
