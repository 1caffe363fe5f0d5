"""Section P, incremental persistence: what is on the disk at each moment of a tool round, as others see it."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from talaria.app.build import open_application
from talaria.app.settings import read_settings
from talaria.core.clock import SystemClock
from talaria.core.entries import MessageAdded
from talaria.core.errors import StoreUnavailable
from talaria.core.events import Event, Notice
from talaria.core.ids import Epoch, SessionId
from talaria.core.messages import Assistant, Message, ToolResult, User, user
from talaria.store.base import CallEnded, CallIntended, Journal, Write
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.port_proxies import JournalProxy, StoreProxy
from talaria.testing.rules import transcript_problems
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply, call
from talaria.tools.base import EXCLUSIVE, INDEPENDENT, Run, Tool
from talaria.tools.function import tool

SESSION = SessionId("section-p")


async def stored(home: Path) -> list[Message]:
    """What a second process opening the same home would see."""
    async with SqliteStore(home, SystemClock()) as store:
        recorded = await store.journal.entries(SESSION)
    return [one.entry.message for one in recorded if isinstance(one.entry, MessageAdded)]


class Witness:
    """Tools that look at the disk while they run."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.seen: list[list[Message]] = []
        self.runs: list[Run] = []

    def tool(self, effect: Any = EXCLUSIVE) -> Tool:
        @tool(effect=effect)
        async def witness(run: Run, mark: str = "") -> str:
            """Look at the disk."""
            self.runs.append(run)
            self.seen.append(await stored(self._home))
            return f"saw {mark}"

        return witness


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def home(tmp_path: Path, server: ModelServer) -> Path:
    (tmp_path / "config.yaml").write_text(f"model: {{default: m, base_url: '{server.base_url}'}}\n")
    return tmp_path


async def converse(home: Path, tools: Sequence[Tool], observer: Callable[[Event], None] = lambda _: None) -> str:
    async with open_application(read_settings(home), tools=tools) as app:
        live = app.session(id=SESSION, cwd=home, origin="terminal")
        report = await live.ask(user("go"), observer)
    assert report.error is None
    return report.text


@pytest.mark.clause("P-01")
async def test_p01_the_assistant_message_with_its_calls_is_durable_before_the_first_tool_runs(
    home: Path, server: ModelServer
) -> None:
    server.say(Reply(calls=(call("witness", id="call_of_the_model"),)), "done")
    witness = Witness(home)
    await converse(home, [witness.tool()])
    newest = witness.seen[0][-1]
    assert isinstance(newest, Assistant)
    assert [one.id for one in newest.calls] == ["call_of_the_model"]


@pytest.mark.clause("P-02")
async def test_p02_the_turn_finishes_normally_after_its_tool_round(home: Path, server: ModelServer) -> None:
    server.say(Reply(calls=(call("witness"),)), "done")
    witness = Witness(home)
    assert await converse(home, [witness.tool()]) == "done"
    assert len(witness.seen) == 1


@pytest.mark.clause("P-03")
async def test_p03_a_failing_observer_does_not_decide_the_turn(home: Path, server: ModelServer) -> None:
    server.say(Reply(calls=(call("witness"),)), "done")

    def broken(event: Event) -> None:
        raise RuntimeError(f"no screen for {event}")

    assert await converse(home, [Witness(home).tool()], broken) == "done"


class FailingAtFirst(JournalProxy):
    """A journal whose disk is full for the first commits of intents."""

    def __init__(self, journal: Journal, failures: int) -> None:
        super().__init__(journal)
        self.failures = failures

    async def record(self, session: SessionId, epoch: Epoch, writes: Sequence[Write]) -> bool:
        if self.failures and any(isinstance(write, CallIntended) for write in writes):
            self.failures -= 1
            raise StoreUnavailable("Cannot use state.db: the disk is full.")
        return await super().record(session, epoch, writes)


@pytest.mark.clause("P-03")
async def test_p03_no_tool_runs_on_an_intent_that_is_not_durable_and_the_turn_goes_on_when_the_store_heals(
    home: Path, server: ModelServer
) -> None:
    server.say(Reply(calls=(call("witness"),)), "done")
    witness = Witness(home)
    events: list[Event] = []
    async with open_application(read_settings(home), tools=[witness.tool()]) as app:
        journal = FailingAtFirst(app.store.journal, failures=2)
        live = replace(app, store=StoreProxy(app.store, journal)).session(id=SESSION, cwd=home, origin="terminal")

        def watch(event: Event) -> None:
            if journal.failures:
                assert witness.seen == []
            events.append(event)

        report = await live.ask(user("go"), watch)
    assert report.text == "done"
    assert len(witness.seen) == 1
    assert [event.text for event in events if isinstance(event, Notice)] == [
        "Cannot use state.db: the disk is full. Waiting for it."
    ]


