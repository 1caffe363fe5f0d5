"""Leaving the session pool: a release keeps what a session owns beside its conversation, an end does not."""

import asyncio
import json
import os
import select
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.contracts.pool.conftest import Closed, House, OpenHouse
from tests.plugin_sources import RECORDER, REGISTER, write_plugin
from tests.scripted_provider import ScriptedProvider

from talaria.app import builtin_tools
from talaria.core.errors import SessionBusy
from talaria.core.ids import SessionId
from talaria.core.messages import user
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply, call

A = SessionId("a")
RUNNING = "exec 9>line; (setsid sleep 1000 &); echo up >&9; sleep 1000"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """With a pipe that hears who writes into it and is held open as long as they live."""
    folder = tmp_path / "project"
    folder.mkdir()
    os.mkfifo(folder / "line")
    return folder


@pytest.fixture
def line(project: Path) -> Iterator[int]:
    reading = os.open(project / "line", os.O_RDONLY | os.O_NONBLOCK)
    yield reading
    os.close(reading)


def heard(line: int, wait_s: float = 20.0) -> bytes | None:
    """What was written; b"" once nobody holds it any more; None: all is quiet."""
    ready, _, _ = select.select([line], [], [], wait_s)
    return os.read(line, 1000) if ready else None


def result(server: ModelServer) -> str:
    return next(one["content"] for one in reversed(server.requests[-1].json["messages"]) if one["role"] == "tool")


class Worker:
    """Uses tools in a conversation."""

    def __init__(self, house: House, server: ModelServer, project: Path) -> None:
        self.house = house
        self._server = server
        self._setup = house.setup(cwd=project)

    async def uses(self, name: str, /, session: str = "a", **arguments: Any) -> str:
        self._server.say(Reply(calls=(call(name, **arguments),)), "done")
        live = await self.house.open(session, self._setup)
        await live.ask(user("go"))
        self.house.pool.touch(live.id)
        return result(self._server)


@pytest.fixture
async def worker(house: OpenHouse, server: ModelServer, project: Path) -> AsyncIterator[Worker]:
    web = {"allow_private": ["127.0.0.1"]}
    async with house(brings=None, web=web) as one:
        yield Worker(one, server, project)


@pytest.mark.clause("C-29")
@pytest.mark.clause("C-30")
@pytest.mark.clause("C-33")
async def test_a_release_keeps_processes_and_the_shell_for_the_next_live_session(worker: Worker, line: int) -> None:
    pool = worker.house.pool
    await worker.uses("terminal", command=RUNNING, background=True)
    assert heard(line) == b"up\n"
    await worker.uses("terminal", command="export COLOUR=green; cd /tmp")
    old = pool.find(A)
    assert pool.evict(A)
    assert heard(line, 0) is None
    assert "green /tmp" in await worker.uses("terminal", command="echo $COLOUR $PWD")
    new = pool.find(A)
    assert old is not None
    assert new is not None
    assert (old.is_unloaded, new.is_unloaded, new is old, new.id) == (True, False, False, old.id)
    assert "p1" in await worker.uses("process", action="list")


@pytest.mark.clause("C-33")
async def test_one_that_rested_finds_its_shell_again(worker: Worker) -> None:
    await worker.uses("terminal", command="export COLOUR=green")
    worker.house.clock.advance(3601)
    assert worker.house.pool.sweep() == 1
    assert "green" in await worker.uses("terminal", command="echo $COLOUR")


@pytest.mark.clause("C-32")
async def test_an_end_leaves_nothing_running_and_a_release_of_another_is_none(worker: Worker, line: int) -> None:
    pool = worker.house.pool
    await worker.uses("terminal", command=RUNNING, background=True)
    assert heard(line) == b"up\n"
    await worker.uses("terminal", session="b", command="true")
    pool.evict(SessionId("b"))
    assert heard(line, 0) is None
    await pool.close(A)
    assert heard(line) == b""
    assert pool.find(A) is None
    assert "[]" in await worker.uses("terminal", command="echo [$COLOUR]")


@pytest.mark.xdist_group("browser")
@pytest.mark.skipif("browser_navigate" not in builtin_tools.names(), reason="there is no browser")
@pytest.mark.clause("C-30")
@pytest.mark.clause("C-32")
async def test_a_release_keeps_the_browser_and_an_end_does_not(worker: Worker) -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text="<h1>Still here</h1>", content_type="text/html")

    site = web.Application()
    site.router.add_get("/", page)
    runner = web.AppRunner(site)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        await worker.uses("browser_navigate", url=f"http://127.0.0.1:{runner.addresses[0][1]}/")
        worker.house.pool.evict(A)
        assert "Still here" in await worker.uses("browser_snapshot")
        await worker.house.pool.close(A)
        assert "Still here" not in await worker.uses("browser_snapshot")
    finally:
        await runner.cleanup()


