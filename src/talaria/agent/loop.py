"""The loop. Durability is the plain order of its lines: nothing is acted on before it is recorded."""

import msgspec

from talaria.agent.model_call import announce_switch, ask_model
from talaria.agent.tool_calls import intents, run_calls
from talaria.agent.turn import Sink, Turn
from talaria.core.entries import MessageAdded
from talaria.core.messages import Assistant, Text, ToolCall, user
from talaria.tools.executor import Executor

_CLOSING = user(
    "You have no tool calls left in this turn. Say what was done, what was found, and what is still open; "
    "do not call tools.",
    author="host",
)


async def run_turn(turn: Turn, *, tools: Executor, sink: Sink, rounds_used: int = 0) -> Assistant:
    """Return the final answer; `runtime/turn_runner.py` commits it together with the turn's end."""
    if not turn.cursor.is_on_primary:
        primary = turn.cursor.route.primary
        await announce_switch(turn, primary, f"{primary.label} asked not to be called yet.", sink)
    is_closing = turn.history.last == _CLOSING  # as a crash may have left it
    for _ in range(rounds_used, turn.max_rounds if not is_closing else 0):
        for writes in turn.take_steering():
            await sink.record(*writes)
        turn.breaker.begin_round()
        answer = await ask_model(turn, turn.request(), sink)
        if not answer.calls and turn.stop_steering():
            return answer
        await sink.record(MessageAdded(answer), *turn.budget.writes, *intents(turn, answer))  # survives a crash
        await run_calls(answer, turn, tools, sink)
        if turn.breaker.has_tripped:
            break
    for writes in turn.take_steering():
        await sink.record(*writes)
    turn.stop_steering()
    if not is_closing:
        await sink.record(MessageAdded(_CLOSING))
    return without_calls(await ask_model(turn, turn.final_request(), sink))


def without_calls(answer: Assistant) -> Assistant:
    """A closing answer must not leave calls open, whatever the model wrote."""
    if not answer.calls:
        return answer
    kept = tuple(part for part in answer.parts if not isinstance(part, ToolCall))
    parts = kept if answer.text else (*kept, Text("Stopped: the limit of tool rounds is reached."))
    return msgspec.structs.replace(answer, parts=parts, stop="end")
