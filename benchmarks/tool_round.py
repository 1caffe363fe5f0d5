"""Our own time per round of a trivial tool: the model's call, three commits, the result back to the model."""

import asyncio
from collections.abc import Iterator

from benchmarks.application import application, session, temporary_home
from benchmarks.floors.bare import Bare
from benchmarks.measuring import Lap, Plan
from benchmarks.model_server import model_server
from benchmarks.table import Row
from talaria.core.messages import user
from talaria.tools.function import tool

_ROUNDS = 9
_WARM_UP = 3


@tool
async def count(number: int) -> str:
    """Count one further."""
    return str(number + 1)


def rows(plan: Plan) -> Iterator[Row]:
    runs = plan.of(40, 10)
    with model_server() as server:
        floor, ours = asyncio.run(_measure(f"{server}/count/1", 1, runs))
        yield Row("turn with a tool call / 2 POSTs, 3 commits", floor.median_ms, ours.median_ms, "ms", runs, times=4)
        many_floor, many = asyncio.run(_measure(f"{server}/count/{_ROUNDS}", _ROUNDS, runs))
    further = _ROUNDS - 1
    floor_ms = (many_floor.median_ms - floor.median_ms) / further
    round_ms = (many.median_ms - ours.median_ms) / further
    yield Row("each further round / POST, 3 commits", floor_ms, round_ms, "ms", runs, times=2)


async def _measure(url: str, rounds: int, runs: int) -> tuple[Lap, Lap]:
    floor, ours = Lap(_WARM_UP), Lap(_WARM_UP)
    with temporary_home() as home:
        async with application(home, url, [count]) as app, Bare(home, url) as bare:
            for _ in range(runs + _WARM_UP):
                live = session(app)
                await live.ask(user("Count."))  # writes the new session
                with ours:
                    report = await live.ask(user("Count."))
                body = bytes(report.usage.prompt // (rounds + 1))
                with floor:
                    for _ in range(rounds + 1):
                        await bare.post(body)
                    bare.commit(3 * rounds)
    return floor, ours