@pytest.mark.clause("C-31")
async def test_a_new_one_can_ask_at_once_and_a_released_one_never_again(house: OpenHouse, server: ModelServer) -> None:
    async with house() as one:
        live = await one.open("a")
        assert not live.is_unloaded
        server.say("one")
        await live.ask(user("go"))
        one.pool.evict(A)
        assert live.is_unloaded
        with pytest.raises(RuntimeError, match="was unloaded"):
            await live.ask(user("go"))


@pytest.mark.clause("C-31")
async def test_what_a_release_drops_is_a_handle_on_connections_that_others_use(
    house: OpenHouse, server: ModelServer
) -> None:
    async with house() as one:
        server.say("one", "two", "three")
        await one.ask("a")
        await one.ask("b")
        one.pool.evict(A)
        await one.ask("b")
        assert server.connections == 1


@pytest.mark.clause("C-X5")
async def test_a_release_can_be_repeated_and_loses_nothing(house: OpenHouse, server: ModelServer) -> None:
    async with house() as one:
        server.say("one", "two")
        await one.ask("a", "remember the cat")
        live = await one.open("a")
        one.pool.evict(A)
        live.unload()
        assert live.is_unloaded
        await one.ask("a")
        assert "remember the cat" in server.requests[1].body.decode()


@pytest.mark.clause("C-X6")
async def test_one_in_a_turn_cannot_be_ended(house: OpenHouse) -> None:
    async with house() as one:
        async with one.busy("a"):
            with pytest.raises(SessionBusy):
                await one.pool.close(A)
            assert one.kept == ["a"]
        await one.pool.close(A)
        await one.pool.close(A)
        assert one.kept == []


LISTENER = (
    RECORDER
    + """
    def shutdown(self):
        self._note("shutdown")
"""
    + REGISTER.format(engine="Recorder")
    + """
    def finalise(**facts):
        notes = os.path.join(os.environ["HERMES_HOME"], "calls.jsonl")
        with open(notes, "a") as file:
            file.write(json.dumps(["finalize", [facts["session_id"]], {"reason": facts["reason"]}]) + "\\n")
    ctx.register_hook("on_session_finalize", finalise)
"""
)


@pytest.mark.clause("C-X6")
async def test_whoever_keeps_something_hears_all_of_it_before_the_end_and_after_a_release_too(
    house: OpenHouse, server: ModelServer, tmp_path: Path
) -> None:
    write_plugin(tmp_path / "home" / "plugins" / "recorder", LISTENER)
    server.say("one", "two")
    async with house(plugins={"enabled": ["recorder"]}, context={"engine": "recorder"}) as one:
        await one.ask("a")
        await one.ask("a")
        one.pool.evict(A)
        live = await one.open("a")
        await live.catch_up()
        await one.pool.close(A, "session_expired")
    told = [json.loads(line)[:3] for line in (tmp_path / "home" / "hermes" / "calls.jsonl").read_text().splitlines()]
    assert [one for one in told if one[0] in ("finalize", "end", "shutdown")] == [
        ["finalize", ["a"], {"reason": "session_expired"}],
        ["end", ["a"], {"messages": 4}],
        ["shutdown", [], {}],
    ]


@pytest.mark.clause("C-X3")
async def test_what_another_process_wrote_is_read_in_and_the_live_session_stays(
    house: OpenHouse, server: ModelServer
) -> None:
    async with house(is_durable=True) as here, house(is_durable=True) as there:
        server.say("one", "two", "three")
        await here.ask("a", "the cat is white")
        live = await here.open("a")
        await there.ask("a", "the dog is black")
        assert (await here.ask("a", "and now?")).text == "three"
        assert await here.open("a") is live
    said = server.requests[2].body.decode()
    assert said.index("the cat is white") < said.index("the dog is black") < said.index("and now?")


@pytest.mark.clause("C-X3")
async def test_what_another_process_took_back_is_gone_here_too(house: OpenHouse, server: ModelServer) -> None:
    async with house(is_durable=True) as here, house(is_durable=True) as there:
        server.say("one", "two", "three")
        await here.ask("a", "the cat is white")
        await here.ask("a", "the dog is black")
        assert await (await there.open("a")).undo() == "the dog is black"
        await here.ask("a", "and now?")
    said = server.requests[2].body.decode()
    assert "the cat is white" in said
    assert "the dog is black" not in said


async def test_while_another_process_runs_it_a_conversation_is_busy_here(house: OpenHouse) -> None:
    async with house(is_durable=True) as here, house(is_durable=True) as there:
        model = Closed()
        running = asyncio.create_task(there.through(model).ask("a"))
        while not there.is_in_turn("a"):
            await asyncio.sleep(0)
        live = await here.open("a")
        with pytest.raises(SessionBusy):
            await live.ask(user("me, too"))
        model.door.set()
        await running
        assert (await here.through(ScriptedProvider()).ask("b")).outcome == "completed"
