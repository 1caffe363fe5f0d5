import asyncio
from pathlib import Path

import pytest

from talaria.core.entries import MessageAdded, Noted, TurnEnded, TurnStarted
from talaria.core.errors import Fenced, UnknownSession
from talaria.core.ids import Epoch, SessionId, TurnId
from talaria.core.messages import NO_USAGE, user
from talaria.store.base import BrokenRuleError, NewSession, Store
from talaria.store.chat_ports import Outgoing
from talaria.store.signal_port import NewSignal, Signal, SignalId, SignalKind, SignalObeyed
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.manual_clock import ManualClock

HERE, OTHER = SessionId("session-1"), SessionId("session-2")
TURN = TurnId("turn-1")


def signal(key: str = "key", session: SessionId = HERE, kind: SignalKind = "stop", text: str = "") -> NewSignal:
    return NewSignal(key, session, TURN, kind, "telegram:42", "telegram", text)


@pytest.fixture
async def other(store: Store) -> SessionId:
    return (await store.sessions.create(NewSession(OTHER, "test"))).id


async def seen(store: Store, key: str = "key") -> Signal:
    found = await store.signals.find(key)
    assert found is not None
    return found


async def waiting(store: Store, *sessions: SessionId) -> list[str]:
    return [one.key for one in await store.signals.list_new(sessions)]


async def test_signal_is_kept_as_it_was_sent(store: Store, session: SessionId, clock: ManualClock) -> None:
    new = NewSignal("key", session, TURN, "answer", "local", "terminal", "not now", "question-1", "no")

    sent = await store.signals.send(new)

    assert sent == Signal(
        key="key",
        session=session,
        turn=TURN,
        kind="answer",
        by="local",
        surface="terminal",
        text="not now",
        question="question-1",
        answer="no",
        id=sent.id,
        state="new",
        created_at=clock.now(),
        outcome="",
    )
    assert await store.signals.find("key") == sent
    assert await store.signals.list_new([session]) == [sent]


@pytest.mark.usefixtures("session", "other")
async def test_same_key_again_gives_the_first_signal_as_it_is_now(store: Store, clock: ManualClock) -> None:
    first = await store.signals.send(signal())
    clock.advance(5)
    assert await store.signals.send(signal()) == first
    assert await store.signals.send(signal(session=OTHER, kind="steer", text="faster")) == first

    await store.signals.settle(first.id, "late", "The turn was over.")

    again = await store.signals.send(signal())
    assert (again.id, again.state, again.outcome, again.created_at) == (
        first.id,
        "late",
        "The turn was over.",
        first.created_at,
    )
    assert await waiting(store, HERE, OTHER) == []


@pytest.mark.usefixtures("session")
async def test_same_key_at_once_makes_one_signal(store: Store) -> None:
    sent = await asyncio.gather(*(store.signals.send(signal(text=str(number))) for number in range(20)))

    assert len({one.id for one in sent}) == len({one.text for one in sent}) == 1
    assert await waiting(store, HERE) == ["key"]


async def test_signal_needs_a_session(store: Store) -> None:
    with pytest.raises(UnknownSession):
        await store.signals.send(signal(session=SessionId("nobody")))

    assert await store.signals.find("key") is None


@pytest.mark.usefixtures("session", "other")
async def test_new_signals_are_listed_oldest_first_for_the_given_sessions_only(store: Store) -> None:
    third = (await store.sessions.create(NewSession(SessionId("session-3"), "test"))).id
    for key, session in (("c", OTHER), ("a", HERE), ("x", third), ("b", OTHER), ("d", HERE)):
        await store.signals.send(signal(key, session))

    assert await waiting(store, HERE) == ["a", "d"]
    assert await waiting(store, HERE, OTHER) == ["c", "a", "b", "d"]
    assert await waiting(store, OTHER, HERE, OTHER) == ["c", "a", "b", "d"]
    assert await waiting(store, SessionId("nobody")) == []
    assert await waiting(store) == []

    await store.signals.settle((await seen(store, "a")).id, "obeyed")
    await store.signals.settle((await seen(store, "b")).id, "late")

    assert await waiting(store, HERE, OTHER) == ["c", "d"]