@pytest.mark.clause("P-04")
async def test_p04_each_result_is_durable_before_the_next_sequential_call_runs(home: Path, server: ModelServer) -> None:
    calls = tuple(call("witness", id=f"c{n}", mark=str(n)) for n in (1, 2, 3))
    server.say(Reply(calls=calls), "done")
    witness = Witness(home)
    await converse(home, [witness.tool(EXCLUSIVE)])
    results = [[one.call_id for one in seen if isinstance(one, ToolResult)] for seen in witness.seen]
    assert results == [[], ["c1"], ["c1", "c2"]]


@pytest.mark.clause("P-05")
async def test_p05_one_result_message_per_call_in_call_order_each_kept_once(home: Path, server: ModelServer) -> None:
    server.say(Reply(calls=(call("witness", id="c1", mark="1"), call("witness", id="c2", mark="2"))), "done")
    witness = Witness(home)
    await converse(home, [witness.tool()])
    results = [one for one in await stored(home) if isinstance(one, ToolResult)]
    assert [(one.call_id, one.text) for one in results] == [("c1", "saw 1"), ("c2", "saw 2")]
    assert len(witness.runs) == 2


@pytest.mark.clause("P-06")
async def test_p06_concurrent_calls_end_in_any_order_but_their_results_are_appended_in_the_models(
    home: Path, server: ModelServer
) -> None:
    server.say(Reply(calls=(call("first", id="c1"), call("second", id="c2"))), "done")
    second_has_ended = asyncio.Event()
    invoked: list[str] = []

    @tool(effect=INDEPENDENT)
    async def first() -> str:
        invoked.append("c1")
        await second_has_ended.wait()
        return "slow"

    @tool(effect=INDEPENDENT)
    async def second() -> str:
        invoked.append("c2")
        return "quick"

    async with open_application(read_settings(home), tools=[first, second]) as app:
        journal = Recording(app.store.journal, home, second_has_ended)
        live = replace(app, store=StoreProxy(app.store, journal)).session(id=SESSION, cwd=home, origin="terminal")
        await live.ask(user("go"))
    assert journal.flushes == [["c1"], ["c1", "c2"]]
    assert sorted(invoked) == ["c1", "c2"]
    assert journal.ended == ["c2", "c1"]


class Recording(JournalProxy):
    """Looks at the disk after each commit that appended a result message."""

    def __init__(self, journal: Journal, home: Path, second: asyncio.Event) -> None:
        super().__init__(journal)
        self._home = home
        self._second = second
        self.flushes: list[list[str]] = []
        self.ended: list[str] = []

    async def record(self, session: SessionId, epoch: Epoch, writes: Sequence[Write]) -> bool:
        is_released = await super().record(session, epoch, writes)
        for write in writes:
            if isinstance(write, CallEnded):
                self.ended.append(write.result.call_id)
                if write.result.call_id == "c2":
                    self._second.set()
            if isinstance(write, MessageAdded) and isinstance(write.message, ToolResult):
                seen = await stored(self._home)
                self.flushes.append([one.call_id for one in seen if isinstance(one, ToolResult)])
        return is_released


@pytest.mark.clause("P-07")
async def test_p07_a_tool_is_told_the_id_of_its_call_and_its_session(home: Path, server: ModelServer) -> None:
    server.say(Reply(calls=(call("witness", id="the-call", mark="m"),)), "done")
    witness = Witness(home)
    await converse(home, [witness.tool()])
    assert [(run.call, run.scope.session) for run in witness.runs] == [("the-call", SESSION)]


DEADLY = """
import os, signal, sys
from pathlib import Path
from talaria import Agent, tool

@tool
def step(mark: str) -> str:
    "Do one thing."
    with open("effects", "a") as file:
        file.write(mark)
    if mark == "2" and not Path("died").exists():
        Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return f"did {mark}"

with Agent(tools=[step], session="section-p", home=".") as agent:
    if sys.argv[1] == "ask":
        agent.ask_sync("go")
    else:
        print(agent.run_sync(agent.resume()).text)
"""


@pytest.mark.clause("P-08")
async def test_p08_killed_during_call_k_the_disk_has_the_turn_its_calls_and_the_results_before_k(
    home: Path, server: ModelServer
) -> None:
    server.say(Reply(calls=tuple(call("step", id=f"c{n}", mark=str(n)) for n in (1, 2, 3))), "done")
    died = subprocess.run([sys.executable, "-c", DEADLY, "ask"], cwd=home, check=False, timeout=60)
    assert died.returncode == -9
    question, answer, *results = await stored(home)
    assert isinstance(question, User)
    assert isinstance(answer, Assistant)
    assert [one.id for one in answer.calls] == ["c1", "c2", "c3"]
    assert [(one.call_id, one.text) for one in results if isinstance(one, ToolResult)] == [("c1", "did 1")]

    resumed = subprocess.run(
        [sys.executable, "-c", DEADLY, "resume"], cwd=home, check=True, timeout=60, capture_output=True, text=True
    )
    assert resumed.stdout == "done\n"
    messages = await stored(home)
    assert transcript_problems(messages) == []
    outcomes = [(one.call_id, one.disposition) for one in messages if isinstance(one, ToolResult)]
    assert outcomes == [("c1", "done"), ("c2", "unknown"), ("c3", "none")]
    assert (home / "effects").read_text() == "12"
