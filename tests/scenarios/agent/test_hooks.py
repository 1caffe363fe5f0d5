"""Code beside the loop never stands between what happened and its record, and nobody must wait for it to keep an
answer."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.live_sessions import running_turn

from talaria.agent.hooks import Change, NoHooks, Objection, SessionContext
from talaria.core.entries import Noted, TurnOutcome
from talaria.core.messages import Assistant, Message, Text, ToolCall, ToolResult, user
from talaria.providers.base import Endpoint
from talaria.tools.function import tool

if TYPE_CHECKING:
    from tests.scenarios.agent.conftest import Scene


@tool(after_crash="once")
def pay(amount: int = 1) -> str:
    """Costs."""
    return f"paid {amount}"


CALL = Assistant((ToolCall("c1", "pay", "{}"),), "calls")  # pyright: ignore[reportArgumentType]
DONE = Assistant((Text("done"),))


class Slow(NoHooks):
    """Stops where it is told to until it is let go, and takes a look at the store meanwhile."""

    @property
    def is_empty(self) -> bool:
        return False

    @property
    def wants_results(self) -> bool:
        return True

    def __init__(self, scene: "Scene", where: str) -> None:
        self._scene = scene
        self._where = where
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    async def _stop(self, where: str) -> None:
        if where == self._where:
            self.reached.set()
            await self.go.wait()

    async def after_call(
        self, context: SessionContext, call: ToolCall, result: ToolResult, seconds: float
    ) -> ToolResult:
        await self._stop("call")
        return ToolResult(result.call_id, result.name, "changed")

    async def after_request(
        self, context: SessionContext, endpoint: Endpoint, answer: Assistant, seconds: float
    ) -> None:
        await self._stop("request")

    async def revise(self, context: SessionContext, text: str) -> str:
        await self._stop("answer")
        return text

    async def after_turn(
        self, context: SessionContext, asked: str, answer: str, history: Sequence[Message], outcome: TurnOutcome
    ) -> None:
        await self._stop("turn")


async def test_an_outcome_is_durable_before_anybody_hears_of_it(scene: "Scene") -> None:
    hooks = Slow(scene, "call")
    scene.provider.say(CALL, DONE)
    live = await scene.session(pay, hooks=hooks)
    asking = asyncio.create_task(live.ask(user("go"), scene.events.append))
    await hooks.reached.wait()
    turn = (await scene.store.sessions.get(live.id)).open_turn  # pyright: ignore[reportOptionalMemberAccess]
    assert turn is not None
    (row,) = await scene.store.journal.calls(live.id, turn)
    assert (row.state, row.result and row.result.text) == ("done", "paid 1")
    hooks.go.set()
    await asking
    assert [one.text for one in await scene.messages() if isinstance(one, ToolResult)] == ["changed"]


async def test_a_turn_stopped_while_somebody_hears_of_a_result_keeps_the_result(scene: "Scene") -> None:
    hooks = Slow(scene, "call")
    scene.provider.say(CALL)
    live = await scene.session(pay, hooks=hooks)
    asking = asyncio.create_task(live.ask(user("go"), scene.events.append))
    await hooks.reached.wait()
    assert running_turn(live).interrupt()
    assert (await asking).outcome == "interrupted"
    assert [one.text for one in await scene.messages() if isinstance(one, ToolResult)] == ["paid 1"]


async def test_an_answer_is_on_the_disk_before_it_is_told_of(scene: "Scene") -> None:
    hooks = Slow(scene, "request")
    scene.provider.say(CALL, DONE)
    live = await scene.session(pay, hooks=hooks)
    asking = asyncio.create_task(live.ask(user("go"), scene.events.append))
    await hooks.reached.wait()
    assert CALL.parts in [one.parts for one in await scene.messages() if isinstance(one, Assistant)]
    hooks.go.set()
    assert (await asking).text == "done"


async def test_an_answer_is_kept_by_one_who_does_not_wait_for_its_revision(scene: "Scene") -> None:
    hooks = Slow(scene, "answer")
    scene.provider.say(DONE)
    live = await scene.session(hooks=hooks)
    asking = asyncio.create_task(live.ask(user("go"), scene.events.append))
    await hooks.reached.wait()
    assert running_turn(live).interrupt()
    report = await asking
    assert (report.outcome, report.text) == ("completed", "done")


async def test_the_report_comes_to_one_who_does_not_wait_for_those_that_hear_of_the_end(scene: "Scene") -> None:
    hooks = Slow(scene, "turn")
    scene.provider.say(DONE)
    live = await scene.session(hooks=hooks)
    asking = asyncio.create_task(live.ask(user("go"), scene.events.append))
    await hooks.reached.wait()
    asking.cancel()
    assert (await asking).text == "done"


class Changing(NoHooks):
    @property
    def is_empty(self) -> bool:
        return False

    async def before_call(self, context: SessionContext, call: ToolCall) -> Objection | None:
        return Change('{"amount": 7}')


async def test_a_call_that_is_changed_runs_as_changed_and_the_journal_says_so(scene: "Scene") -> None:
    scene.provider.say(CALL, DONE)
    live = await scene.session(pay, hooks=Changing())
    await live.ask(user("go"), scene.events.append)
    assert [one.text for one in await scene.messages() if isinstance(one, ToolResult)] == ["paid 7"]
    entries = [one.entry for one in await scene.store.journal.entries(live.id)]
    (noted,) = [entry for entry in entries if isinstance(entry, Noted)]
    assert noted.text == 'A plugin changed the arguments of pay (c1): {"amount": 7}'
