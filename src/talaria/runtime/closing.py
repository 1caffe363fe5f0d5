"""How a turn without an answer ends: every open call gets its result, and the transcript stays legal. Pure."""

from collections.abc import Iterator, Sequence
from typing import Literal

from talaria.agent.interrupted import Close, Ended, close
from talaria.core.entries import MessageAdded, TurnEnded
from talaria.core.ids import TurnId
from talaria.core.messages import Assistant, Text
from talaria.core.usage import Usage
from talaria.providers.message_history import History
from talaria.store.base import CallEnded, CallRow, Write

_LAST_WORDS = {"interrupted": "[This turn was interrupted.]", "failed": "[This turn failed before its answer.]"}


def closing(
    turn: TurnId,
    outcome: Literal["interrupted", "failed"],
    *,
    history: History,
    rows: Sequence[CallRow],
    usage: Usage,
    shown: str = "",
    error: str = "",
) -> list[Write]:
    """One transaction: results in call order, last words in the assistant's place, the turn's end.

    `rows` are the turn's calls, `shown` is what people saw of an answer that did not come to its end.
    """
    verdicts = close(rows)
    writes = [write for call in history.open_calls for write in _result(verdicts[call])]
    text = f"{shown}\n\n{_LAST_WORDS[outcome]}" if shown else _LAST_WORDS[outcome]
    last_words = Assistant((Text(text),), stop="interrupted")
    return [*writes, MessageAdded(last_words), TurnEnded(turn, outcome, usage, error)]


def _result(verdict: Close | Ended) -> Iterator[Write]:
    if isinstance(verdict, Close):
        yield CallEnded(verdict.result)
    yield MessageAdded(verdict.result)
