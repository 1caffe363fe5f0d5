"""Who resumes what after a crash: real `talaria` processes on one home, one of which kills itself in a tool."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.live_sessions import running_turn
from tests.rules import chat_problems, transcript_problems
from tests.scenarios.conftest import without_root_warning

from talaria.app.build import open_application
from talaria.app.settings import read_settings
from talaria.core.clock import SystemClock
from talaria.core.entries import MessageAdded, TurnEnded
from talaria.core.errors import Fenced
from talaria.core.ids import SessionId
from talaria.core.messages import Assistant, Message, ToolResult, User, user
from talaria.runtime.turn_runner import Report
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Faults, Reply, call

TALARIA = [sys.executable, "-m", "talaria.cli.main"]
UNCONFINED = "terminal: {backend: local}\napprovals: {mode: off}\n"
"""So that a command can reach us: above it are its minder, the tool host, and Talaria."""
DEADLY = Reply(
    calls=(
        call("terminal", id="c1", command="echo one >> effects"),
        call("terminal", id="c2", command="echo two >> effects; kill -9 $(ps -o ppid= $(ps -o ppid= $PPID))"),
        call("terminal", id="c3", command="echo three >> effects"),
    )
)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server
        assert [problem for request in server.requests for problem in chat_problems(request.json)] == []


class Machine:
    """A home, a working directory, and the command."""

    def __init__(self, folder: Path, server: ModelServer) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        model = f"model: {{default: m, base_url: '{server.base_url}'}}\n"
        (self.home / "config.yaml").write_text(model + UNCONFINED)
        self.cwd = folder / "work"
        self.cwd.mkdir()
        self.environment = {"TALARIA_HOME": str(self.home), "PATH": os.environ["PATH"], "HOME": str(folder)}

    def talaria(self, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        ended = subprocess.run(
            [*TALARIA, *arguments],
            cwd=self.cwd,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return without_root_warning(ended)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*TALARIA, *arguments],
            cwd=self.cwd,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def effects(self) -> list[str]:
        file = self.cwd / "effects"
        return file.read_text().split() if file.exists() else []

    def crash(self) -> str:
        """Ask, die in the second call; the session's id."""
        assert self.talaria("-q", "go").returncode == -signal.SIGKILL
        (listed,) = json.loads(self.talaria("sessions", "list", "--json").stdout)
        assert listed["is_interrupted"]
        return str(listed["id"])

    def entries(self, session: str) -> tuple[list[Message], list[str]]:
        async def read() -> tuple[list[Message], list[str]]:
            async with SqliteStore(self.home, SystemClock()) as store:
                entries = [one.entry for one in await store.journal.entries(SessionId(session))]
            messages = [entry.message for entry in entries if isinstance(entry, MessageAdded)]
            return messages, [entry.outcome for entry in entries if isinstance(entry, TurnEnded)]

        return asyncio.run(read())


@pytest.fixture
def machine(tmp_path: Path, server: ModelServer) -> Machine:
    return Machine(tmp_path, server)


def dispositions(messages: Sequence[Message]) -> list[str]:
    return [message.disposition for message in messages if isinstance(message, ToolResult)]


@pytest.mark.parametrize("way", ["-c", "-r"])
def test_the_terminal_finishes_the_interrupted_turn_of_the_session_it_opens(
    machine: Machine, server: ModelServer, way: str
) -> None:
    server.say(DEADLY, "finished", "next answer")
    session = machine.crash()
    resumed = machine.talaria(*(["-c"] if way == "-c" else ["-r", session]), stdin="and now?\n")
    assert resumed.returncode == 0
    assert resumed.stdout == "finished\nnext answer\n"
    messages, ends = machine.entries(session)
    assert ends == ["completed", "completed"]
    assert dispositions(messages) == ["done", "unknown", "none"]
    assert machine.effects() == ["one", "two"]
    assert transcript_problems(messages) == []


