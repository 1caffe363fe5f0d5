"""The HTTP API of the gateway: beside the library, beside a bare server that hands on what the model streams, and
beside the queries alone. The clients are in a process of their own."""

# pyright: reportUnknownMemberType=false
# (apsw does not type what it binds)

import asyncio
import json
import statistics
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import msgspec

from benchmarks.api_clients import Caller, question, request
from benchmarks.application import application, session, temporary_home
from benchmarks.gateway import OURS as GATEWAY
from benchmarks.gateway import Program, program
from benchmarks.gateway_program import PERSON
from benchmarks.measuring import Lap, Plan, percentile
from benchmarks.model_server import model_server
from benchmarks.programs import PYTHON, ROOT
from benchmarks.table import Row
from benchmarks.turns import message
from talaria.core.clock import SystemClock
from talaria.core.entries import MessageAdded
from talaria.core.ids import SessionId
from talaria.core.messages import user
from talaria.store.base import Held, NewSession
from talaria.store.sqlite.store import SqliteStore

_RELAY = "benchmarks.floors.relay"
_WARM_UP = 10
_STREAMS = 256
_LATENCY_MS = 500
_WORDS_OVER_MS = 2_000
"""Sixteen words in this time: eight a second in each stream, two thousand a second in all."""
_WARM_WATCHERS, _WATCHERS = 100, 1_000
_SESSIONS, _ENTRIES = 10_000, 5_000
_PROMPT = "x" * 14_000
"""About as much as ours begins a conversation with."""


def rows(plan: Plan) -> Iterator[Row]:
    with model_server() as server:
        yield asyncio.run(_own_time(plan, server))
        yield from _streams(plan, server)
        yield _watchers(plan, server)
        yield from _reading(plan, server)
        yield _door(plan, server)


@contextmanager
def _api(model: str) -> Generator[tuple[Program, int]]:
    """The gateway with its API, and the port of that."""
    with program(GATEWAY, model, "api") as running:
        yield running, int((running.home / "api-port").read_text())


async def _own_time(plan: Plan, server: str) -> Row:
    """One client that waits for each answer, in turn with a session of the library: the difference is the API's."""
    url, turns = f"{server}/plain/0", plan.of(200, 60)
    library, ours = Lap(_WARM_UP), Lap(_WARM_UP)
    asked = question("mine", is_streamed=False)
    with _api(url) as (_, port), temporary_home() as home:
        async with application(home, url) as app:
            live, caller = session(app), Caller(port)
            for _ in range(_WARM_UP + turns):
                with library:
                    report = await live.ask(user("And now?"))
                if report.outcome != "completed":
                    raise RuntimeError(f"the turn ended as {report.outcome}: {report.error}")
                with ours:
                    caller.call(asked)
            caller.close()
    own_ms = ours.median_ms - library.median_ms
    return Row("API, own time of a turn / a library turn", library.median_ms, own_ms, "ms", turns, limit=2.0)


@dataclass(frozen=True, slots=True)
class _Talk:
    turns_per_s: float
    p99_s: float
    age_ms: float
    """Of deltas when they arrive, p99."""
    cpu_ms: float


def _streams(plan: Plan, server: str) -> Iterator[Row]:
    runs, turns = plan.of(3, 1), plan.of(8, 4)
    name = f"API, {_STREAMS}"
    floors, ours = _talks(server, f"plain/{_LATENCY_MS}", runs, turns)
    rate, p99, cpu = (_medians(floors, ours, figure) for figure in ("turns_per_s", "p99_s", "cpu_ms"))
    yield Row(f"{name} at {_LATENCY_MS} ms / bare ASGI", *rate, "turns/s", runs, times=0.6)
    yield Row(f"{name} at {_LATENCY_MS} ms, p99 / bare ASGI", *p99, "s", runs)
    yield Row(f"{name} at {_LATENCY_MS} ms, CPU per turn / bare ASGI", *cpu, "ms", runs)
    floors, ours = _talks(server, f"stamped/{_WORDS_OVER_MS}", runs, plan.of(3, 1))
    floor, age = _medians(floors, ours, "age_ms")
    yield Row(f"{name} streams, a delta, p99 / bare ASGI", floor, age, "ms", runs, limit=floor + 20)


def _medians(floors: list[_Talk], ours: list[_Talk], figure: str) -> tuple[float, float]:
    return statistics.median(getattr(talk, figure) for talk in floors), statistics.median(
        getattr(talk, figure) for talk in ours
    )


def _talks(server: str, behaviour: str, runs: int, turns: int) -> tuple[list[_Talk], list[_Talk]]:
    floors: list[_Talk] = []
    ours: list[_Talk] = []
    spread_s = int(behaviour.partition("/")[2]) / 1000
    for _ in range(runs):
        with program(_RELAY, f"{server}/{behaviour}") as running:
            floors.append(_talk(running, running.port, turns, spread_s))
        with _api(f"{server}/{behaviour}") as (running, port):
            ours.append(_talk(running, port, turns, spread_s))
    return floors, ours


def _talk(running: Program, port: int, turns: int, spread_s: float) -> _Talk:
    before = running.cpu_s
    told = _clients(port, "talk", 0, _STREAMS, turns, spread_s)
    cpu_ms = (running.cpu_s - before) * 1000 / len(told["took"])
    age_ms = percentile(told["ages_ms"], 99) if told["ages_ms"] else 0.0
    return _Talk(told["turns_per_s"], percentile(told["took"], 99), age_ms, cpu_ms)


