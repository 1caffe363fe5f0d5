"""Conversations on their way from Hermes' state.db to our store: one at a time, so that memory stays small.

Rows of a conversation → its journal, as a live session would have written it. Pure.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, Protocol

from talaria.compat.hermes_home.exchanges import ImportedExchange, calls, exchanges
from talaria.compat.hermes_home.hermes_database import HermesSession, MessageRow, StateFile, open_state
from talaria.compat.hermes_home.report import Item, mark_failed
from talaria.core.aio import in_thread
from talaria.core.entries import (
    Entry,
    MessageAdded,
    Noted,
    Recorded,
    TurnEnded,
    TurnOrigin,
    TurnStarted,
    encode_compaction,
)
from talaria.core.errors import StoreDamaged, TalariaError
from talaria.core.ids import TurnId
from talaria.core.messages import Message
from talaria.providers.message_history import size_tokens

_TELLING_CHARS = 40
_TELLING_ID_CHARS = 12
"""Two rows that are equal and longer than this, or have such an id, are one and its copy."""
_ORIGINS: dict[str, TurnOrigin] = {
    **dict.fromkeys(("cli", "tui", "acp"), "terminal"),
    **dict.fromkeys(("api_server", "tool", "subagent"), "library"),
    "cron": "schedule",
}


def journal(rows: Sequence[MessageRow], source: str) -> list[Recorded]:
    """Empty if nothing was said. What Hermes archived stands in the journal, and the model reads what it read last."""
    is_shortened = any(not row.is_live for row in rows)
    whole = exchanges(_originals(rows) if is_shortened else rows)
    live = exchanges(row for row in rows if row.is_live) if is_shortened else whole
    if not whole:
        whole = live
    entries = [dated for exchange in whole for dated in _turn(exchange, _ORIGINS.get(source, "platform"))]
    entries.extend(_shortening(whole, live))
    return [Recorded(seq, at, entry) for seq, (at, entry) in enumerate(entries, 1)]


def _turn(exchange: ImportedExchange, origin: TurnOrigin) -> Iterator[tuple[float, Entry]]:
    turn = TurnId(f"turn_hermes_{exchange.id}")
    began, ended = exchange.said[0][0], exchange.said[-1][0]
    yield began, TurnStarted(turn, origin)
    for at, message in exchange.said:
        yield at, MessageAdded(message)
    for note in exchange.notes:
        yield ended, Noted(note)
    yield ended, TurnEnded(turn, "completed" if exchange.is_answered else "interrupted")


def _shortening(whole: Sequence[ImportedExchange], live: Sequence[ImportedExchange]) -> Iterator[tuple[float, Entry]]:
    before, after = _messages(whole), _messages(live)
    if not after or after == before:
        return
    tokens = sum(map(size_tokens, before))
    shared = _reuse_messages(before, after)
    yield whole[-1].said[-1][0], encode_compaction(before, shared, summary_by="model", tokens=tokens, threshold=tokens)


def _messages(told: Iterable[ImportedExchange]) -> list[Message]:
    return [message for exchange in told for _, message in exchange.said]


def _reuse_messages(before: Sequence[Message], after: Sequence[Message]) -> list[Message]:
    """`after`, with the very messages of `before` where they say the same: those need not be written again."""
    known = {message: message for message in before}
    return [known.get(message, message) for message in after]


def _originals(rows: Iterable[MessageRow]) -> Iterator[MessageRow]:
    """Without the summaries, and without the copies that each shortening made of what it kept: the beginning before
    the summary, the end behind it."""
    seen: set[tuple[object, ...]] = set()
    for row in _without_runs(_generations(rows)):
        key = _to_comparable(row) if _is_telling(row) else (*_to_comparable(row), row.at)
        if key not in seen:
            yield row
        seen.add(key)


def _generations(rows: Iterable[MessageRow]) -> list[list[MessageRow]]:
    """What stands between the summaries."""
    found: list[list[MessageRow]] = [[]]
    for row in rows:
        if row.is_summary:
            found.append([])
        else:
            found[-1].append(row)
    return found


def _without_runs(generations: Sequence[Sequence[MessageRow]]) -> list[MessageRow]:
    kept: list[MessageRow] = []
    for generation in generations[:-1]:
        kept.extend(generation[_overlap(kept, generation) :])
        kept = kept[: len(kept) - _overlap(kept, kept[: len(kept) // 2])]
    return [*kept, *generations[-1][_overlap(kept, generations[-1]) :]]


def _overlap(before: Sequence[MessageRow], after: Sequence[MessageRow]) -> int:
    """How many rows at the end of `before` are said again at the beginning of `after`."""
    first, second = [_to_comparable(row) for row in before], [_to_comparable(row) for row in after]
    return next((n for n in range(min(len(first), len(second)), 0, -1) if first[-n:] == second[:n]), 0)


def _to_comparable(row: MessageRow) -> tuple[object, ...]:
    return row.role, row.content, row.call_id, row.calls, row.tool


def _is_telling(row: MessageRow) -> bool:
    """Short words are said again and again, and some models number their calls anew in every answer."""
    ids = [row.call_id, *(asked.id for asked in calls(row))]
    return len(row.content or "") > _TELLING_CHARS or any(len(id) > _TELLING_ID_CHARS for id in ids)


Fate = Literal["taken", "there", "empty", "helper", "damaged"]
Progress = Callable[[int, int], None]
"""How many are done, and of how many."""


class Receiver(Protocol):
    """Where conversations go."""

    async def has(self, id: str) -> bool: ...
    async def take(self, row: HermesSession, told: list[Recorded]) -> bool:
        """False: it is there already."""
        ...


class Tally:
    """What became of them."""

    def __init__(self) -> None:
        self.fates: Counter[Fate] = Counter()
        self.messages = 0

    def items(self) -> Iterator[Item]:
        for fate, count in self.fates.items():
            name = f"{count:,} conversation{'' if count == 1 else 's'}"
            match fate:
                case "taken":
                    yield Item("conversations", f"{name} with {self.messages:,} messages", "taken")
                case "there":
                    yield Item("conversations", name, "there")
                case "empty":
                    yield Item("conversations", name, "left", "nothing was said")
                case "helper":
                    yield Item("conversations", name, "left", "runs of subagents and tools, not conversations of yours")
                case "damaged":
                    problem = StoreDamaged("state.db is damaged where they stand")
                    yield mark_failed(Item("conversations", name, "left"), problem)


async def move(file: Path, receiver: Receiver, progress: Progress) -> list[Item]:
    """What came of it; a file that cannot be read is an item, too, behind what was taken until then."""
    tally = Tally()
    try:
        await _move(file, receiver, tally, progress)
    except TalariaError as fault:
        return [*tally.items(), mark_failed(Item("conversations", file.name, "left"), fault)]
    return list(tally.items())


async def _move(file: Path, receiver: Receiver, tally: Tally, progress: Progress) -> None:
    with open_state(file) as state:
        total = await in_thread(lambda: state.count)
        rows = state.sessions()
        while (row := await in_thread(lambda: next(rows, None))) is not None:
            tally.fates[await _move_session(row, state, receiver, tally)] += 1
            progress(tally.fates.total(), total)


async def _move_session(row: HermesSession, state: StateFile, receiver: Receiver, tally: Tally) -> Fate:
    if row.is_helper:
        return "helper"
    if await receiver.has(row.id):
        return "there"
    try:
        told = await in_thread(lambda: journal(state.messages(row), row.source))
    except StoreDamaged:
        return "damaged"
    if not told or not row.id:
        return "empty"
    if not await receiver.take(row, told):
        return "there"
    tally.messages += sum(isinstance(recorded.entry, MessageAdded) for recorded in told)
    return "taken"
