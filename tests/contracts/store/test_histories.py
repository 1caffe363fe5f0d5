import pytest

from talaria.core.entries import Entry, MessageAdded, Noted, Recorded, TurnEnded, TurnStarted
from talaria.core.errors import Fenced
from talaria.core.ids import CallId, Epoch, OwnerId, SessionId, TurnId
from talaria.core.messages import user
from talaria.store.api_ports import HistoryMatch, HistoryPoint
from talaria.store.base import BrokenRuleError, CallStarted, Held, NewSession, Store
from talaria.testing.manual_clock import ManualClock

HERE = SessionId("session-1")
ANN = "api:ann"


def point(digest: str, person: str = ANN) -> HistoryPoint:
    return HistoryPoint(person, digest)


def turn(name: str) -> list[Entry]:
    return [TurnStarted(TurnId(name), "platform"), MessageAdded(user(name)), TurnEnded(TurnId(name), "completed")]


async def begin(store: Store, *names: str) -> None:
    for name in names:
        await store.sessions.create(NewSession(SessionId(name), "api", person=ANN))


async def found(store: Store, digest: str, person: str = ANN, limit: int = 10) -> list[tuple[str, int, bool]]:
    matches = await store.histories.find(point(digest, person), limit)
    return [(one.session, one.seq, one.is_end) for one in matches]


async def test_history_of_a_record_ends_with_its_last_entry(store: Store, session: SessionId, epoch: Epoch) -> None:
    await store.journal.record(session, epoch, [point("one"), *turn("one")])
    assert await store.histories.find(point("one")) == [HistoryMatch(HERE, 3, is_end=True)]

    await store.journal.record(session, epoch, [*turn("two"), point("two")])
    assert await found(store, "one") == [(HERE, 3, False)]
    assert await found(store, "two") == [(HERE, 6, True)]


async def test_any_entry_after_it_ends_the_end(store: Store, session: SessionId, epoch: Epoch) -> None:
    await store.journal.record(session, epoch, [*turn("one"), point("one")])
    await store.journal.record(session, epoch, [Noted("later")])

    assert await found(store, "one") == [(HERE, 3, False)]


async def test_history_of_a_record_without_entries_is_at_the_last_one(
    store: Store, session: SessionId, epoch: Epoch
) -> None:
    await store.journal.record(session, epoch, turn("one"))
    await store.journal.record(session, epoch, [point("one")])

    assert await found(store, "one") == [(HERE, 3, True)]


async def test_only_this_person_finds_it(store: Store, session: SessionId, epoch: Epoch) -> None:
    await store.journal.record(session, epoch, [*turn("one"), point("one")])

    assert await found(store, "one", "api:bob") == []
    assert await found(store, "two") == []


async def test_one_place_may_have_several_histories_and_each_once(
    store: Store, session: SessionId, epoch: Epoch
) -> None:
    ours = [point("one"), point("other"), point("one"), point("one", "api:bob")]
    await store.journal.record(session, epoch, [*turn("one"), *ours])

    for digest, person in (("one", ANN), ("other", ANN), ("one", "api:bob")):
        assert await found(store, digest, person) == [(HERE, 3, True)]


async def test_refused_record_leaves_no_history(store: Store, session: SessionId, epoch: Epoch) -> None:
    with pytest.raises(Fenced):
        await store.journal.record(session, Epoch(epoch + 1), [*turn("one"), point("one")])
    with pytest.raises(BrokenRuleError):
        await store.journal.record(session, epoch, [*turn("one"), point("one"), CallStarted(CallId("nobody"))])

    assert await found(store, "one") == []


async def test_history_of_an_adopted_conversation_is_at_its_end(store: Store) -> None:
    journal = [Recorded(seq, 1.0, entry) for seq, entry in enumerate(turn("one"), 1)]
    assert await store.sessions.adopt(NewSession(HERE, "api"), 1.0, journal, point("one"))
    assert await store.sessions.adopt(NewSession(SessionId("empty"), "api"), 1.0, [], point("nothing"))

    assert await found(store, "one") == [(HERE, 3, True)]
    assert await found(store, "nothing") == [("empty", 0, True)]


async def test_conversation_that_is_not_adopted_has_no_history(store: Store) -> None:
    await begin(store, HERE)
    assert not await store.sessions.adopt(NewSession(HERE, "api"), 1.0, [], point("one"))
    open_turn = [Recorded(1, 1.0, TurnStarted(TurnId("open"), "platform"))]
    with pytest.raises(BrokenRuleError):
        await store.sessions.adopt(NewSession(SessionId("other"), "api"), 1.0, open_turn, point("one"))

    assert await found(store, "one") == []


async def test_ends_come_first_and_then_the_newest(store: Store, clock: ManualClock, owner: OwnerId) -> None:
    await begin(store, "a", "b", "c", "d")
    for name, goes_on in (("b", False), ("d", True), ("a", False), ("c", True)):
        clock.advance(1)
        await say_once(store, SessionId(name), owner, goes_on=goes_on)

    ordered = [("a", 3, True), ("b", 3, True), ("c", 3, False), ("d", 3, False)]
    assert await found(store, "one") == ordered
    assert await found(store, "one", limit=3) == ordered[:3]


async def say_once(store: Store, session: SessionId, owner: OwnerId, *, goes_on: bool) -> None:
    epoch = await store.journal.seize(session, owner)
    assert not isinstance(epoch, Held)
    await store.journal.record(session, epoch, [*turn("one"), point("one")])
    if goes_on:
        await store.journal.record(session, epoch, turn("two"))
    await store.journal.release(session, epoch)


async def test_fork_has_the_histories_of_what_it_has_copied(store: Store, session: SessionId, epoch: Epoch) -> None:
    for name in ("one", "two"):
        await store.journal.record(session, epoch, [*turn(name), point(name)])
    await store.journal.record(session, epoch, [TurnStarted(TurnId("open"), "platform"), point("open")])

    whole = await store.sessions.fork(session, SessionId("whole"))
    part = await store.sessions.fork(session, SessionId("part"), until=3)

    assert set(await found(store, "one")) == {(HERE, 3, False), (whole.id, 3, False), (part.id, 3, True)}
    assert set(await found(store, "two")) == {(HERE, 6, False), (whole.id, 6, True)}
    assert await found(store, "open") == [(HERE, 7, True)]


async def test_histories_go_with_their_conversation(store: Store) -> None:
    for name in (HERE, SessionId("other")):
        await store.sessions.adopt(NewSession(name, "api"), 1.0, [], point("one"))

    await store.sessions.delete(HERE)
    assert await found(store, "one") == [("other", 0, True)]

    await begin(store, HERE)
    assert await found(store, "one") == [("other", 0, True)]
