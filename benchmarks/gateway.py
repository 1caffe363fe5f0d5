"""The gateway between many people and a model, beside a program that only receives, asks, commits and sends. People and
model are in processes of their own. Sessions and connections are opened in the course of it."""

# pyright: reportUnknownMemberType=false
# (apsw does not type what it binds)

import json
import os
import statistics
import subprocess
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from benchmarks.application import temporary_home
from benchmarks.measuring import Plan, percentile
from benchmarks.model_server import model_server
from benchmarks.programs import PYTHON, ROOT
from benchmarks.resident import resident_bytes
from benchmarks.table import Row

FLOOR, OURS = "benchmarks.floors.chat", "benchmarks.gateway_program"
_CROWDS = ((256, 500, 0.6), (500, 200, 0.5))
"""People, the model's latency in milliseconds, and the share of the floor's turns per second that is allowed."""
_QUEUED = (100, 100)
"""Chats, and messages in each."""
_WARM_UP, _FURTHER = 100, 500
_STRANGERS = 10_000
_MAX_CODES = 3
"""That strangers are told."""


@dataclass(slots=True)
class Program:
    """One of the two, while it runs."""

    port: int
    pid: int
    home: Path
    late_ms: float = 0.0
    """Of its event loop, once it has ended."""

    def people(self, *arguments: object) -> Any:
        command = [PYTHON, "-m", "benchmarks.people", str(self.port), *map(str, arguments)]
        return json.loads(subprocess.check_output(command, cwd=ROOT))

    @property
    def megabytes(self) -> float:
        return resident_bytes(self.pid) / 2**20

    @property
    def cpu_s(self) -> float:
        """Of all its threads, so far."""
        user, system = Path(f"/proc/{self.pid}/stat").read_text("ascii").rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def program(module: str, model: str, who: str = "everybody") -> Generator[Program]:
    with temporary_home() as home:
        command = [PYTHON, "-m", module, model, str(home), who]
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_RUNTIME_DIR": str(home.parent)}
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            running = Program(int(process.stdout.readline()), process.pid, home)
            try:
                yield running
            finally:
                process.stdin.close()
            running.late_ms = json.loads(process.stdout.readline())


def rows(plan: Plan) -> Iterator[Row]:
    with model_server() as server:
        for people, latency_ms, share in _CROWDS:
            yield from _crowd(plan, server, people, latency_ms, share)
        yield _memory(plan, server)
        yield _drain(server)
        yield _strangers(server)


@dataclass(frozen=True, slots=True)
class _Talk:
    turns_per_s: float
    p99_s: float
    late_ms: float
    cpu_ms: float


def _crowd(plan: Plan, server: str, people: int, latency_ms: int, share: float) -> Iterator[Row]:
    runs, turns = plan.of(3, 1), plan.of(8, 4)
    floors: list[_Talk] = []
    ours: list[_Talk] = []
    for _ in range(runs):
        floors.append(_talk(FLOOR, server, people, latency_ms, turns))
        ours.append(_talk(OURS, server, people, latency_ms, turns))
    name = f"gateway, {people} at {latency_ms} ms"
    rates, p99, late, cpu = (
        [statistics.median(getattr(talk, figure) for talk in side) for side in (floors, ours)]
        for figure in ("turns_per_s", "p99_s", "late_ms", "cpu_ms")
    )
    yield Row(f"{name} / bare", rates[0], rates[1], "turns/s", runs, times=share)
    yield Row(f"{name}, p99 / bare", p99[0], p99[1], "s", runs, limit=3 * latency_ms / 1000)
    yield Row(f"{name}, loop lag p99 / bare", late[0], late[1], "ms", runs, limit=50)
    yield Row(f"{name}, CPU per turn / bare", cpu[0], cpu[1], "ms", runs, limit=0.9)


def _talk(module: str, server: str, people: int, latency_ms: int, turns: int) -> _Talk:
    with program(module, f"{server}/plain/{latency_ms}") as running:
        before = running.cpu_s
        told = running.people("talk", 0, people, turns, latency_ms / 1000)
        cpu_ms = (running.cpu_s - before) * 1000 / len(told["took"])
    return _Talk(told["turns_per_s"], percentile(told["took"], 99), running.late_ms, cpu_ms)


def _memory(plan: Plan, server: str) -> Row:
    runs = plan.of(3, 1)
    floor, ours = ([_further_kb(module, server) for _ in range(runs)] for module in (FLOOR, OURS))
    what = f"gateway, memory per live session, {_FURTHER} / bare"
    return Row(what, statistics.median(floor), statistics.median(ours), "KB", runs, limit=50)


def _further_kb(module: str, server: str) -> float:
    with program(module, f"{server}/plain/0") as running:
        running.people("talk", 0, _WARM_UP, 1, 1.0)
        before = running.megabytes
        running.people("talk", _WARM_UP, _WARM_UP + _FURTHER, 1, 5.0)
        return (running.megabytes - before) * 2**10 / _FURTHER


def _drain(server: str) -> Row:
    floor, ours = (_drained_s(module, server) for module in (FLOOR, OURS))
    chats, messages = _QUEUED
    return Row(f"gateway, {chats * messages:,} queued messages / bare", floor, ours, "s", 1, limit=60)


def _drained_s(module: str, server: str) -> float:
    chats, messages = _QUEUED
    with program(module, f"{server}/echo/0") as running:
        told = running.people("queue", 0, chats, messages)
    answered: dict[str, Sequence[int]] = told["answered"]
    if any(list(numbers) != list(range(messages)) for numbers in answered.values()):
        raise RuntimeError("messages were not answered in order, each once")
    return told["seconds"]


def _strangers(server: str) -> Row:
    floor, ours = (_grown_mb(module, server) for module in (FLOOR, OURS))
    return Row(f"gateway, {_STRANGERS:,} strangers, memory / bare", max(0.01, floor), ours, "MB", 1, limit=20)


def _grown_mb(module: str, server: str) -> float:
    """One who may speak asks before and after them."""
    with program(module, f"{server}/plain/0", who=str(_STRANGERS)) as running:
        running.people("talk", _STRANGERS, _STRANGERS + 1, 1)
        before = running.megabytes
        running.people("strangers", 0, _STRANGERS, 1)
        if module == OURS:
            _check_untouched(running.home)
        return running.megabytes - before


def _check_untouched(home: Path) -> None:
    state = apsw.Connection(str(home / "state.db"), flags=apsw.SQLITE_OPEN_READONLY)
    sessions, calls, messages, codes = (
        state.execute(f"SELECT count(*) FROM {table}").get
        for table in ("sessions", "spending", "inbox", "pairing_requests")
    )
    if (sessions, calls, messages) != (1, 2, 2) or codes > _MAX_CODES:
        raise RuntimeError(f"strangers left {sessions} sessions, {calls} calls, {messages} messages, {codes} codes")