def _command(port: int, *arguments: object) -> list[str]:
    return [PYTHON, "-m", "benchmarks.api_clients", str(port), *map(str, arguments)]


def _clients(port: int, *arguments: object) -> Any:
    return json.loads(subprocess.check_output(_command(port, *arguments), cwd=ROOT))


def _watchers(plan: Plan, server: str) -> Row:
    """Of conversations in which nothing happens, one each."""
    runs = plan.of(3, 1)
    floor: list[float] = []
    ours: list[float] = []
    for _ in range(runs):
        with program(_RELAY, f"{server}/plain/0") as running:
            floor.append(_per_watcher_kb(running, running.port))
        with _api(f"{server}/plain/0") as (running, port):
            # Without prompts: what SQLite caches of them has its bounds, and is not the watchers'.
            asyncio.run(_seed_sessions(running.home, _WARM_WATCHERS + _WATCHERS, ""))
            ours.append(_per_watcher_kb(running, port))
    what = f"API, an idle watcher of {_WATCHERS:,} / bare ASGI"
    return Row(what, statistics.median(floor), statistics.median(ours), "KB", runs, limit=20)


def _per_watcher_kb(running: Program, port: int) -> float:
    with _watched(port, 0, _WARM_WATCHERS):
        before = running.megabytes
        with _watched(port, _WARM_WATCHERS, _WARM_WATCHERS + _WATCHERS):
            return (running.megabytes - before) * 2**10 / _WATCHERS


@contextmanager
def _watched(port: int, first: int, last: int) -> Generator[None]:
    command = _command(port, "watch", first, last)
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if int(process.stdout.readline() or 0) != last - first:
            raise RuntimeError("not all could watch")
        try:
            yield
        finally:
            process.stdin.close()


async def _seed_sessions(home: Path, count: int, prompt: str) -> None:
    async with SqliteStore(home, SystemClock()) as store, asyncio.TaskGroup() as group:
        for number in range(count):
            new = NewSession(SessionId(f"s{number}"), "platform", "test", "/", prompt, person=PERSON)
            group.create_task(store.sessions.create(new))


async def _seed_long(home: Path, id: SessionId) -> None:
    async with SqliteStore(home, SystemClock()) as store:
        await store.sessions.create(NewSession(id, "platform", person=PERSON))
        owner = await store.owners.join("benchmark")
        epoch = await store.journal.seize(id, owner)
        if isinstance(epoch, Held):
            raise TypeError(f"{id} is held by {epoch.owner}")
        await store.journal.record(id, epoch, [MessageAdded(message(number)) for number in range(_ENTRIES)])
        await store.journal.release(id, epoch)


def _reading(plan: Plan, server: str) -> Iterator[Row]:
    runs, long = plan.of(100, 30), SessionId("long")
    with _api(f"{server}/plain/0") as (running, port):
        asyncio.run(_seed_sessions(running.home, _SESSIONS, _PROMPT))
        asyncio.run(_seed_long(running.home, long))
        sql = apsw.Connection(str(running.home / "state.db"), flags=apsw.SQLITE_OPEN_READONLY)
        caller = Caller(port)

        def compare(path: str, query: str, value: str, least_bytes: int) -> tuple[float, float]:
            bare, ours = Lap(_WARM_UP), Lap(_WARM_UP)
            for _ in range(_WARM_UP + runs):
                with bare:
                    msgspec.json.encode(sql.execute(query, (value,)).fetchall())
                with ours:
                    answer = caller.call(request("GET", path))
                if len(answer) < least_bytes:
                    raise RuntimeError(answer)
            return bare.median_ms, ours.median_ms

        listed = "SELECT * FROM sessions WHERE person = ? ORDER BY updated_at DESC, id DESC LIMIT 50"
        figures = compare("/v1/sessions", listed, PERSON, 10_000)
        yield Row(f"API, list of {_SESSIONS:,} sessions / the query", *figures, "ms", runs, limit=30)
        read = "SELECT seq, at, body FROM entries WHERE session = ? ORDER BY seq DESC LIMIT 100"
        figures = compare(f"/v1/sessions/{long}/entries?limit=100", read, long, 10_000)
        yield Row(f"API, 100 entries of {_ENTRIES:,} / the query", *figures, "ms", runs, limit=50)
        caller.close()
        sql.close()


def _door(plan: Plan, server: str) -> Row:
    """Both answer one message of the chat service; with the API, it answers a request, too."""
    runs = plan.of(5, 1)
    without: list[float] = []
    added: list[float] = []
    for _ in range(runs):
        with program(GATEWAY, f"{server}/plain/0") as running:
            running.people("talk", 0, 1, 1, 0.0)
            without.append(running.megabytes)
        with _api(f"{server}/plain/0") as (running, port):
            running.people("talk", 0, 1, 1, 0.0)
            caller = Caller(port)
            caller.call(question("mine", is_streamed=False))
            added.append(running.megabytes - without[-1])
            caller.close()
    what = "API, its memory in the gateway / the gateway"
    return Row(what, statistics.median(without), statistics.median(added), "MB", runs, limit=25)
