"""How a turn without an answer ends: every open call gets its result, and the transcript stays legal. Pure."""

from collections.abc import Iterator, Sequence
from typing import Literal, assert_never

from talaria.agent.interrupted import Close, Ended, Run, RunAgain, close
from talaria.model.entries import MessageAdded, TurnEnded
from talaria.model.ids import CallId, TurnId
from talaria.model.messages import Assistant, Text
from talaria.model.usage import Usage
from talaria.store.base import CallEnded, CallRow, Write

_LAST_WORDS = {"interrupted": "[This turn was interrupted.]", "failed": "[This turn failed before its answer.]"}


def closing(
    turn: TurnId,
    outcome: Literal["interrupted", "failed"],
    *,
    open_calls: Sequence[CallId],
    rows: Sequence[CallRow],
    shown: str,
    usage: Usage,
    error: str = "",
) -> list[Write]:
    """One transaction: results in call order, last words in the assistant's place, the turn's end."""
    verdicts = close(rows)
    writes: list[Write] = []
    for call in open_calls:
        writes.extend(_result(verdicts[call]))
    text = f"{shown}\n\n{_LAST_WORDS[outcome]}" if shown else _LAST_WORDS[outcome]
    writes.append(MessageAdded(Assistant((Text(text),), stop="interrupted")))
    writes.append(TurnEnded(turn, outcome, usage, error))
    return writes


def _result(verdict: Run | RunAgain | Close | Ended) -> Iterator[Write]:
    match verdict:
        case Close(result):
            yield CallEnded(result)
            yield MessageAdded(result)
        case Ended(result):
            yield MessageAdded(result)
        case Run() | RunAgain():
            raise AssertionError("a turn that is given up runs nothing")
        case _:
            assert_never(verdict)
