"""Real processes on one home: one runs a session, others watch it, stop it, steer it, or go on with it."""

import asyncio
import itertools
import signal
import stat
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from tests.contracts.sandboxes.users import a_user, only_as_root
from tests.descriptors import count_descriptors, descriptors_fall_to
from tests.scenarios.agent import another_process
from tests.waiting import until

from talaria.app.build import Application, open_application
from talaria.app.settings import read_settings
from talaria.core.entries import Entry, MessageAdded, TurnEnded, TurnStarted
from talaria.core.events import TextDelta, TurnBegan
from talaria.core.ids import SessionId
from talaria.core.messages import User, user
from talaria.runtime.live_socket import FellBehind, Released, watch_remotely
from talaria.runtime.session import LiveSession
from talaria.runtime.turn_signals import SignalSender
from talaria.runtime.watching import Live, Restarted, Settled, Watched
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.model_server import ModelServer, RecordedRequest
from talaria.testing.servers.scripted_replies import Faults, Reply, call

SESSION = SessionId("watched")
ANSWER = "".join(chr(97 + place % 23) + chr(97 + place % 17) for place in range(300))
HANGS = Faults(stall_at=2_000)
"""In the middle of an answer."""


class Machine:
    """A home, and the processes on it."""

    def __init__(self, home: Path, server: ModelServer) -> None:
        self.home = home
        self._running: list[asyncio.subprocess.Process] = []
        home.mkdir(parents=True, mode=0o700)
        (home / "config.yaml").write_text(
            f"model: {{default: m, base_url: '{server.base_url}'}}\nlimits: {{turn: {{seconds: 600}}}}\n"
            "agent: {max_turns: 100000}\n"  # until others, who may be slow, stop or steer it
        )

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        started = await asyncio.create_subprocess_exec(
            *(sys.executable, another_process.__file__, str(self.home), *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            limit=2**24,
        )
        self._running.append(started)
        return started

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Application]:
        """In the process of the test."""
        async with open_application(read_settings(self.home), tools=()) as app:
            yield app

    async def close(self) -> None:
        for process in self._running:
            if process.returncode is None:
                process.kill()
            await process.communicate()


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture
async def machine(tmp_path: Path, server: ModelServer) -> AsyncIterator[Machine]:
    made = Machine(tmp_path / "home", server)
    yield made
    await made.close()


class Notes:
    """What a watcher in this process was told."""

    def __init__(self, app: Application, session: SessionId = SESSION) -> None:
        self.told: list[Watched] = []
        self._task = asyncio.create_task(self._watch(app, session))

    async def _watch(self, app: Application, session: SessionId) -> None:
        async with aclosing(app.links.watching.watch(session)) as told:
            async for one in told:
                self.told.append(one)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    @property
    def text(self) -> str:
        """Live, and not taken back."""
        return live_text(self.told)

    @property
    def ends(self) -> list[TurnEnded]:
        return [entry for entry in entries(self.told) if isinstance(entry, TurnEnded)]


@asynccontextmanager
async def watched(app: Application) -> AsyncGenerator[Notes]:
    notes = Notes(app)
    try:
        yield notes
    finally:
        await notes.close()


def entries(told: Sequence[Watched]) -> list[Entry]:
    return [one.recorded.entry for one in told if isinstance(one, Settled)]


def live_text(told: Sequence[Watched]) -> str:
    text = ""
    for one in told:
        match one:
            case Restarted():
                text = ""
            case Live(event=TextDelta(piece)):
                text += piece
            case _:
                pass
    return text


def check_order(told: Sequence[Watched]) -> None:
    settled = [one.recorded.seq for one in told if isinstance(one, Settled)]
    assert settled == list(range(1, len(settled) + 1)), "no entry is missing, and none comes twice"
    last = (0, 0)
    for one in told:
        if isinstance(one, Restarted):
            last = (0, 0)
        elif isinstance(one, Live):
            assert (one.epoch, one.first or one.number) > last
            last = (one.epoch, one.number)


async def row_exists(app: Application) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (row := await app.store.sessions.get(SESSION)) is None or row.open_turn is None:
            await asyncio.sleep(0.01)


def sender(app: Application) -> SignalSender:
    return SignalSender(app.store, app.links.changes, app.links.folder, by="local", surface="test")


async def output(process: asyncio.subprocess.Process) -> str:
    async with asyncio.timeout(PATIENCE_S):
        printed, _ = await process.communicate()
    return printed.decode().strip()


