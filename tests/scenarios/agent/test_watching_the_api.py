"""Real processes on one home: a gateway runs a turn that came over the HTTP API, others watch, steer and stop it; and
what a terminal runs is watched, steered and stopped over the API."""

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import msgspec
import pytest
from tests.event_streams import SseEvent, events_of
from tests.ports import reserved_port
from tests.scenarios.agent.test_watching import (
    ANSWER,
    HANGS,
    SESSION,
    Machine,
    Notes,
    check_order,
    entries,
    live_text,
    output,
    row_exists,
)
from tests.waiting import until

from talaria.api.api_tokens import digest_of
from talaria.app.build import Application, open_application
from talaria.app.settings import read_settings
from talaria.core.entries import Entry, MessageAdded
from talaria.core.events import TurnBegan
from talaria.core.ids import SessionId
from talaria.core.messages import User, user
from talaria.core.questions import Answer, Instead, Question
from talaria.runtime.live_socket import Live, Settled
from talaria.runtime.turn_signals import SignalSender
from talaria.runtime.watching import Restarted, WatchLimits
from talaria.store.api_ports import ApiToken
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.model_server import ModelServer, RecordedRequest
from talaria.testing.servers.scripted_replies import Faults, Reply, call

TOKEN = "tal_program"
ADMIN = "tal_admin"
COMMAND = "echo it ran"
SOCKET_BYTES = 4 << 20
"""More than the kernel keeps for a connection whose other end does not read."""
PIECE_CHARS = 2_000
"""Of a long answer."""


class ApiMachine(Machine):
    """One of the processes serves the API."""

    def __init__(self, home: Path, server: ModelServer, port: int) -> None:
        super().__init__(home, server)
        self.port = port
        config = {
            "model": {"default": "m", "base_url": server.base_url},
            "limits": {"turn": {"seconds": 600}},
            "terminal": {"backend": "local"},
            "approvals": {"ask": ["terminal"]},
            "agent": {"max_turns": 100_000},  # until others, who may be slow, stop or steer it
            "api": {"port": port, "requests_per_minute": 100_000},
            "gateway": {"workspace": str(home.parent / "work")},
        }
        (home / "config.yaml").write_text(json.dumps(config))

    async def serve(self) -> None:
        async with self.open() as app:
            scopes = ("chat", "runs", "sessions", "approve")
            await app.store.api_tokens.add(ApiToken(name="program", digest=digest_of(TOKEN), scopes=scopes))
            await app.store.api_tokens.add(ApiToken(name="boss", digest=digest_of(ADMIN), scopes=("admin",)))
        environment = {"TALARIA_HOME": str(self.home), "XDG_RUNTIME_DIR": str(self.home.parent)}
        gateway = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "talaria.cli.main", "api"),
            env={**os.environ, **environment},
            cwd=self.home.parent,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        self._running.append(gateway)
        async with asyncio.timeout(PATIENCE_S):
            while not await self._listens():
                await asyncio.sleep(0.02)

    async def _listens(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        await writer.wait_closed()
        return True

    def client(self, token: str = TOKEN) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"Authorization": f"Bearer {token}"},
            timeout=PATIENCE_S,
            trust_env=False,
        )


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture
async def machine(tmp_path: Path, server: ModelServer) -> AsyncIterator[ApiMachine]:
    with reserved_port() as port:
        made = ApiMachine(tmp_path / "home", server, port)
        await made.serve()
        yield made
        await made.close()


class Begun(msgspec.Struct, frozen=True):
    run: str
    session: SessionId


async def ask(client: httpx2.AsyncClient, text: str = "go") -> Begun:
    got = await client.post("/v1/responses", json={"model": "talaria", "input": text, "background": True})
    assert got.status_code == 200, got.text
    return Begun(got.headers["x-talaria-run"], SessionId(got.headers["x-talaria-session"]))


class SseWatcher:
    def __init__(self, client: httpx2.AsyncClient, path: str) -> None:
        self.events: list[SseEvent] = []
        self._task = asyncio.create_task(self._watch(client, path))

    async def _watch(self, client: httpx2.AsyncClient, path: str) -> None:
        async for event in events_of(client, path, {}):
            self.events.append(event)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    @property
    def settled(self) -> list[dict[str, Any]]:
        return [dict(event.data) for event in self.events if event.name == "settled"]

    @property
    def text(self) -> str:
        return text_of(self.events)

    @property
    def has_ended(self) -> bool:
        return any(event.data.get("entry", {}).get("type") == "turn_ended" for event in self.events[-5:])


def text_of(events: Sequence[SseEvent]) -> str:
    """Live, and not taken back."""
    text = ""
    for event in events:
        if event.name == "restarted":
            text = ""
        elif event.name == "live" and event.data["event"]["type"] == "text":
            text += event.data["event"]["text"]
    return text


def sender(app: Application) -> SignalSender:
    return SignalSender(app.store, app.links.changes, app.links.folder, by="local", surface="test")


async def journal(app: Application, session: SessionId) -> list[Entry]:
    return [one.entry for one in await app.store.journal.entries(session)]