@pytest.mark.usefixtures("session")
async def test_signal_is_settled_once(store: Store) -> None:
    sent = await store.signals.send(signal())

    assert await store.signals.settle(sent.id, "obeyed", "Stopped.") is True
    assert await store.signals.settle(sent.id, "late", "The turn was over.") is False
    assert await store.signals.settle(sent.id, "obeyed") is False

    settled = await seen(store)
    assert (settled.state, settled.outcome) == ("obeyed", "Stopped.")


@pytest.mark.usefixtures("session")
async def test_of_many_who_settle_it_at_once_one_does(store: Store) -> None:
    sent = await store.signals.send(signal())

    done = await asyncio.gather(*(store.signals.settle(sent.id, "obeyed", str(number)) for number in range(20)))

    assert sorted(done) == [False] * 19 + [True]
    assert (await seen(store)).outcome == str(done.index(True))


async def test_unknown_signal_is_neither_settled_nor_found(store: Store) -> None:
    assert await store.signals.settle(SignalId(999), "late") is False
    assert await store.signals.find("key") is None


async def test_record_that_obeys_a_signal_settles_it(store: Store, session: SessionId, epoch: Epoch) -> None:
    sent = await store.signals.send(signal())

    await store.journal.record(session, epoch, [Noted("stopped"), SignalObeyed(sent.id)])

    assert (await seen(store)).state == "obeyed"
    assert await waiting(store, session) == []
    assert await store.signals.settle(sent.id, "late") is False


@pytest.mark.usefixtures("other")
async def test_record_obeys_only_a_new_signal_of_its_session(store: Store, session: SessionId, epoch: Epoch) -> None:
    obeyed, late, foreign, fresh = [
        await store.signals.send(signal(key, place))
        for key, place in (("a", session), ("b", session), ("c", OTHER), ("d", session))
    ]
    await store.journal.record(session, epoch, [SignalObeyed(obeyed.id)])
    await store.signals.settle(late.id, "late", "The turn was over.")

    for id in (obeyed.id, late.id, foreign.id, SignalId(999)):
        beside = [TurnStarted(TURN, "terminal"), Outgoing("42", "x", "o", 9e9), SignalObeyed(fresh.id)]
        with pytest.raises(BrokenRuleError):
            await store.journal.record(session, epoch, [*beside, SignalObeyed(id)])

    assert await store.journal.entries(session) == []
    assert await store.outbox.rows(session) == []
    assert await waiting(store, session, OTHER) == ["c", "d"]
    assert (await seen(store, "b")).outcome == "The turn was over."


async def test_of_two_turns_that_answer_a_queued_line_one_is_written(
    store: Store, session: SessionId, epoch: Epoch
) -> None:
    line = await store.signals.send(signal(kind="queue", text="and then this"))
    assert await waiting(store, session) == ["key"]

    first = [TurnStarted(TurnId("second"), "terminal"), MessageAdded(user(line.text)), SignalObeyed(line.id)]
    await store.journal.record(session, epoch, first)
    ended = TurnEnded(TurnId("second"), "completed", NO_USAGE)
    await store.journal.record(session, epoch, [ended])
    again = [TurnStarted(TurnId("third"), "terminal"), MessageAdded(user(line.text)), SignalObeyed(line.id)]
    with pytest.raises(BrokenRuleError):
        await store.journal.record(session, epoch, again)

    assert [one.entry for one in await store.journal.entries(session)] == [*first[:2], ended]
    assert (await seen(store)).state == "obeyed"
    assert await waiting(store, session) == []