async def kill(process: asyncio.subprocess.Process) -> None:
    process.send_signal(signal.SIGKILL)
    await process.wait()


@pytest.mark.parametrize("name", ["home", pytest.param("long/" * 30 + "home", marks=pytest.mark.long)])
async def test_two_processes_see_a_turn_of_a_third(tmp_path: Path, server: ModelServer, name: str) -> None:
    goes_on = threading.Event()
    server.say(Reply(text=ANSWER, chunk_chars=3, faults=Faults(held_by=goes_on)))
    machine = Machine(tmp_path / name, server)
    try:
        async with machine.open() as app, watched(app) as notes:
            runner = await machine.start("ask", SESSION, "go")
            watcher = await machine.start("watch", SESSION)
            assert watcher.stdout is not None
            lines: list[bytes] = []
            while b"turn_began" not in b"".join(lines):
                lines.append(await asyncio.wait_for(watcher.stdout.readline(), PATIENCE_S))
            await until(lambda: any(isinstance(one, Live) and isinstance(one.event, TurnBegan) for one in notes.told))
            goes_on.set()
            await until(lambda: notes.ends)
            lines += (await output(watcher)).encode().splitlines()
            assert (await output(runner)).endswith("completed")
            elsewhere = [msgspec.json.decode(line, type=Settled | Live | Restarted) for line in lines]
            for told in (notes.told, elsewhere):
                check_order(told)
                assert live_text(told) == ANSWER
                assert not any(isinstance(one, Restarted) for one in told)
            assert entries(elsewhere) == entries(notes.told) == await journal(app)
    finally:
        await machine.close()


async def journal(app: Application) -> list[Entry]:
    return [one.entry for one in await app.store.journal.entries(SESSION)]


async def words(app: Application) -> list[str]:
    """Of people."""
    messages = [entry.message for entry in await journal(app) if isinstance(entry, MessageAdded)]
    return [message.text for message in messages if isinstance(message, User)]


async def test_who_comes_in_the_middle_is_told_the_beginning(machine: Machine, server: ModelServer) -> None:
    server.say(Reply(text=ANSWER, faults=HANGS))
    async with machine.open() as app:
        await machine.start("ask", SESSION, "go")
        async with watched(app) as first:
            await until(lambda: len(first.text) > 20)
            async with watched(app) as late:
                await until(lambda: late.text == first.text)
                check_order(late.told)


@pytest.mark.long
async def test_who_never_reads_is_cut_off_and_slows_nobody(machine: Machine, server: ModelServer) -> None:
    goes_on = threading.Event()
    text = "".join(f"{place} " for place in range(40_000))
    server.say(Reply(text=text, chunk_chars=1, faults=Faults(held_by=goes_on)))
    async with machine.open() as app:
        runner = await machine.start("ask", SESSION, "go")
        await row_exists(app)
        holder = await app.store.journal.holder(SESSION)
        assert holder is not None
        await until((machine.home / f"run/{holder}.sock").exists)
        async with watch_remotely(machine.home / "run", holder, SESSION) as frames, watched(app) as notes:
            assert frames is not None
            goes_on.set()
            await until(lambda: notes.ends)
            assert notes.ends[0].outcome == "completed"
            check_order(notes.told)
            seen = 0
            while not isinstance(last := await frames.next(), FellBehind | Released | None):
                seen += 1
            assert isinstance(last, FellBehind), seen
            assert seen < len(text)
        assert (await output(runner)).endswith("completed")


async def test_a_turn_is_stopped_from_another_process(machine: Machine, server: ModelServer) -> None:
    server.say(Reply(text=ANSWER, faults=HANGS))
    async with machine.open() as app, watched(app) as notes:
        runner = await machine.start("ask", SESSION, "go")
        await until(lambda: notes.text)
        sent = await sender(app).stop(SESSION)
        assert sent.state == "obeyed"
        assert (await output(runner)) == f"{sent.turn} interrupted"
        await until(lambda: notes.ends)
        check_order(notes.told)


