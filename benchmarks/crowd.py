"""256 conversations of one process at once, with a model that takes 500 ms. Nothing is warm: connections are opened."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from benchmarks.application import application, session, temporary_home
from benchmarks.floors.bare import Bare
from benchmarks.measuring import Plan, percentile
from benchmarks.model_server import model_server
from benchmarks.table import Row
from talaria.core.messages import user

_SESSIONS = 256
_LATENCY_MS = 500

Turn = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class _Crowd:
    turns_per_s: float
    p99_s: float


def rows(plan: Plan) -> Iterator[Row]:
    runs, turns = plan.of(3, 1), plan.of(6, 3)
    floors: list[_Crowd] = []
    ours: list[_Crowd] = []
    with model_server() as server:
        url = f"{server}/plain/{_LATENCY_MS}"
        for _ in range(runs):
            floors.append(asyncio.run(_floor(url, turns)))
            ours.append(asyncio.run(_ours(url, turns)))
    floor_rate, rate = (statistics.median(crowd.turns_per_s for crowd in side) for side in (floors, ours))
    floor_p99, p99 = (statistics.median(crowd.p99_s for crowd in side) for side in (floors, ours))
    yield Row(f"{_SESSIONS} sessions at 500 ms / aiohttp", floor_rate, rate, "turns/s", runs, times=0.85)
    yield Row(f"{_SESSIONS} sessions at 500 ms, p99 / aiohttp", floor_p99, p99, "s", runs, times=1.9, limit=1.5)


async def _floor(url: str, turns: int) -> _Crowd:
    with temporary_home() as home:
        async with Bare(home, url) as bare:
            return await _converse([lambda: bare.post(bytes(6_000))] * _SESSIONS, turns)


async def _ours(url: str, turns: int) -> _Crowd:
    with temporary_home() as home:
        async with application(home, url) as app:
            lives = [session(app) for _ in range(_SESSIONS)]
            return await _converse([lambda live=live: live.ask(user("And now?")) for live in lives], turns)


async def _converse(conversations: list[Turn], turns: int) -> _Crowd:
    took: list[float] = []

    async def converse(turn: Turn) -> None:
        for _ in range(turns):
            began = time.perf_counter()
            await turn()
            took.append(time.perf_counter() - began)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for turn in conversations:
            group.create_task(converse(turn))
    return _Crowd(len(took) / (time.perf_counter() - began), percentile(took, 99))
