"""Runs the calls of one answer, at the same time if they do not clash. Each outcome is durable as soon as it exists.

Every call ends with exactly one result, and results are in the model's order. If an interruption keeps calls from
running, the turn's closing writes their results.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from talaria.agent.hooks import Block, Change, Doubt
from talaria.agent.interrupted import Close, Ended, RunAgain, RunIfAllowed, Verdict, unknown
from talaria.agent.turn import Sink, Turn
from talaria.core.aio import complete, in_thread
from talaria.core.entries import MessageAdded, Noted
from talaria.core.errors import BadArguments, Denied, ModelCorrectable
from talaria.core.events import ToolBegan, ToolEnded, ToolOutput
from talaria.core.ids import CallId
from talaria.core.messages import Assistant, ToolCall, ToolResult
from talaria.store.base import CallEnded, CallIntended, CallStarted, Write
from talaria.tools.base import LiveOutput
from talaria.tools.executor import Executor, PreparedCall, error_result

MAX_AT_ONCE = 8

_CUT_OFF = "The answer was cut off before this call was complete, so it did not run. Make a smaller call."


def intents(turn: Turn, answer: Assistant) -> Iterator[CallIntended]:
    return (CallIntended(turn.id, call) for call in answer.calls)


async def run_calls(
    answer: Assistant, turn: Turn, tools: Executor, sink: Sink, verdicts: Mapping[CallId, Verdict] | None = None
) -> None:
    """`verdicts` come from recovery: which calls have no result message yet, and what to do about them."""
    calls = [call for call in answer.calls if verdicts is None or call.id in verdicts]
    batch = _Batch(calls, turn, tools, sink)
    await batch.prepare(verdicts or {}, is_cut_off=answer.stop not in ("calls", "end"))
    for group in batch.groups():
        await batch.run_together(group)


class _Item(msgspec.Struct, frozen=True):
    """One call, and what to do about it."""

    call: ToolCall
    todo: PreparedCall | Close | Ended
    has_started: bool = False


class _Batch:
    def __init__(self, calls: Sequence[ToolCall], turn: Turn, tools: Executor, sink: Sink) -> None:
        self._calls = calls
        self._turn = turn
        self._tools = tools
        self._sink = sink
        self._items: list[_Item] = []
        self._results: dict[CallId, ToolResult] = {}
        self._ended: set[CallId] = set()
        """Calls whose outcome is in their row."""
        self._appending = asyncio.Lock()
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)

    async def prepare(self, verdicts: Mapping[CallId, Verdict], *, is_cut_off: bool) -> None:
        """Off the loop: finding out what a call would touch may read the file system."""
        self._items = await in_thread(
            lambda: [
                self._item(call, verdicts.get(call.id, RunIfAllowed()), is_cut_off=is_cut_off) for call in self._calls
            ]
        )

    def _item(self, call: ToolCall, verdict: Verdict, *, is_cut_off: bool) -> _Item:
        match verdict:
            case Close() | Ended():
                return _Item(call, verdict)
            case RunIfAllowed() | RunAgain():
                has_started = isinstance(verdict, RunAgain)
                try:
                    if is_cut_off:
                        raise BadArguments(_CUT_OFF)
                    prepared = self._tools.prepare(call)
                except ModelCorrectable as refusal:
                    return _Item(call, unknown(call) if has_started else Close(_refuse(call, refusal)))
                return _Item(call, prepared, has_started)

    def groups(self) -> Iterator[Sequence[_Item]]:
        """Neighbours that may run at the same time, in the model's order."""
        group: list[_Item] = []
        for item in self._items:
            if group and any(_clash(item, other) for other in group):
                yield group
                group = []
            group.append(item)
        if group:
            yield group

    async def run_together(self, group: Sequence[_Item]) -> None:
        if len(group) == 1:
            await self._finish(group[0])
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                for item in group:
                    tasks.create_task(self._finish(item), name=f"call {item.call.name}")
        except BaseExceptionGroup as faults:
            raise faults.exceptions[0] from None  # only the store can fail here; its first error says why

    async def _finish(self, item: _Item) -> None:
        match item.todo:
            case Ended(result):
                await self._settle(result, is_durable=True)
                self._show(item.call, result)
            case Close(result):
                await self._settle(result)
                self._show(item.call, result)
            case PreparedCall() as prepared:
                async with self._slots:
                    await self._run(item, prepared)

    async def _run(self, item: _Item, prepared: PreparedCall) -> None:
        call, turn, tools = item.call, self._turn, self._tools
        admitted = prepared
        try:
            match await turn.hooks.before_call(turn.context, prepared.call):
                case Block(message):
                    raise Denied(message)
                case Doubt(message):
                    await tools.insist(prepared, message)
                case Change(arguments):
                    changed = ToolCall(call.id, call.name, arguments)
                    admitted = await in_thread(lambda: tools.prepare(changed))
                    await tools.admit(admitted)
                case None:
                    await tools.admit(prepared)
        except ModelCorrectable as refusal:
            result = unknown(call).result if item.has_started else _refuse(call, refusal)
            await self._settle(result)
            self._show(call, result)
            return
        if not item.has_started:
            started: list[Write] = [CallStarted(call.id)]
            if admitted is not prepared:  # the journal has only what the model asked for
                change = f"A plugin changed the arguments of {call.name} ({call.id}): {admitted.call.arguments}"
                started.append(Noted(change))
            await self._sink.record(*started)
        self._sink.emit(ToolBegan(call.id, call.name, admitted.call.arguments))
        began = turn.clock.monotonic()
        live = LiveOutput(lambda tail: self._sink.emit(ToolOutput(call.id, tail)), turn.clock)
        try:
            result = turn.breaker.judge(call, await tools.run(admitted, live))
        except asyncio.CancelledError:
            result = unknown(call).result
            try:
                await self._settle(result)
            finally:
                self._sink.emit(ToolEnded(result, turn.clock.monotonic() - began))
            raise
        seconds = turn.clock.monotonic() - began
        if turn.hooks.wants_results:
            await self._sink.record(CallEnded(result))  # durable before any hook can change it
            shown = result
            try:
                shown = await turn.hooks.after_call(turn.context, call, result, seconds)
            finally:
                await self._settle(shown, is_durable=True)
            result = shown
        else:
            await self._settle(result)
        self._sink.emit(ToolEnded(result, seconds))

    def _show(self, call: ToolCall, result: ToolResult) -> None:
        """A call that does not run here, and why. People see every call that the model makes."""
        self._sink.emit(ToolBegan(call.id, call.name, call.arguments))
        self._sink.emit(ToolEnded(result, 0.0))

    async def _settle(self, result: ToolResult, *, is_durable: bool = False) -> None:
        """Make the outcome durable at once; append its message after all earlier ones. Protected from cancellation."""
        await complete(self._settle_in_order(result, is_durable=is_durable))

    async def _settle_in_order(self, result: ToolResult, *, is_durable: bool) -> None:
        """The history grows with each commit and shows what is there, so nothing is appended twice."""
        async with self._appending:
            self._results[result.call_id] = result
            if is_durable:
                self._ended.add(result.call_id)
            elif self._turn.history.open_calls[0] != result.call_id:
                await self._sink.record(CallEnded(result))
                self._ended.add(result.call_id)
            while (missing := self._turn.history.open_calls) and missing[0] in self._results:
                following = self._results[missing[0]]
                ended = () if missing[0] in self._ended else (CallEnded(following),)
                await self._sink.record(*ended, MessageAdded(following))


def _clash(item: _Item, other: _Item) -> bool:
    if not isinstance(item.todo, PreparedCall) or not isinstance(other.todo, PreparedCall):
        return True
    return item.todo.invocation.effect.clashes(other.todo.invocation.effect)


def _refuse(call: ToolCall, refusal: ModelCorrectable) -> ToolResult:
    return msgspec.structs.replace(error_result(call, refusal), disposition="none")
