"""`from talaria import Agent, tool`: the agent inside another program."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from talaria import Agent, tool
from talaria.app.build import builtin_names, open_application, open_store
from talaria.app.settings import read_settings
from talaria.core.clock import Clock
from talaria.core.errors import BadConfig, KeyRejected, SessionBusy, StoreUnavailable
from talaria.core.events import Event, TextDelta, ToolEnded, TurnBegan, TurnDone
from talaria.core.ids import OwnerId
from talaria.core.messages import user
from talaria.store.base import Owners, Store
from talaria.testing.servers.model_server import ModelServer, RecordedRequest
from talaria.testing.servers.scripted_replies import Failure, Faults, Reply, call

NewAgent = Callable[..., Agent]


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tool(name="shout")
async def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


@pytest.fixture
def new_agent(server: ModelServer, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NewAgent:
    monkeypatch.setenv("TALARIA_HOME", str(home))

    def make(**options: object) -> Agent:
        return Agent(cwd=tmp_path, **options)  # type: ignore[arg-type]  # the test's options are the agent's

    return make


@pytest.fixture(autouse=True)
def everything_closes(server: ModelServer) -> Iterator[None]:
    """What a test leaves open is a `ResourceWarning` here, and that is an error."""
    yield
    gc.collect()
    server.wait_for_connections(0)


def tool_names(request: RecordedRequest) -> list[str]:
    return [spec["function"]["name"] for spec in request.json.get("tools", [])]


def test_question_without_an_event_loop_is_answered(new_agent: NewAgent, server: ModelServer) -> None:
    server.say("Four.", "Five.")
    with new_agent() as agent:
        report = agent.ask_sync("What is 2 + 2?")
        assert (report.outcome, report.text, report.session) == ("completed", "Four.", agent.session)
        assert agent.ask_sync("And one more?").text == "Five."
    assert len(server.requests[1].json["messages"]) == 4


async def test_question_in_an_event_loop_is_answered(new_agent: NewAgent, server: ModelServer) -> None:
    server.say("Four.")
    async with new_agent() as agent:
        report = await agent.ask("What is 2 + 2?")
    assert (report.text, report.usage.total) == ("Four.", 15)


def test_agent_that_was_never_asked_opens_nothing(new_agent: NewAgent, server: ModelServer, home: Path) -> None:
    with new_agent() as agent:
        assert agent.session is None
        assert not agent.interrupt()
        assert not agent.steer("x")
    assert not (home / "state.db").exists()


def test_closing_twice_is_no_harm(new_agent: NewAgent, server: ModelServer) -> None:
    server.say("ok", "again")
    agent = new_agent(session="s")
    agent.ask_sync("x")
    agent.close()
    agent.close()
    assert agent.ask_sync("and after that").text == "again"
    agent.close()


def test_own_functions_are_the_tools(new_agent: NewAgent, server: ModelServer) -> None:
    calls = (call("add", id="c1", a=40, b=2), call("shout", id="c2", text="hey"))
    server.say(Reply(calls=calls), "42 and HEY.")
    with new_agent(tools=[add, shout]) as agent:
        assert agent.ask_sync("go").text == "42 and HEY."

    results = [message["content"] for message in server.requests[1].json["messages"] if message["role"] == "tool"]
    assert results == ["42", "HEY"]
    assert tool_names(server.requests[0]) == ["add", "shout"]


@pytest.mark.parametrize(("tools", "names"), [(None, len(builtin_names())), ([], 0)])
def test_tools_left_out_are_the_builtin_ones(
    new_agent: NewAgent, server: ModelServer, tools: list[object] | None, names: int
) -> None:
    server.say("ok")
    with new_agent(tools=tools) as agent:
        agent.ask_sync("x")
    assert len(tool_names(server.requests[0])) == names


def test_two_tools_of_one_name_are_refused(new_agent: NewAgent, server: ModelServer) -> None:
    with new_agent(tools=[add, add]) as agent, pytest.raises(BadConfig, match="Two tools are called 'add'"):
        agent.ask_sync("x")


def test_second_agent_goes_on_with_the_session_of_the_first(new_agent: NewAgent, server: ModelServer) -> None:
    server.say("Hello Ada.", "You are Ada.")
    with new_agent(session="support-17", instructions="Be kind.") as first:
        first.ask_sync("I am Ada.")
    with new_agent(session="support-17") as second:
        assert second.ask_sync("Who am I?").text == "You are Ada."
        assert second.session == "support-17"

    messages = server.requests[1].json["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert messages[0]["content"].startswith("Be kind.")


def test_events_are_told_to_a_callback(new_agent: NewAgent, server: ModelServer) -> None:
    server.say(Reply(calls=(call("add", a=1),)), Reply("Two.", chunk_chars=1))
    events: list[Event] = []
    with new_agent(tools=[add]) as agent:
        agent.ask_sync("1 + 1?", on_event=events.append)

    assert isinstance(events[0], TurnBegan)
    assert isinstance(events[-1], TurnDone)
    assert [event.result.text for event in events if isinstance(event, ToolEnded)] == ["2"]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "Two."


async def test_events_can_be_iterated(new_agent: NewAgent, server: ModelServer) -> None:
    server.say(Reply("Two.", chunk_chars=1))
    async with new_agent() as agent:
        events = [event async for event in agent.stream("1 + 1?")]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "Two."
    assert isinstance(events[-1], TurnDone)


def test_failure_is_raised_and_the_session_goes_on(new_agent: NewAgent, server: ModelServer) -> None:
    server.say(Failure(401), "fine")
    with new_agent() as agent:
        with pytest.raises(KeyRejected):
            agent.ask_sync("x")
        assert agent.ask_sync("y").text == "fine"


async def test_failure_is_raised_at_the_end_of_the_events(new_agent: NewAgent, server: ModelServer) -> None:
    server.say(Failure(401))
    events: list[Event] = []

    async def watch(agent: Agent) -> None:
        async for event in agent.stream("x"):
            events.append(event)  # noqa: PERF401  (what came before the failure counts)

    async with new_agent() as agent:
        with pytest.raises(KeyRejected):
            await watch(agent)
    assert isinstance(events[-1], TurnDone)
    assert events[-1].outcome == "failed"


@pytest.mark.parametrize("is_closed_by_hand", [True, False])
async def test_stream_that_is_abandoned_interrupts_the_turn(
    new_agent: NewAgent, server: ModelServer, is_closed_by_hand: bool
) -> None:
    server.say(Reply("never to its end " * 30, faults=Faults(stall_at=3_000)), "Here again.")
    async with new_agent() as agent:
        if is_closed_by_hand:
            async with aclosing(agent.stream("x")) as events:
                async for event in events:
                    if isinstance(event, TextDelta):
                        break
        else:
            async for event in agent.stream("x"):
                if isinstance(event, TextDelta):
                    break
        report = await agent.ask("y")

    assert report.text == "Here again."
    told = server.requests[1].json["messages"][-2]
    assert told["role"] == "assistant"
    assert told["content"].endswith("[This turn was interrupted.]")


async def test_interrupt_ends_the_turn_with_a_report(new_agent: NewAgent, server: ModelServer) -> None:
    server.say(Reply(faults=Faults(hang=True)))
    async with new_agent() as agent:
        asking = asyncio.create_task(agent.ask("x"))
        await asyncio.to_thread(server.wait_for_requests, 1)
        assert agent.interrupt()
        report = await asking
    assert (report.outcome, report.error) == ("interrupted", None)


async def test_cancelled_question_leaves_a_session_that_works(new_agent: NewAgent, server: ModelServer) -> None:
    server.say(Reply(faults=Faults(hang=True)), "ok")
    async with new_agent() as agent:
        asking = asyncio.create_task(agent.ask("x"))
        await asyncio.to_thread(server.wait_for_requests, 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert (await agent.ask("y")).text == "ok"


async def test_note_reaches_the_model_at_its_next_round(new_agent: NewAgent, server: ModelServer) -> None:
    agents: list[Agent] = []

    @tool
    def look() -> str:
        assert agents[0].steer("and be quick")
        return "seen"

    server.say(Reply(calls=(call("look"),)), "ok")
    async with new_agent(tools=[look]) as agent:
        agents.append(agent)
        await agent.ask("x")
    assert server.requests[1].json["messages"][-1]["content"].endswith("and be quick")


async def test_two_tasks_that_ask_at_once_are_answered_one_after_the_other(
    new_agent: NewAgent, server: ModelServer
) -> None:
    server.say("one", "two")
    async with new_agent() as agent:
        reports = await asyncio.gather(agent.ask("x"), agent.ask("y"))
    assert [report.text for report in reports] == ["one", "two"]
    assert len({report.session for report in reports}) == 1
    assert [message["role"] for message in server.requests[1].json["messages"]] == [
        *("system", "user", "assistant", "user")
    ]


async def test_stream_that_is_left_but_kept_does_not_stop_the_next_question(
    new_agent: NewAgent, server: ModelServer
) -> None:
    server.say(Reply("word " * 10, chunk_chars=5), "Next.")
    async with new_agent() as agent:
        events = agent.stream("x")
        assert isinstance(await anext(events), TurnBegan)
        assert (await agent.ask("y")).text == "Next."
        await events.aclose()


async def test_stream_that_is_left_open_is_interrupted_at_the_end(new_agent: NewAgent, server: ModelServer) -> None:
    server.say(Reply("never to its end " * 30, faults=Faults(stall_at=3_000)), "Here again.")
    agent = new_agent(session="s")
    async with agent:
        events = agent.stream("x")
        while not isinstance(await anext(events), TextDelta):
            pass
    await events.aclose()
    async with agent:
        assert (await agent.ask("y")).text == "Here again."
    assert server.requests[1].json["messages"][-2]["content"].endswith("[This turn was interrupted.]")


async def test_tool_that_asks_its_own_agent_is_told_instead_of_waiting_for_itself(
    new_agent: NewAgent, server: ModelServer
) -> None:
    agents: list[Agent] = []

    @tool
    async def recurse() -> str:
        with pytest.raises(SessionBusy, match="would wait for itself"):
            await agents[0].ask("deeper")
        return "told"

    server.say(Reply(calls=(call("recurse"),)), "ok")
    async with asyncio.timeout(20), new_agent(tools=[recurse]) as agent:
        agents.append(agent)
        assert (await agent.ask("x")).text == "ok"
    assert server.requests[1].json["messages"][-1]["content"] == "told"


async def test_failure_to_sign_off_does_not_spoil_what_was_done(
    server: ModelServer, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck:
        def __init__(self, owners: Owners) -> None:
            self._owners = owners

        async def join(self, kind: str) -> OwnerId:
            return await self._owners.join(kind)

        async def leave(self, owner: OwnerId) -> None:
            raise StoreUnavailable("Cannot use state.db: the disk is full.")

    @asynccontextmanager
    async def open_stuck(home: Path, clock: Clock) -> AsyncGenerator[Store]:
        async with open_store(home, clock) as store:
            monkeypatch.setattr(store, "owners", Stuck(store.owners))
            yield store

    server.say("ok")
    async with open_application(read_settings(home), open_store=open_stuck) as app:
        report = await app.session(cwd=tmp_path, origin="terminal").ask(user("x"))
    assert report.text == "ok"
    assert "the disk is full" in caplog.text


@pytest.mark.parametrize("count", [1, 2, 3])
def test_stream_that_is_left_early_leaves_no_open_turn(tmp_path: Path, count: int) -> None:
    async def leave_early() -> None:
        async with Agent(model="demo", home=tmp_path, session="left", cwd=tmp_path) as agent:
            seen = 0
            async for _ in agent.stream("run sleep 5"):
                seen += 1
                if seen == count:
                    break

    async def open_turns() -> list[str]:
        async with open_store(tmp_path) as store:
            return list(await store.journal.interrupted())

    asyncio.run(leave_early())
    assert asyncio.run(open_turns()) == []
