"""Eight commands of one second that do not depend on each other, called in one answer of the model."""

import asyncio
from collections.abc import Iterator

from benchmarks.application import application, session, temporary_home
from benchmarks.measuring import Lap, Plan
from benchmarks.model_server import model_server
from benchmarks.table import Row
from talaria.model.messages import user

_COMMANDS = 8


def rows(plan: Plan) -> Iterator[Row]:
    runs = plan.of(5, 2)
    with model_server() as server:
        floor, ours = asyncio.run(_measure(f"{server}/sleep/{_COMMANDS}", runs))
    what = f"{_COMMANDS} commands of 1 s / the bare commands"
    yield Row(what, floor.median_s, ours.median_s, "s", runs, times=1.14, limit=1.15)


async def _measure(url: str, runs: int) -> tuple[Lap, Lap]:
    floor, ours = Lap(), Lap()
    with temporary_home() as home:
        async with application(home, url) as app:
            for _ in range(runs):
                with floor:
                    await asyncio.gather(*(_sleep() for _ in range(_COMMANDS)))
                with ours:
                    report = await session(app).ask(user("Sleep."))
                if report.outcome != "completed" or ours.laps[-1] < 1:
                    raise RuntimeError(f"nothing slept: {report}")
    return floor, ours


async def _sleep() -> None:
    process = await asyncio.create_subprocess_exec("sleep", "1")
    await process.wait()