async def test_record_that_breaks_another_rule_settles_nothing(store: Store, session: SessionId, epoch: Epoch) -> None:
    sent = await store.signals.send(signal())
    await store.outbox.add(OTHER, [Outgoing("42", "theirs", "taken", 9e9)])

    with pytest.raises(BrokenRuleError):
        await store.journal.record(session, epoch, [SignalObeyed(sent.id), Outgoing("42", "x", "taken", 9e9)])

    assert await waiting(store, session) == ["key"]


async def test_record_that_is_fenced_settles_nothing(store: Store, session: SessionId, epoch: Epoch) -> None:
    sent = await store.signals.send(signal())

    with pytest.raises(Fenced):
        await store.journal.record(session, Epoch(epoch - 1), [Noted("stopped"), SignalObeyed(sent.id)])

    assert await waiting(store, session) == ["key"]
    assert await store.journal.entries(session) == []


@pytest.mark.usefixtures("session")
async def test_prune_forgets_what_was_settled_and_sent_before(store: Store, clock: ManualClock) -> None:
    for key in ("obeyed", "late", "new"):
        await store.signals.send(signal(key))
    clock.advance(10)
    await store.signals.send(signal("fresh"))
    for key in ("obeyed", "late", "fresh"):
        await store.signals.settle((await seen(store, key)).id, "late" if key == "late" else "obeyed")

    assert await store.signals.prune(clock.now() - 10) == 0
    assert await store.signals.prune(clock.now()) == 2

    assert [key for key in ("obeyed", "late", "new", "fresh") if await store.signals.find(key)] == ["new", "fresh"]


@pytest.mark.usefixtures("session")
async def test_id_of_a_signal_that_was_pruned_is_not_given_again(store: Store, clock: ManualClock) -> None:
    first = await store.signals.send(signal("first"))
    await store.signals.settle(first.id, "obeyed")
    clock.advance(1)
    await store.signals.prune(clock.now())

    assert (await store.signals.send(signal("second"))).id > first.id


@pytest.mark.usefixtures("session", "other")
async def test_deleted_session_takes_its_signals_along(store: Store) -> None:
    mine = await store.signals.send(signal("mine"))
    await store.signals.send(signal("theirs", OTHER))

    await store.sessions.delete(HERE)

    assert await store.signals.find("mine") is None
    assert await store.signals.settle(mine.id, "late") is False
    assert await waiting(store, HERE, OTHER) == ["theirs"]


async def test_fork_has_no_signals(store: Store, session: SessionId) -> None:
    await store.signals.send(signal())

    copy = await store.sessions.fork(session, SessionId("copy"))

    assert await waiting(store, copy.id) == []
    assert await waiting(store, session) == ["key"]


async def test_another_process_sees_a_signal_and_settles_it(tmp_path: Path, clock: ManualClock) -> None:
    home = tmp_path / "shared"
    async with SqliteStore(home, clock) as runner, SqliteStore(home, clock) as sender:
        await runner.sessions.create(NewSession(HERE, "test"))
        owner = await runner.owners.join("test")
        await runner.journal.seize(HERE, owner)
        assert await sender.journal.holder(HERE) == owner
        before = await runner.version()

        sent = await sender.signals.send(signal())

        assert await runner.version() != before
        assert await runner.signals.list_new([HERE]) == [sent]
        before = await sender.version()
        assert await runner.signals.settle(sent.id, "obeyed", "Stopped.")
        assert await sender.version() != before
        assert (await seen(sender)).outcome == "Stopped."


async def test_signal_that_is_known_already_wakes_nobody(tmp_path: Path, clock: ManualClock) -> None:
    home = tmp_path / "shared"
    async with SqliteStore(home, clock) as runner, SqliteStore(home, clock) as sender:
        await runner.sessions.create(NewSession(HERE, "test"))
        await sender.signals.send(signal())
        before = await runner.version()

        await sender.signals.send(signal())

        assert await runner.version() == before