def test_a_question_to_the_interrupted_session_closes_its_turn_and_asks(machine: Machine, server: ModelServer) -> None:
    server.say(DEADLY, "an answer")
    session = machine.crash()
    asked = machine.talaria("-c", "-q", "something else")
    assert asked.stdout == "an answer\n"
    messages, ends = machine.entries(session)
    assert ends == ["interrupted", "completed"]
    assert dispositions(messages) == ["done", "unknown", "none"]
    assert machine.effects() == ["one", "two"]
    assert transcript_problems(messages) == []


def test_a_plain_question_touches_nothing_else_and_says_in_one_line_that_a_session_waits(
    machine: Machine, server: ModelServer
) -> None:
    server.say(DEADLY, "an answer")
    session = machine.crash()
    before = machine.entries(session)
    asked = machine.talaria("-q", "something else")
    assert asked.stdout == "an answer\n"
    assert [line for line in asked.stderr.splitlines() if session in line] == asked.stderr.splitlines()
    assert len(asked.stderr.splitlines()) == 1
    assert machine.entries(session) == before


def test_a_session_at_work_in_a_living_process_is_left_alone(machine: Machine, server: ModelServer) -> None:
    server.say(Reply(text="slow", faults=Faults(hang=True)), "mine")
    other = machine.start("-q", "go")
    try:
        server.wait_for_requests(1)
        (listed,) = json.loads(machine.talaria("sessions", "list", "--json").stdout)
        refused = machine.talaria("-r", listed["id"], "-q", "me too")
        assert refused.returncode == 2
        assert str(other.pid) in refused.stderr
        assert machine.talaria("sessions", "delete", listed["id"], "--yes").returncode == 2
        assert machine.talaria("-q", "elsewhere").stderr == ""
    finally:
        other.kill()
        other.communicate()
    server.say("now it is mine")
    assert machine.talaria("-r", listed["id"], "-q", "me too").stdout == "now it is mine\n"
    messages, _ = machine.entries(listed["id"])
    assert [message.text for message in messages if isinstance(message, User)] == ["go", "me too"]
    assert transcript_problems(messages) == []


async def test_two_processes_take_turns_on_one_session_and_see_each_others_words(
    machine: Machine, server: ModelServer
) -> None:
    server.say("one", "two", "three")
    async with open_application(read_settings(machine.home)) as app:
        live = app.session(id=SessionId("shared"), cwd=machine.cwd, origin="terminal")
        await live.ask(user("first"))
        other = await asyncio.to_thread(machine.talaria, "-r", "shared", "-q", "second")
        assert other.stdout == "two\n"
        await live.ask(user("third"))
    said = [message["content"] for message in server.requests[-1].json["messages"] if message["role"] == "assistant"]
    assert said == ["one", "two"]


async def test_a_zombie_is_fenced_and_writes_nothing_more(machine: Machine, server: ModelServer) -> None:
    server.say(Reply(text="late", faults=Faults(hang=True)), "the heir's answer")
    settings = read_settings(machine.home)
    async with open_application(settings) as zombie, open_application(settings) as heir:
        asleep = zombie.session(id=SessionId("s"), cwd=machine.cwd, origin="terminal")
        turn = asyncio.create_task(asleep.ask(user("go")))
        await asyncio.to_thread(server.wait_for_requests, 1, timeout_s=30)
        await zombie.store.owners.leave(zombie.owner)  # declared dead, wrongly
        live = heir.session(await heir.store.sessions.get(SessionId("s")), cwd=machine.cwd, origin="terminal")
        resumed = await live.resume()
        running_turn(asleep).interrupt()
        fenced = await turn
    assert isinstance(resumed, Report)
    assert resumed.text == "the heir's answer"
    assert isinstance(fenced.error, Fenced)
    messages, ends = await asyncio.to_thread(machine.entries, "s")
    assert ends == ["completed"]
    assert [message.text for message in messages if isinstance(message, Assistant)] == ["the heir's answer"]
