"""Our own time per turn of a live session: the model answers at once, commits are durable."""

import asyncio
from collections.abc import Iterator

from benchmarks.application import application, session, temporary_home
from benchmarks.floors.bare import Bare
from benchmarks.measuring import Lap, Plan
from benchmarks.model_server import model_server
from benchmarks.table import Row
from talaria.app.build import Application
from talaria.core.entries import MessageAdded
from talaria.core.ids import CallId, SessionId
from talaria.core.messages import Assistant, Message, Text, ToolCall, ToolResult, user
from talaria.runtime.session import LiveSession
from talaria.store.base import Held, NewSession

_MESSAGES = (10, 200, 1_000)
_TURNS = 4
"""Per session: so the history stays near its size."""
_SENTENCE = "Some words as they stand in a conversation about a program and its many files. " * 4


def rows(plan: Plan) -> Iterator[Row]:
    with model_server() as server:
        for messages in _MESSAGES:
            floor, ours = Lap(), Lap()
            asyncio.run(_measure(f"{server}/plain/0", messages, plan.of(10, 3), floor, ours))
            what = f"turn at {messages:,} messages / POST and a commit"
            yield Row(what, floor.median_ms, ours.median_ms, "ms", len(ours.laps), times=2.5)


async def _measure(url: str, messages: int, sessions: int, floor: Lap, ours: Lap) -> None:
    with temporary_home() as home:
        async with application(home, url) as app, Bare(home, url) as bare:
            for number in range(sessions):
                live = await _seeded(app, SessionId(f"s{number}"), messages - 2 - _TURNS)
                warm = await live.ask(user("And now?"))  # reads the history from the disk
                body = bytes(warm.usage.prompt)
                await app.store.search.search("nothing")  # indexes the history now, not while we measure
                for _ in range(_TURNS):
                    with floor:
                        await bare.post(body)
                        bare.commit()
                    with ours:
                        report = await live.ask(user("And now?"))
                    if report.outcome != "completed":
                        raise RuntimeError(f"the turn ended as {report.outcome}: {report.error}")


async def _seeded(app: Application, id: SessionId, messages: int) -> LiveSession:
    """A live session with that many messages behind it: questions, calls, results, answers."""
    row = await app.store.sessions.create(NewSession(id, "library", system_prompt=_SENTENCE * 10))
    epoch = await app.store.journal.seize(id, app.owner)
    if isinstance(epoch, Held):
        raise TypeError(f"{id} is held by {epoch.owner}")
    await app.store.journal.record(id, epoch, [MessageAdded(message(number)) for number in range(messages)])
    await app.store.journal.release(id, epoch)
    return session(app, row)


def message(number: int) -> Message:
    call = CallId(f"call_{number // 4}")
    match number % 4:
        case 0:
            return user(f"{number} {_SENTENCE}")
        case 1:
            return Assistant((ToolCall(call, "read_file", '{"path": "src/main.py"}'),), "calls")
        case 2:
            return ToolResult(call, "read_file", f"{number} {_SENTENCE}")
        case _:
            return Assistant((Text(f"{number} {_SENTENCE}"),))
