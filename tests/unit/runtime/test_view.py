"""What is read of a conversation that somebody comes back to."""

from collections.abc import Sequence

import pytest
from tests.port_proxies import JournalProxy

from talaria.core.entries import Entry, MessageAdded, Recorded, TurnEnded, TurnStarted, Undone
from talaria.core.ids import SessionId, TurnId
from talaria.core.messages import Assistant, Text, user
from talaria.runtime.transcript import MOST_RECALLED_ENTRIES, read_latest_turns
from talaria.store.base import NewSession
from talaria.store.memory.memory_store import MemoryStore
from talaria.testing.manual_clock import ManualClock

SESSION = SessionId("s")


class Counting(JournalProxy):
    """How many entries were read."""

    read = 0

    async def entries(self, session: SessionId, after: int = 0) -> Sequence[Recorded]:
        found = await super().entries(session, after)
        self.read += len(found)
        return found

    async def latest(self, session: SessionId, limit: int, before: int | None = None) -> Sequence[Recorded]:
        found = await super().latest(session, limit, before)
        self.read += len(found)
        return found


def turn(number: int) -> list[Entry]:
    id = TurnId(str(number))
    asked, answered = MessageAdded(user(f"q{number}")), MessageAdded(Assistant((Text(f"a{number}"),)))
    return [TurnStarted(id, "terminal"), asked, answered, TurnEnded(id, "completed")]


async def journal_of(*entries: Entry) -> Counting:
    store = MemoryStore(ManualClock())
    kept = [Recorded(seq, 1.0, entry) for seq, entry in enumerate(entries, 1)]
    await store.sessions.adopt(NewSession(SESSION, "terminal"), 1.0, kept)
    return Counting(store.journal)


@pytest.mark.parametrize("turns", [2, 10_000])
async def test_reading_does_not_grow_with_the_conversation(turns: int) -> None:
    journal = await journal_of(*(entry for number in range(turns) for entry in turn(number)))
    found = await read_latest_turns(journal, SESSION)
    assert [one.entry for one in found[-4:]] == turn(turns - 1)
    assert isinstance(found[0].entry, TurnStarted)
    assert len(found) <= journal.read <= MOST_RECALLED_ENTRIES


async def test_a_turn_that_was_taken_back_is_not_read() -> None:
    journal = await journal_of(*turn(1), *turn(2), Undone(TurnId("2")))
    assert [one.entry for one in await read_latest_turns(journal, SESSION)] == turn(1)


async def test_the_end_of_a_turn_that_is_longer_is_read_as_far_as_it_goes() -> None:
    started, asked, answered, ended = turn(1)
    journal = await journal_of(started, asked, *[answered] * 1_000, ended)
    found = await read_latest_turns(journal, SESSION)
    assert len(found) == MOST_RECALLED_ENTRIES
    assert found[-1].entry == ended