async def test_a_turn_is_steered_from_another_process(machine: Machine) -> None:
    rounds = itertools.count()

    def respond(request: RecordedRequest) -> Reply:
        if "to the left" in str(request.json):
            return Reply(text="left it is")
        return Reply(calls=(call("missing", id=f"c{next(rounds)}", round=next(rounds)),))

    with ModelServer(respond=respond) as server:
        home = Machine(machine.home.parent / "other", server)
        try:
            async with home.open() as app:
                runner = await home.start("ask", SESSION, "go")
                await row_exists(app)
                sent = await sender(app).steer(SESSION, "to the left")
                assert (await output(runner)).endswith("completed")
                assert [text for text in await words(app) if "to the left" in text] == ["to the left"]
                found = await app.store.signals.find(sent.key)
                assert found is not None
                assert found.state == "obeyed"
        finally:
            await home.close()


async def test_a_note_that_the_model_never_reads_is_late(machine: Machine, server: ModelServer) -> None:
    server.say(Reply(text=ANSWER, faults=HANGS))
    async with machine.open() as app, watched(app) as notes:
        runner = await machine.start("ask", SESSION, "go")
        await until(lambda: notes.text)
        steered = await sender(app).steer(SESSION, "too late")
        assert (await sender(app).stop(SESSION)).state == "obeyed"
        assert (await output(runner)).endswith("interrupted")
        found = await app.store.signals.find(steered.key)
        assert found is not None
        assert found.state == "late"
        assert await words(app) == ["go"]


async def queue_and_die(machine: Machine, text: str) -> str:
    """The key of the line."""
    sending = await machine.start("queue", SESSION, text)
    assert sending.stdout is not None
    key = (await asyncio.wait_for(sending.stdout.readline(), PATIENCE_S)).decode().strip()
    await kill(sending)
    return key


async def state_of(app: Application, key: str) -> str:
    found = await app.store.signals.find(key)
    return found.state if found else "gone"


async def test_a_queued_line_outlives_its_sender_and_the_turn_and_is_asked_once(
    machine: Machine, server: ModelServer
) -> None:
    server.say(Reply(text=ANSWER, faults=HANGS), "one", "two", "three")
    async with machine.open() as app, watched(app) as notes:
        runner = await machine.start("ask", SESSION, "go")
        await until(lambda: notes.text)
        key = await queue_and_die(machine, "and then this")
        assert (await sender(app).stop(SESSION)).state == "obeyed"
        assert (await output(runner)).endswith("interrupted")
        assert await state_of(app, key) == "new"
        asking = [await machine.start("ask-queued", SESSION) for _ in range(3)]
        ended = [await output(one) for one in asking]
        assert sorted(bool(one) for one in ended) == [False, False, True]
        assert await words(app) == ["go", "and then this"]
        assert await state_of(app, key) == "obeyed"


async def test_a_line_whose_turn_was_killed_is_not_asked_again(machine: Machine, server: ModelServer) -> None:
    server.say("hello", Reply(text=ANSWER, faults=HANGS), "Finished.")
    async with machine.open() as app, watched(app) as notes:
        await session(app).ask(user("go"))
        key = await queue_and_die(machine, "and then this")
        asking = await machine.start("ask-queued", SESSION)
        await until(lambda: len(notes.text) > len("hello"))
        await kill(asking)
        assert await state_of(app, key) == "obeyed"
        assert (await output(await machine.start("resume", SESSION))).endswith("completed")
        assert await words(app) == ["go", "and then this"]
        check_order(notes.told)


async def test_a_line_that_was_taken_back_is_not_asked(machine: Machine, server: ModelServer) -> None:
    server.say("hello")
    async with machine.open() as app:
        live = session(app)
        await live.ask(user("go"))
        await queue_and_die(machine, "never mind")
        (line,) = await app.store.signals.list_new([SESSION])
        assert await app.store.signals.settle(line.id, "late")
        assert await live.ask_queued(line, user(line.text)) is None
        assert await words(app) == ["go"]
        assert await app.store.journal.holder(SESSION) is None


async def test_a_turn_whose_process_was_killed_is_told_on_by_the_next(machine: Machine, server: ModelServer) -> None:
    server.say(Reply(text=ANSWER, faults=HANGS), Reply(text=f"again: {ANSWER}"))
    async with machine.open() as app, watched(app) as notes:
        runner = await machine.start("ask", SESSION, "go")
        await until(lambda: notes.text)
        (left,) = [one for one in (machine.home / "run").glob("*.sock") if one.stem.startswith(f"{runner.pid}-")]
        await kill(runner)
        await until(lambda: isinstance(notes.told[-1], Restarted))
        assert left.exists()
        heir = await machine.start("resume", SESSION)
        assert (await output(heir)).endswith("completed")
        await until(lambda: notes.ends)
        check_order(notes.told)
        assert notes.text in ("", f"again: {ANSWER}"), "nothing of the first process"
        assert not left.exists()
        started = [one for one in entries(notes.told) if isinstance(one, TurnStarted)]
        assert [one.turn for one in started] == [notes.ends[0].turn]


