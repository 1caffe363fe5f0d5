"""The shell and the processes of a conversation, as it lives, ends and comes back."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from talaria.app.build import Application, open_application
from talaria.app.settings import Settings
from talaria.config.schema import Config, ModelConfig
from talaria.core.ids import SessionId
from talaria.core.messages import user
from talaria.runtime.session import LiveSession
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply, call


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def opened(folder: Path, server: ModelServer) -> AbstractAsyncContextManager[Application]:
    config = Config(model=ModelConfig(provider="custom", default="m", base_url=server.base_url))
    return open_application(Settings(folder / "home", config, {}), kind="test")


@pytest.fixture
async def app(tmp_path: Path, server: ModelServer) -> AsyncIterator[Application]:
    async with opened(tmp_path, server) as running:
        yield running


@pytest.fixture
def line(project: Path) -> Iterator[int]:
    """The reading end of a pipe in the project."""
    os.mkfifo(project / "line")
    reading = os.open(project / "line", os.O_RDONLY | os.O_NONBLOCK)
    yield reading
    os.close(reading)


def heard(line: int) -> bytes:
    """What was written, or b"" once nobody holds it any more."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    assert poll.poll(20_000)
    return os.read(line, 1000)


def session(app: Application, project: Path, id: str = "s1") -> LiveSession:
    return app.session(id=SessionId(id), cwd=project, origin="terminal")


def told(server: ModelServer, request: int = -1) -> str:
    """All that the model was shown in a request."""
    return json.dumps(server.requests[request].json["messages"])


HOLDING = "exec 9>line; (setsid sleep 1000 &); echo up >&9; sleep 1000"


async def test_the_end_of_a_background_process_is_told_with_the_next_message(
    app: Application, server: ModelServer, project: Path
) -> None:
    live = session(app, project)
    server.say(
        Reply(calls=(call("terminal", command="until [ -e go ]; do sleep 0.01; done; exit 4", background=True),)),
        "started",
    )
    await live.ask(user("go"))
    (project / "go").touch()
    assert app.builtin is not None
    while not app.builtin.has_news(live.id):
        await asyncio.sleep(0.01)
    server.say("I see")
    await live.ask(user("and?"))
    assert "Background process p1" in told(server)
    assert "exit code 4" in told(server)


async def test_what_ends_while_a_turn_runs_is_told_in_that_turn(
    app: Application, server: ModelServer, project: Path
) -> None:
    calls = (call("terminal", id="c1", command="until [ -e go ]; do sleep 0.01; done; exit 5", background=True),)
    server.say(Reply(calls=calls), Reply(calls=(call("terminal", id="c2", command="touch go; sleep 0.5"),)), "all told")
    report = await session(app, project).ask(user("go"))
    assert report.text == "all told"
    assert "has ended: exit code 5" in told(server)


async def test_the_model_is_told_that_its_shell_is_gone_after_a_restart(
    tmp_path: Path, server: ModelServer, project: Path
) -> None:
    async with opened(tmp_path, server) as app:
        server.say(Reply(calls=(call("terminal", command="export A=1"),)), "done")
        await session(app, project).ask(user("go"))
    async with opened(tmp_path, server) as app:
        row = await app.store.sessions.get(SessionId("s1"))
        live = app.session(row, cwd=project, origin="terminal")
        server.say("I see", "still")
        await live.ask(user("go on"))
        assert "Your earlier shell and its background processes are gone" in told(server)
        await live.ask(user("again"))
        assert told(server).count("background processes are gone") == 1


async def test_a_conversation_without_a_shell_is_told_nothing_of_it(
    tmp_path: Path, server: ModelServer, project: Path
) -> None:
    for _ in range(2):
        async with opened(tmp_path, server) as app:
            row = await app.store.sessions.get(SessionId("s1"))
            server.say("hi")
            await app.session(row, id=SessionId("s1"), cwd=project, origin="terminal").ask(user("hello"))
    assert "are gone" not in told(server)


async def test_leaving_a_conversation_ends_what_runs_in_it(
    app: Application, server: ModelServer, project: Path, line: int
) -> None:
    live = session(app, project)
    server.say(Reply(calls=(call("terminal", command=HOLDING, background=True),)), "started")
    await live.ask(user("go"))
    assert heard(line) == b"up\n"
    await live.leave_for(session(app, project, "s2"))
    assert heard(line) == b""


@pytest.mark.parametrize("backend", ["bubblewrap", "landlock", "local"])
def test_nothing_is_left_running_when_talaria_is_killed(
    tmp_path: Path, server: ModelServer, project: Path, line: int, backend: str
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text(
        f"model: {{default: m, base_url: '{server.base_url}'}}\nterminal: {{backend: {backend}}}\n"
    )
    server.say(Reply(calls=(call("terminal", command=HOLDING, timeout_s=500),)))
    process = subprocess.Popen(
        [sys.executable, "-m", "talaria.cli.main", "--yolo", "-q", "go"],
        cwd=project,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TALARIA_HOME": str(home)},
    )
    assert heard(line) == b"up\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert heard(line) == b""
