"""People see every call that the model has made, and how it ended; also one that never ran."""

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.live_sessions import running_turn

from talaria.agent.hooks import Block, NoHooks, Objection, SessionContext
from talaria.core.errors import Denied, ToolFailed
from talaria.core.events import Event, ToolBegan, ToolEnded
from talaria.core.ids import CallId
from talaria.core.messages import Assistant, Outcome, ToolCall, ToolResult, user
from talaria.tools.base import Invocation, OpenGate, Scope
from talaria.tools.function import tool

if TYPE_CHECKING:
    from tests.scenarios.agent.conftest import Scene


@tool
async def work(how: str = "") -> str:
    """Work."""
    if how == "fail":
        raise ToolFailed("There is nothing to do. Rest.")
    return "worked"


@tool(timeout_s=0.001)
async def dawdle() -> str:
    """Take your time."""
    await asyncio.Event().wait()
    return ""


class Closed(OpenGate):
    async def admit(self, call: ToolCall, invocation: Invocation, scope: Scope) -> None:
        raise Denied("This call is refused: it is late. Stop.", by="nobody", why="it is late")


class Objecting(NoHooks):
    @property
    def is_empty(self) -> bool:
        return False

    async def before_call(self, context: SessionContext, call: ToolCall) -> Objection | None:
        return Block("Not on a Sunday. Wait.")


def calls(*made: tuple[str, str]) -> Assistant:
    return Assistant(tuple(ToolCall(CallId(f"c{place}"), *one) for place, one in enumerate(made, 1)), "calls")


def lines(events: list[Event]) -> list[tuple[str, Outcome | None]]:
    """Every call that has begun, with how it ended; each of them in pairs."""
    began = {event.call: event for event in events if isinstance(event, ToolBegan)}
    ended = [event.result for event in events if isinstance(event, ToolEnded)]
    assert list(began) == [one.call_id for one in ended]
    return [(f"{began[one.call_id].name} {began[one.call_id].arguments}", one.outcome) for one in ended]


async def test_a_call_that_never_ran_is_shown_with_the_reason(scene: "Scene") -> None:
    scene.provider.say(calls(("wrok", "{}"), ("work", '{"how": 1}')))
    await (await scene.session(work)).ask(user("go"), scene.events.append)
    (unknown, wrong) = lines(scene.events)
    assert unknown == ("wrok {}", Outcome("invalid", "There is no tool called 'wrok'"))
    assert (wrong[0], wrong[1] and wrong[1].kind) == ('work {"how": 1}', "invalid")


@pytest.mark.parametrize(
    ("gate", "hooks", "outcome"),
    [
        (Closed(), None, Outcome("refused", "it is late", "nobody")),
        (OpenGate(), Objecting(), Outcome("refused", "Not on a Sunday", "policy")),
    ],
)
async def test_a_refused_call_is_shown_with_who_refused_it(
    scene: "Scene", gate: OpenGate, hooks: NoHooks | None, outcome: Outcome
) -> None:
    scene.provider.say(calls(("work", "{}")))
    await (await scene.session(work, gate=gate, hooks=hooks)).ask(user("go"), scene.events.append)
    assert lines(scene.events) == [("work {}", outcome)]


async def test_a_call_that_fails_or_takes_too_long_says_so(scene: "Scene") -> None:
    scene.provider.say(calls(("work", '{"how": "fail"}'), ("dawdle", "{}")))
    await (await scene.session(work, dawdle)).ask(user("go"), scene.events.append)
    assert [outcome for _, outcome in lines(scene.events)] == [
        Outcome("failed", "There is nothing to do"),
        Outcome("failed", "timed out after 0 s"),
    ]


async def test_calls_that_an_interruption_stops_or_keeps_from_starting_are_shown(scene: "Scene") -> None:
    running = asyncio.Event()

    @tool
    async def endless() -> str:
        """Never ends."""
        running.set()
        await asyncio.Event().wait()
        return ""

    scene.provider.say(calls(("endless", "{}"), ("work", "{}")))
    live = await scene.session(endless, work)
    turn = asyncio.create_task(live.ask(user("go"), scene.events.append))
    await running.wait()
    running_turn(live).interrupt()
    await turn
    assert lines(scene.events) == [
        ("endless {}", Outcome("cancelled", "stopped")),
        ("work {}", Outcome("cancelled", "not started")),
    ]


async def test_a_call_that_recovery_closes_is_shown(scene: "Scene") -> None:
    class Crash(BaseException):
        pass

    @tool
    async def crash() -> str:
        """Ends the process."""
        raise Crash

    scene.provider.say(calls(("crash", "{}")))
    with pytest.raises(Crash):
        await (await scene.session(crash)).ask(user("go"))
    await (await scene.session(crash)).resume(scene.events.append)
    assert lines(scene.events) == [("crash {}", Outcome("cancelled", "stopped"))]


async def test_a_call_that_worked_needs_no_outcome(scene: "Scene") -> None:
    scene.provider.say(calls(("work", "{}")))
    await (await scene.session(work)).ask(user("go"), scene.events.append)
    ended = [event.result for event in scene.events if isinstance(event, ToolEnded)]
    assert ended == [ToolResult(CallId("c1"), "work", "worked")]