@pytest.mark.parametrize("is_resumed", [True, False])
async def test_a_stop_outlives_the_process_that_should_obey_it(
    machine: Machine, server: ModelServer, is_resumed: bool
) -> None:
    server.say(Reply(text=ANSWER, faults=HANGS), Reply(text=ANSWER, faults=HANGS if is_resumed else Faults()))
    async with machine.open() as app, watched(app) as notes:
        runner = await machine.start("ask", SESSION, "go")
        await until(lambda: notes.text)
        await kill(runner)
        stopping = asyncio.create_task(sender(app).stop(SESSION, key="stop"))
        async with asyncio.timeout(PATIENCE_S):
            while await app.store.signals.find("stop") is None:
                await asyncio.sleep(0.01)
        heir = await machine.start(*(("resume", SESSION) if is_resumed else ("ask", SESSION, "something else")))
        turn, outcome = (await output(heir)).split()
        sent = await app.store.signals.find("stop")
        await stopping
        assert sent is not None
        if is_resumed:
            assert (sent.state, sent.turn, outcome) == ("obeyed", turn, "interrupted")
        else:  # the turn was given up, and the next is not touched
            assert sent.turn != turn
            assert (sent.state, outcome) == ("late", "completed")


async def test_without_a_socket_others_see_what_is_settled(machine: Machine, server: ModelServer) -> None:
    goes_on = threading.Event()
    server.say(Reply(text=ANSWER, faults=Faults(held_by=goes_on)))
    async with machine.open() as runner, machine.open() as app, watched(app) as notes:
        (machine.home / f"run/{runner.owner}.new").mkdir()
        turn = asyncio.create_task(session(runner).ask(user("go")))
        await until(lambda: any(isinstance(one, TurnStarted) for one in entries(notes.told)))
        goes_on.set()
        await turn
        await until(lambda: notes.ends)
        check_order(notes.told)
        assert notes.text == ""
        assert [one.message.text for one in entries(notes.told) if isinstance(one, MessageAdded)][-1] == ANSWER


def session(app: Application) -> LiveSession:
    return app.session(id=SESSION, cwd=app.home, origin="terminal")


async def test_the_socket_is_for_its_user_alone_and_goes_with_its_process(
    machine: Machine, server: ModelServer
) -> None:
    server.say("hello")
    async with machine.open() as app:
        await session(app).ask(user("go"))
        await until((file := machine.home / f"run/{app.owner}.sock").exists)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not [*file.parent.glob("*.sock"), *file.parent.glob("*.new")]


CONNECT = """
import socket, sys
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
except PermissionError:
    print("refused")
"""


@only_as_root
async def test_another_user_cannot_connect(server: ModelServer) -> None:
    server.say("hello")
    with TemporaryDirectory() as folder, a_user() as other:
        machine = Machine(Path(folder) / "home", server)
        async with machine.open() as app:
            await session(app).ask(user("go"))
            await until((file := machine.home / f"run/{app.owner}.sock").exists)
            for place in (Path(folder), machine.home, file.parent):
                place.chmod(0o755)
            assert await asyncio.to_thread(other.run, "-c", CONNECT, str(file)) == "refused\n"
            file.chmod(0o666)
            assert await asyncio.to_thread(other.run, "-c", CONNECT, str(file)) == ""


async def test_nothing_stays_open_after_watching(machine: Machine, server: ModelServer) -> None:
    server.say("one", "two", Reply(text=ANSWER, faults=HANGS))
    await watch_once(machine)
    tasks, before = asyncio.all_tasks(), count_descriptors()
    await watch_once(machine)
    await descriptors_fall_to(before)
    await until(lambda: asyncio.all_tasks() <= tasks)


async def watch_once(machine: Machine) -> None:
    async with machine.open() as runner, machine.open() as app, watched(app) as far, watched(runner) as near:
        row = await runner.store.sessions.get(SESSION)
        await runner.session(row, id=SESSION, cwd=machine.home, origin="terminal").ask(user("go"))
        await until(lambda: near.ends and far.ends)