async def test_two_processes_and_a_program_see_a_turn_that_came_over_the_api(
    machine: ApiMachine, server: ModelServer
) -> None:
    goes_on = threading.Event()
    server.say(Reply(text=ANSWER, chunk_chars=3, faults=Faults(held_by=goes_on)))
    async with machine.open() as app, machine.client() as client:
        begun = await ask(client)
        watcher = await machine.start("watch", begun.session)
        notes, program = Notes(app, begun.session), SseWatcher(client, f"/v1/runs/{begun.run}/events")
        assert watcher.stdout is not None
        lines: list[bytes] = []
        while b"turn_began" not in b"".join(lines):
            lines.append(await asyncio.wait_for(watcher.stdout.readline(), PATIENCE_S))
        await until(lambda: any(isinstance(one, Live) and isinstance(one.event, TurnBegan) for one in notes.told))
        await until(lambda: program.settled)
        goes_on.set()
        await until(lambda: notes.ends and program.has_ended)
        lines += (await output(watcher)).encode().splitlines()
        elsewhere = [msgspec.json.decode(line, type=Settled | Live | Restarted) for line in lines]
        for told in (notes.told, elsewhere):
            check_order(told)
            assert live_text(told) == ANSWER
            assert entries(told) == await journal(app, begun.session)
        assert program.text == ANSWER
        assert [one["seq"] for one in program.settled] == list(range(1, len(program.settled) + 1))
        told_entries = msgspec.convert([one["entry"] for one in program.settled], list[Entry])
        assert told_entries == await journal(app, begun.session)
        await notes.close()
        await program.close()


async def test_a_turn_of_the_api_is_stopped_from_another_process(machine: ApiMachine, server: ModelServer) -> None:
    server.say(Reply(text=ANSWER, faults=HANGS))
    async with machine.open() as app, machine.client() as client:
        begun = await ask(client)
        program = SseWatcher(client, f"/v1/runs/{begun.run}/events")
        await until(lambda: program.text)
        assert (await sender(app).stop(begun.session)).state == "obeyed"
        await until(lambda: program.has_ended)
        assert (await client.get(f"/v1/runs/{begun.run}")).json()["status"] == "cancelled"
        await program.close()


def answer_when_steered(request: RecordedRequest) -> Reply:
    if "to the left" in str(request.json):
        return Reply(text="left it is")
    return Reply(calls=(call("missing", id=f"c{len(request.json['messages'])}"),))


async def test_a_turn_of_the_api_is_steered_from_another_process(tmp_path: Path) -> None:
    with ModelServer(respond=answer_when_steered) as server, reserved_port() as port:
        machine = ApiMachine(tmp_path / "home", server, port)
        try:
            await machine.serve()
            async with machine.open() as app, machine.client() as client:
                begun = await ask(client)
                program = SseWatcher(client, f"/v1/runs/{begun.run}/events")
                await until(lambda: program.settled)
                sent = await sender(app).steer(begun.session, "to the left")
                await until(lambda: program.has_ended)
                found = await app.store.signals.find(sent.key)
                assert found is not None
                assert found.state == "obeyed"
                assert (await client.get(f"/v1/runs/{begun.run}")).json()["output_text"] == "left it is"
                await program.close()
        finally:
            await machine.close()


def question_of(program: SseWatcher) -> str:
    """Its id, once it is asked."""
    asked = [event.data["event"] for event in program.events if event.name == "live"]
    return next((one["question"]["id"] for one in asked if one["type"] == "question"), "")


def result_of(server: ModelServer) -> str:
    """What the model was told last of a tool."""
    messages = server.requests[-1].json["messages"]
    return next((one["content"] for one in reversed(messages) if one["role"] == "tool"), "")


async def test_a_question_of_the_api_is_answered_in_another_process(machine: ApiMachine, server: ModelServer) -> None:
    server.say(Reply(calls=(call("terminal", command=COMMAND),)), "Done.")
    async with machine.open() as app, machine.client() as client:
        begun = await ask(client)
        program = SseWatcher(client, f"/v1/runs/{begun.run}/events")
        await until(lambda: question_of(program))
        assert (await sender(app).answer(begun.session, question_of(program), "once")).state == "obeyed"
        await until(lambda: program.has_ended)
        assert "it ran" in result_of(server)
        closed = [event.data["event"] for event in program.events if event.name == "live"]
        (one,) = [event for event in closed if event["type"] == "question_closed"]
        assert one["by"] == "local"
        late = {"question": question_of(program), "answer": "once"}
        assert (await client.post(f"/v1/runs/{begun.run}/approve", json=late)).json()["state"] == "late"
        await program.close()


async def test_the_api_watches_and_stops_a_turn_of_a_terminal(machine: ApiMachine, server: ModelServer) -> None:
    server.say(Reply(text=ANSWER, faults=HANGS))
    async with machine.open() as app, machine.client(ADMIN) as client:
        runner = await machine.start("ask", SESSION, "go")
        await row_exists(app)
        program = SseWatcher(client, f"/v1/sessions/{SESSION}/events")
        await until(lambda: program.text)
        assert (await client.post(f"/v1/sessions/{SESSION}/stop")).json()["state"] == "obeyed"
        assert (await output(runner)).endswith("interrupted")
        await until(lambda: program.has_ended)
        assert [one["seq"] for one in program.settled] == list(range(1, len(program.settled) + 1))
        assert (await client.post(f"/v1/sessions/{SESSION}/stop")).json()["state"] == "late"
        await program.close()


