"""Runs the calls of one answer: those that do not clash at the same time, each outcome durable the moment it exists.

Every call ends with exactly one result, and the results stand in the model's order; of calls that an interruption
kept from running, the turn's closing says so.
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
from talaria.store.base import CallEnded, CallIntended, CallStarted
from talaria.tools.base import LiveOutput
from talaria.tools.executor import Executor, PreparedCall, error_result

MAX_AT_ONCE = 8

_CUT_OFF = "The answer was cut off before this call was complete, so it did not run. Make a smaller call."


def intents(turn: Turn, answer: Assistant) -> Iterator[CallIntended]:
    return (CallIntended(turn.id, call) for call in answer.calls)


async def run_calls(
    answer: Assistant, turn: Turn, tools: Executor, sink: Sink, verdicts: Mapping[CallId, Verdict] | None = None
) -> None:
    """`verdicts`, of recovery, tell which calls have no result message yet and what is to be done about them."""
    calls = [call for call in answer.calls if verdicts is None or call.id in verdicts]
    batch = _Batch(calls, turn, tools, sink)
    await batch.prepare(verdicts or {}, is_cut_off=answer.stop not in ("calls", "end"))
    for group in batch.groups():
        await batch.run_together(group)


class _Item(msgspec.Struct, frozen=True):
    """One call with what is to be done about it."""

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
        """Off the loop: telling what a call would touch may look at the file system."""
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
        """Runs of neighbours that may run at the same time, in the model's order."""
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
            raise faults.exceptions[0] from None  # only the store can fail here; its first word says it

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
        call, clock = item.call, self._turn.clock
        try:
            admitted = await self._admit(prepared)
        except ModelCorrectable as refusal:
            result = unknown(call).result if item.has_started else _refuse(call, refusal)
            await self._settle(result)
            self._show(call, result)
            return
        if not item.has_started:
            await self._sink.record(CallStarted(call.id), *_changes(prepared, admitted))
        self._sink.emit(ToolBegan(call.id, call.name, admitted.call.arguments))
        began = clock.monotonic()
        live = LiveOutput(lambda tail: self._sink.emit(ToolOutput(call.id, tail)), clock)
        try:
            result = self._turn.breaker.judge(call, await self._tools.run(admitted, live))
        except asyncio.CancelledError:
            result = unknown(call).result
            try:
                await self._settle(result)
            finally:
                self._sink.emit(ToolEnded(result, clock.monotonic() - began))
            raise
        seconds = clock.monotonic() - began
        if self._turn.hooks.wants_results:
            result = await self._settle_with_hooks(call, result, seconds)
        else:
            await self._settle(result)
        self._sink.emit(ToolEnded(result, seconds))

    def _show(self, call: ToolCall, result: ToolResult) -> None:
        """A call that does not run here, and why. People see every call that the model has made."""
        self._sink.emit(ToolBegan(call.id, call.name, call.arguments))
        self._sink.emit(ToolEnded(result, 0.0))

    async def _admit(self, prepared: PreparedCall) -> PreparedCall:
        """The call as it shall run. Raises `ModelCorrectable`."""
        call = prepared.call
        match await self._turn.hooks.before_call(self._turn.context, call):
            case Block(message):
                raise Denied(message)
            case Doubt(message):
                await self._tools.insist(prepared, message)
                return prepared
            case Change(arguments):
                changed = ToolCall(call.id, call.name, arguments)
                prepared = await in_thread(lambda: self._tools.prepare(changed))
            case None:
                pass
        await self._tools.admit(prepared)
        return prepared

    async def _settle_with_hooks(self, call: ToolCall, result: ToolResult, seconds: float) -> ToolResult:
        """The outcome is durable before anybody else has a word in it."""
        await self._sink.record(CallEnded(result))
        shown = result
        try:
            shown = await self._turn.hooks.after_call(self._turn.context, call, result, seconds)
        finally:
            await self._settle(shown, is_durable=True)
        return shown

    async def _settle(self, result: ToolResult, *, is_durable: bool = False) -> None:
        """Make the outcome durable at once; append its message after all earlier ones. Protected from cancellation."""
        await complete(self._settle_in_order(result, is_durable=is_durable))

    async def _settle_in_order(self, result: ToolResult, *, is_durable: bool) -> None:
        """The history, which grows with each commit, tells what is there: so nothing is appended twice."""
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


def _changes(asked: PreparedCall, admitted: PreparedCall) -> Iterator[Noted]:
    """The journal has what the model asked for; what runs in its place must be there, too."""
    if admitted is not asked:
        yield Noted(f"A plugin changed the arguments of {asked.call.name} ({asked.call.id}): {admitted.call.arguments}")


def _clash(item: _Item, other: _Item) -> bool:
    if not isinstance(item.todo, PreparedCall) or not isinstance(other.todo, PreparedCall):
        return True
    return item.todo.invocation.effect.clashes(other.todo.invocation.effect)


def _refuse(call: ToolCall, refusal: ModelCorrectable) -> ToolResult:
    return msgspec.structs.replace(error_result(call, refusal), disposition="none")
