"""Commands: eight of one second that do not depend on each other, one that does nothing, and one that prints without
end, each in the sandbox."""

import asyncio
import json
from collections.abc import Iterator

from benchmarks.application import application, session, temporary_home
from benchmarks.measuring import Lap, Plan
from benchmarks.model_server import model_server
from benchmarks.table import Row
from talaria.core.clock import SystemClock
from talaria.core.ids import new_call_id
from talaria.core.messages import ToolCall, user
from talaria.runtime.session import LiveSession
from talaria.runtime.transcript import Transcript
from talaria.tools.base import LiveOutput

_COMMANDS = 8
_ALLOWED_MS = 15.0
_WARM_UP = 3


def rows(plan: Plan) -> Iterator[Row]:
    runs = plan.of(5, 2)
    with model_server() as server:
        floor, ours = asyncio.run(_measure(f"{server}/sleep/{_COMMANDS}", runs))
        what = f"{_COMMANDS} commands of 1 s / the bare commands"
        yield Row(what, floor.median_s, ours.median_s, "s", runs, times=1.1)
        often = plan.of(100, 20)
        bare, confined, opening = asyncio.run(_trivial(server, often))
        unseen, shown = asyncio.run(_printing(server, runs))
    limit = bare.median_ms + _ALLOWED_MS
    yield Row("trivial command, sandboxed / bash -c true", bare.median_ms, confined.median_ms, "ms", often, limit=limit)
    yield Row("first of a session / bash -c true", bare.median_ms, opening.median_ms, "ms", often // 10)
    yield Row("1 GB of output, shown live / not shown", unseen.median_s, shown.median_s, "s", runs, times=1.15)


async def _measure(url: str, runs: int) -> tuple[Lap, Lap]:
    floor, ours = Lap(), Lap()
    with temporary_home() as home:
        async with application(home, url) as app:
            for _ in range(runs):
                with floor:
                    await asyncio.gather(*(_bare("sleep", "1") for _ in range(_COMMANDS)))
                live = session(app)
                with ours:
                    report = await live.ask(user("Sleep."))
                if report.outcome != "completed" or ours.laps[-1] < 1:
                    raise RuntimeError(f"nothing slept: {report}")
                await live.close()
    return floor, ours


async def _trivial(url: str, runs: int) -> tuple[Lap, Lap, Lap]:
    bare, confined, opening = Lap(_WARM_UP), Lap(_WARM_UP), Lap(1)
    with temporary_home() as home:
        async with application(home, url) as app:
            for _ in range(runs // 10 + 1):
                live = session(app)
                with opening:
                    await _command(live)
                for _ in range(10):
                    with bare:
                        await _bare("bash", "-c", "true")
                    with confined:
                        await _command(live)
                await live.close()
    return bare, confined, opening


async def _printing(url: str, runs: int) -> tuple[Lap, Lap]:
    unseen, shown = Lap(1), Lap(1)
    tails: list[str] = []
    live = LiveOutput(tails.append, SystemClock())
    with temporary_home() as home:
        async with application(home, url) as app:
            opened = session(app)
            for _ in range(runs + 1):
                for lap, watched in ((unseen, None), (shown, live)):
                    tools = opened.services.executor(Transcript())
                    call = ToolCall(new_call_id(), "terminal", json.dumps({"command": "yes | head -c 1G"}))
                    prepared = tools.prepare(call)
                    await tools.admit(prepared)
                    with lap:
                        result = await tools.run(prepared, watched)
                    if not result.text.endswith("[exit code 0]"):
                        raise RuntimeError(f"it did not print: {result.text[-200:]}")
            await opened.close()
    if not tails:
        raise RuntimeError("nothing was shown")
    return unseen, shown


async def _command(live: LiveSession) -> None:
    call = ToolCall(new_call_id(), "terminal", json.dumps({"command": "true"}))
    result = await live.services.executor(Transcript()).call(call)
    if result.text != "[exit code 0]":
        raise RuntimeError(f"it did not run: {result.text}")


async def _bare(*argv: str) -> None:
    process = await asyncio.create_subprocess_exec(*argv)
    await process.wait()
