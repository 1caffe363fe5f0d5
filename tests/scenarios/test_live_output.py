"""What commands print, while they run and when they have ended, as those who watch a turn are told."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from talaria.app.build import Application, open_application
from talaria.app.settings import Settings
from talaria.config.schema import Config, ModelConfig
from talaria.core.events import Event, ToolEnded, ToolOutput
from talaria.core.ids import SessionId
from talaria.core.messages import Outcome, user
from talaria.runtime.session import LiveSession
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Call, Reply, call

PATIENCE_S = 30


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[tuple[Application, ModelServer]]:
    (tmp_path / "project").mkdir()
    with ModelServer() as server:
        config = Config(model=ModelConfig(provider="custom", default="m", base_url=server.base_url))
        async with open_application(Settings(tmp_path / "home", config, {}), kind="test") as running:
            yield running, server


@pytest.fixture
async def live(app: tuple[Application, ModelServer], tmp_path: Path) -> AsyncIterator[LiveSession]:
    session = app[0].session(id=SessionId("s1"), cwd=tmp_path / "project", origin="terminal", is_asking=False)
    yield session
    await session.close()


@pytest.fixture
def server(app: tuple[Application, ModelServer]) -> ModelServer:
    return app[1]


@pytest.mark.parametrize(
    "made",
    [
        call("terminal", command="echo one; printf two; until [ -e go ]; do sleep 0.01; done; echo; echo three"),
        call(
            "execute_code",
            code="import os, time\nprint('one\\ntwo', end='', flush=True)\n"
            "while not os.path.exists('go'): time.sleep(0.01)\nprint('\\nthree')",
        ),
    ],
    ids=["terminal", "execute_code"],
)
async def test_what_a_command_has_printed_is_shown_while_it_runs(
    live: LiveSession, server: ModelServer, tmp_path: Path, made: Call
) -> None:
    events: list[Event] = []

    def watch(event: Event) -> None:
        events.append(event)
        if isinstance(event, ToolOutput) and event.tail == "one\ntwo":
            (tmp_path / "project" / "go").touch()

    server.say(Reply(calls=(made,)), "done")
    async with asyncio.timeout(PATIENCE_S):
        await live.ask(user("go"), watch)
    (ended,) = [event.result for event in events if isinstance(event, ToolEnded)]
    assert ended.outcome == Outcome("done", "exit 0", output_chars=len("one\ntwo\nthree\n"))
    assert {event.call for event in events if isinstance(event, ToolOutput)} == {ended.call_id}
    assert ended.text == "one\ntwo\nthree\n\n[exit code 0]"


async def test_how_commands_ended_is_told_in_a_few_words(live: LiveSession, server: ModelServer) -> None:
    server.say(
        Reply(calls=(call("terminal", command="echo ouch; exit 3"), call("terminal", command="kill -SEGV $$"))),
        Reply(calls=(call("terminal", command="exit 255"), call("execute_code", code="raise SystemExit(4)"))),
        Reply(calls=(call("terminal", command="exit 5", background=True),)),
        Reply(calls=(Call("w", "process", '{"action": "wait", "id": "p1"}'),)),
        Reply(calls=(call("process", action="list"),)),
        Reply(calls=(call("terminal", command="true", workdir="nowhere"),)),
        "done",
    )
    events: list[Event] = []
    await live.ask(user("go"), events.append)
    results = [event.result for event in events if isinstance(event, ToolEnded)]
    assert [result.outcome for result in results[:7]] == [
        Outcome("failed", "exit 3", output_chars=len("ouch\n")),
        Outcome("failed", "killed by SIGSEGV"),
        Outcome("failed", "exit 255"),
        Outcome("failed", "exit 4"),
        Outcome("done", "started in the background as p1"),
        Outcome("failed", "exit 5"),
        None,
    ]
    assert [result.is_error for result in results] == [False] * 7 + [True], "as the model was told before"
    assert results[-1].outcome is not None
    assert results[-1].outcome.kind == "failed"


async def test_a_command_that_prints_without_end_is_shown_a_few_times_per_second(
    live: LiveSession, server: ModelServer
) -> None:
    """However many pieces come: not even one for each hundred kilobytes."""
    events: list[Event] = []
    server.say(Reply(calls=(call("terminal", command="yes 0123456789abcde | head -c 50M"),)), "done")
    await live.ask(user("go"), events.append)
    (ended,) = [event for event in events if isinstance(event, ToolEnded)]
    shown = [event for event in events if isinstance(event, ToolOutput)]
    assert 0 < len(shown) <= ended.seconds / 0.125 + 2
    assert all(len(event.tail) <= 4_000 for event in shown)
    assert all(set(event.tail.split("\n")) <= {"0123456789abcde", ""} for event in shown[:1])