async def test_a_token_without_the_scope_admin_does_not_reach_a_turn_of_a_terminal(
    machine: ApiMachine, server: ModelServer
) -> None:
    goes_on = threading.Event()
    server.say(Reply(text=ANSWER, faults=Faults(held_by=goes_on)))
    async with machine.open() as app, machine.client() as client:
        runner = await machine.start("ask", SESSION, "go")
        await row_exists(app)
        steering, approval = {"text": "to the left"}, {"question": "q", "answer": "once"}
        for path, body in (("stop", {}), ("steer", steering), ("approve", approval)):
            assert (await client.post(f"/v1/sessions/{SESSION}/{path}", json=body)).status_code == 404
        assert (await client.get(f"/v1/sessions/{SESSION}/events")).status_code == 404
        goes_on.set()
        assert (await output(runner)).endswith("completed")


async def test_the_api_steers_a_turn_of_a_terminal(tmp_path: Path) -> None:
    with ModelServer(respond=answer_when_steered) as server, reserved_port() as port:
        machine = ApiMachine(tmp_path / "home", server, port)
        try:
            await machine.serve()
            async with machine.open() as app, machine.client(ADMIN) as client:
                runner = await machine.start("ask", SESSION, "go")
                await row_exists(app)
                headers = {"Idempotency-Key": "once"}
                for _ in range(2):
                    path, steering = f"/v1/sessions/{SESSION}/steer", {"text": "to the left"}
                    assert (await client.post(path, json=steering, headers=headers)).status_code in (200, 202)
                assert (await output(runner)).endswith("completed")
                said = [one.message for one in await journal(app, SESSION) if isinstance(one, MessageAdded)]
                steered = [one.text for one in said if isinstance(one, User) and one.author == "steering"]
                assert steered == ["to the left"]
        finally:
            await machine.close()


class WaitingPerson:
    """Somebody at a terminal, who does not answer."""

    def may_approve(self) -> bool:
        return True

    async def allow(self, question: Question) -> Answer | Instead:
        await asyncio.Event().wait()
        raise AssertionError

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        await asyncio.Event().wait()
        raise AssertionError


async def test_the_api_answers_a_question_of_a_terminal(machine: ApiMachine, server: ModelServer) -> None:
    server.say(Reply(calls=(call("terminal", command=COMMAND),)), "Done.")
    async with open_application(read_settings(machine.home)) as app, machine.client(ADMIN) as client:
        live = app.session(id=SESSION, cwd=machine.home.parent, origin="terminal", person=WaitingPerson())
        turn = asyncio.create_task(live.ask(user("go")))
        await row_exists(app)
        program = SseWatcher(client, f"/v1/sessions/{SESSION}/events")
        await until(lambda: question_of(program))
        given = {"question": question_of(program), "answer": "once"}
        answered = await client.post(f"/v1/sessions/{SESSION}/approve", json=given)
        assert answered.json()["state"] == "obeyed", answered.text
        assert (await turn).outcome == "completed"
        assert "it ran" in result_of(server)
        await program.close()


def read_slowly(port: int, path: str) -> socket.socket:
    """A client that asks, and does not read what it is sent."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n"
    client.sendall(request.encode())
    return client


def read_all(client: socket.socket) -> list[str]:
    """The names of the events."""
    client.settimeout(PATIENCE_S)
    received = bytearray()
    while chunk := client.recv(1 << 20):
        received += chunk
    lines = received.decode().splitlines()
    return [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]


@pytest.mark.long
async def test_a_program_that_does_not_read_is_told_to_catch_up_and_slows_nobody(
    machine: ApiMachine, server: ModelServer
) -> None:
    text = Random(1).randbytes(PIECE_CHARS * 2_000).hex()  # what repeats itself is stopped
    server.say(Reply(text=text, chunk_chars=PIECE_CHARS, faults=Faults(chunk_delay_s=0.003)))
    async with machine.open() as app, machine.client() as client:
        begun = await ask(client)
        program = SseWatcher(client, f"/v1/runs/{begun.run}/events")
        slow = await asyncio.to_thread(read_slowly, machine.port, f"/v1/runs/{begun.run}/events")
        await until(lambda: len(program.events) > SOCKET_BYTES // PIECE_CHARS + WatchLimits().queued)
        assert (await client.post(f"/v1/runs/{begun.run}/stop")).status_code == 200
        await until(lambda: program.has_ended)
        names = await asyncio.to_thread(read_all, slow)
        slow.close()
        assert "restarted" in names
        assert "restarted" not in [event.name for event in program.events]
        assert names.count("settled") == len(program.settled) == len(await journal(app, begun.session))
        await program.close()
