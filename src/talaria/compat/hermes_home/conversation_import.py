"""Conversations on their way from Hermes' state.db to our store: one at a time, so that memory stays small."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, Protocol

from talaria.compat.hermes_home.hermes_database import StateFile, open_state
from talaria.compat.hermes_home.journals import journal
from talaria.compat.hermes_home.report import Item, failed
from talaria.compat.hermes_home.rows import HermesSession
from talaria.core.entries import MessageAdded, Recorded
from talaria.core.errors import StoreDamaged, TalariaError
from talaria.waiting import in_thread

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
                    yield failed(Item("conversations", name, "left"), problem)


async def move(file: Path, receiver: Receiver, progress: Progress) -> list[Item]:
    """What came of it; a file that cannot be read is an item, too, behind what was taken until then."""
    tally = Tally()
    try:
        await _move(file, receiver, tally, progress)
    except TalariaError as fault:
        return [*tally.items(), failed(Item("conversations", file.name, "left"), fault)]
    return list(tally.items())


async def _move(file: Path, receiver: Receiver, tally: Tally, progress: Progress) -> None:
    with open_state(file) as state:
        total = await in_thread(lambda: state.count)
        rows = state.sessions()
        while (row := await in_thread(lambda: next(rows, None))) is not None:
            tally.fates[await _moved(row, state, receiver, tally)] += 1
            progress(tally.fates.total(), total)


async def _moved(row: HermesSession, state: StateFile, receiver: Receiver, tally: Tally) -> Fate:
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
