from collections.abc import Sequence

import pytest

from talaria.model.entries import Entry, MessageAdded, Noted, RouteChanged, TurnEnded, TurnStarted
from talaria.model.errors import Fenced
from talaria.model.ids import CallId, Epoch, InboxId, OwnerId, SessionId, TurnId
from talaria.model.messages import Assistant, Image, Text, Thinking, ToolCall, ToolResult, User, user
from talaria.model.usage import Usage
from talaria.store.base import (
    BrokenRuleError,
    CallEnded,
    CallIntended,
    CallRow,
    CallStarted,
    Cursor,
    Held,
    Inbound,
    InboxDone,
    InboxTaken,
    NewSession,
    Outgoing,
    Store,
    Write,
)
from talaria.testing.clock import ManualClock

TURN = TurnId("turn-1")
OTHER = SessionId("session-2")
STARTED = TurnStarted(TURN, "terminal")
ENDED = TurnEnded(TURN, "completed")


def inbound(message_id: str, session: str = "session-1", *, chat: str = "42") -> Inbound:
    return Inbound("telegram", "bot", chat, message_id, SessionId(session), f"body of {message_id}")


def call(id: str) -> ToolCall:
    return ToolCall(CallId(id), "terminal", '{"command": "ls"}')


def result(id: str) -> ToolResult:
    return ToolResult(CallId(id), "view_image", "a dot", images=(Image("image/png", "aGk="),))


async def entries(store: Store, session: SessionId) -> list[Entry]:
    return [recorded.entry for recorded in await store.journal.entries(session)]


async def states(store: Store, session: SessionId) -> list[tuple[str, str]]:
    return [(row.call.id, row.state) for row in await store.journal.calls(session, TURN)]


async def bodies(store: Store, session: SessionId) -> list[str]:
    return [mail.message_id for mail in await store.journal.pending(session)]


async def test_entries_come_back_in_order_with_their_time(
    store: Store, session: SessionId, epoch: Epoch, clock: ManualClock
) -> None:
    await store.journal.record(session, epoch, [STARTED, MessageAdded(user("hi"))])
    clock.advance(1.5)
    await store.journal.record(session, epoch, [ENDED])

    found = await store.journal.entries(session)

    assert [(one.seq, one.at, one.entry) for one in found] == [
        (1, clock.now() - 1.5, STARTED),
        (2, clock.now() - 1.5, MessageAdded(user("hi"))),
        (3, clock.now(), ENDED),
    ]


async def test_entries_after_a_place_are_only_the_later_ones(store: Store, session: SessionId, epoch: Epoch) -> None:
    await store.journal.record(session, epoch, [Noted("a"), Noted("b"), Noted("c")])

    assert [one.entry for one in await store.journal.entries(session, after=2)] == [Noted("c")]


async def test_every_kind_of_message_survives_unchanged(store: Store, session: SessionId, epoch: Epoch) -> None:
    written: Sequence[Entry] = [
        MessageAdded(User((Text("Grüße 漢字 \u202e\0 'quoted'"), Image("image/png", "aGk=")), "steering")),
        MessageAdded(Assistant((Thinking("hm", "sealed"), Text("so"), call("c1")), "calls", Usage(1, 2), "origin")),
        MessageAdded(ToolResult(CallId("c1"), "terminal", "no", is_error=True, disposition="unknown")),
        MessageAdded(ToolResult(CallId("c2"), "view_image", "a dot", images=(Image("image/png", "aGk="),))),
        TurnStarted(TURN, "platform"),
        TurnEnded(TURN, "failed", Usage(3, 4), "why"),
        RouteChanged(TURN, "openai:large", "openai:small", "overloaded"),
        Noted("a note"),
    ]

    await store.journal.record(session, epoch, written)

    assert await entries(store, session) == written


async def test_nothing_of_a_record_is_applied_when_one_write_breaks_a_rule(
    store: Store, session: SessionId, epoch: Epoch
) -> None:
    await store.journal.accept([inbound("1")])
    (mail,) = await store.journal.pending(session)
    before = await store.sessions.get(session)

    with pytest.raises(BrokenRuleError):
        await store.journal.record(
            session,
            epoch,
            [
                STARTED,
                MessageAdded(user("hi")),
                CallIntended(TURN, call("c1")),
                InboxTaken(TURN, (mail.id,)),
                Outgoing("42", "hello", "key", 9e9),
                CallStarted(CallId("unknown")),
            ],
        )

    assert await entries(store, session) == []
    assert await states(store, session) == []
    assert await store.outbox.rows(session) == []
    assert await store.sessions.get(session) == before
    await store.journal.record(session, epoch, [STARTED, InboxTaken(TURN, (mail.id,))])


async def test_places_stay_gapless_after_a_refused_record(store: Store, session: SessionId, epoch: Epoch) -> None:
    await store.journal.record(session, epoch, [Noted("a")])
    with pytest.raises(BrokenRuleError):
        await store.journal.record(session, epoch, [Noted("lost"), ENDED])
    await store.journal.record(session, epoch, [Noted("b")])

    assert [(one.seq, one.entry) for one in await store.journal.entries(session)] == [(1, Noted("a")), (2, Noted("b"))]


async def test_call_goes_from_intent_over_started_to_done(
    store: Store, session: SessionId, epoch: Epoch, clock: ManualClock
) -> None:
    await store.journal.record(
        session, epoch, [STARTED, CallIntended(TURN, call("c1")), CallIntended(TURN, call("c2"))]
    )
    created = clock.now()
    assert await states(store, session) == [("c1", "intent"), ("c2", "intent")]

    clock.advance(1)
    await store.journal.record(session, epoch, [CallStarted(CallId("c2"))])
    assert await states(store, session) == [("c1", "intent"), ("c2", "started")]

    await store.journal.record(session, epoch, [CallEnded(result("c2"))])
    assert await store.journal.calls(session, TURN) == [
        CallRow(TURN, call("c1"), "intent", created, None),
        CallRow(TURN, call("c2"), "done", created, result("c2")),
    ]


async def test_call_that_never_started_may_end(store: Store, session: SessionId, epoch: Epoch) -> None:
    await store.journal.record(session, epoch, [CallIntended(TURN, call("c1")), CallEnded(result("c1"))])

    assert await states(store, session) == [("c1", "done")]


@pytest.mark.parametrize(
    "steps",
    [
        [CallStarted(CallId("c1"))],
        [CallEnded(result("c1"))],
        [CallIntended(TURN, call("c1")), CallIntended(TURN, call("c1"))],
        [CallIntended(TURN, call("c1")), CallStarted(CallId("c1")), CallStarted(CallId("c1"))],
        [CallIntended(TURN, call("c1")), CallEnded(result("c1")), CallStarted(CallId("c1"))],
        [CallIntended(TURN, call("c1")), CallEnded(result("c1")), CallEnded(result("c1"))],
    ],
    ids=["start unknown", "end unknown", "intend twice", "start twice", "start after end", "end twice"],
)
async def test_call_refuses_every_other_step(
    store: Store, session: SessionId, epoch: Epoch, steps: Sequence[Write]
) -> None:
    for step in steps[:-1]:
        await store.journal.record(session, epoch, [step])

    with pytest.raises(BrokenRuleError):
        await store.journal.record(session, epoch, [steps[-1]])


async def test_calls_of_another_turn_or_session_are_not_listed(
    store: Store, session: SessionId, epoch: Epoch, owner: OwnerId
) -> None:
    await store.sessions.create(NewSession(OTHER, "test"))
    other = await store.journal.seize(OTHER, owner)
    assert not isinstance(other, Held)
    await store.journal.record(session, epoch, [CallIntended(TURN, call("c1"))])
    await store.journal.record(session, epoch, [CallIntended(TurnId("turn-2"), call("c2"))])
    await store.journal.record(OTHER, other, [CallIntended(TURN, call("c1"))])

    assert await states(store, session) == [("c1", "intent")]


async def test_second_turn_cannot_start_while_one_is_open(store: Store, session: SessionId, epoch: Epoch) -> None:
    await store.journal.record(session, epoch, [STARTED])

    with pytest.raises(BrokenRuleError):
        await store.journal.record(session, epoch, [TurnStarted(TurnId("turn-2"), "terminal")])
    with pytest.raises(BrokenRuleError):
        await store.journal.record(session, epoch, [TurnEnded(TurnId("turn-2"), "completed")])

    await store.journal.record(session, epoch, [ENDED, TurnStarted(TurnId("turn-2"), "terminal")])
    found = await store.sessions.get(session)
    assert found is not None
    assert found.open_turn == "turn-2"


async def test_turn_that_is_not_open_cannot_end(store: Store, session: SessionId, epoch: Epoch) -> None:
    with pytest.raises(BrokenRuleError):
        await store.journal.record(session, epoch, [ENDED])


async def test_message_is_accepted_once(store: Store) -> None:
    assert list(await store.journal.accept([inbound("1"), inbound("2"), inbound("1")])) == [True, True, False]
    assert list(await store.journal.accept([inbound("2"), inbound("3"), inbound("2", chat="7")])) == [False, True, True]


async def test_message_stays_known_after_it_is_done(store: Store, session: SessionId, epoch: Epoch) -> None:
    await store.journal.accept([inbound("1")])
    (mail,) = await store.journal.pending(session)
    await store.journal.record(session, epoch, [InboxTaken(TURN, (mail.id,)), InboxDone((mail.id,))])

    assert list(await store.journal.accept([inbound("1")])) == [False]


async def test_cursor_moves_with_the_messages_it_stands_behind(store: Store) -> None:
    assert await store.journal.cursor("telegram", "bot") is None

    await store.journal.accept([inbound("1")], Cursor("telegram", "bot", "10"))
    assert await store.journal.cursor("telegram", "bot") == "10"

    await store.journal.accept([], Cursor("telegram", "bot", "11"))
    assert await store.journal.cursor("telegram", "bot") == "11"
    assert await store.journal.cursor("telegram", "another bot") is None


async def test_pending_mail_is_oldest_first_and_only_the_sessions_own(store: Store, session: SessionId) -> None:
    await store.journal.accept([inbound("2"), inbound("1"), inbound("3", "another")])

    assert await bodies(store, session) == ["2", "1"]
    assert await bodies(store, SessionId("another")) == ["3"]


async def test_mail_may_arrive_before_its_session_exists(store: Store) -> None:
    await store.journal.accept([inbound("1", "later")])
    await store.sessions.create(NewSession(SessionId("later"), "telegram"))

    assert await bodies(store, SessionId("later")) == ["1"]


async def test_mail_is_pending_until_done(store: Store, session: SessionId, epoch: Epoch) -> None:
    await store.journal.accept([inbound("1"), inbound("2")])
    first, second = await store.journal.pending(session)

    await store.journal.record(session, epoch, [STARTED, InboxTaken(TURN, (first.id, second.id))])
    assert await bodies(store, session) == ["1", "2"]

    await store.journal.record(session, epoch, [ENDED, InboxDone((first.id,))])
    assert await bodies(store, session) == ["2"]


async def test_mail_refuses_to_be_taken_twice_done_untaken_or_by_another_session(
    store: Store, session: SessionId, epoch: Epoch
) -> None:
    await store.journal.accept([inbound("1"), inbound("2", "another")])
    (mine,) = await store.journal.pending(session)
    (foreign,) = await store.journal.pending(SessionId("another"))

    for writes in ([InboxDone((mine.id,))], [InboxTaken(TURN, (foreign.id,))], [InboxTaken(TURN, (InboxId(999),))]):
        with pytest.raises(BrokenRuleError):
            await store.journal.record(session, epoch, writes)
    await store.journal.record(session, epoch, [InboxTaken(TURN, (mine.id,))])
    with pytest.raises(BrokenRuleError):
        await store.journal.record(session, epoch, [InboxTaken(TURN, (mine.id,))])


async def test_release_says_no_while_mail_waits_and_the_session_stays_ours(
    store: Store, session: SessionId, epoch: Epoch
) -> None:
    await store.journal.accept([inbound("1")])

    assert await store.journal.release(session, epoch) is False

    (mail,) = await store.journal.pending(session)
    await store.journal.record(session, epoch, [InboxTaken(TURN, (mail.id,)), InboxDone((mail.id,))])
    assert await store.journal.release(session, epoch) is True


async def test_released_session_takes_no_more_writes(store: Store, session: SessionId, epoch: Epoch) -> None:
    await store.journal.release(session, epoch)

    with pytest.raises(Fenced):
        await store.journal.record(session, epoch, [Noted("late")])
    with pytest.raises(Fenced):
        await store.journal.release(session, epoch)


async def test_turn_without_end_is_interrupted_once_its_owner_is_gone(
    store: Store, session: SessionId, epoch: Epoch, owner: OwnerId
) -> None:
    await store.journal.record(session, epoch, [STARTED])
    assert await store.journal.interrupted() == []

    await store.owners.leave(owner)
    assert await store.journal.interrupted() == [session]


async def test_released_session_with_an_open_turn_is_interrupted(
    store: Store, session: SessionId, epoch: Epoch
) -> None:
    await store.journal.record(session, epoch, [STARTED])
    await store.journal.release(session, epoch)

    assert await store.journal.interrupted() == [session]


async def test_ended_turn_is_not_interrupted(store: Store, session: SessionId, epoch: Epoch, owner: OwnerId) -> None:
    await store.journal.record(session, epoch, [STARTED, ENDED])
    await store.owners.leave(owner)

    assert await store.journal.interrupted() == []


async def test_interrupted_sessions_are_newest_first(store: Store, clock: ManualClock) -> None:
    owner = await store.owners.join("test")
    for name in ("a", "c", "b"):
        clock.advance(1)
        await store.sessions.create(NewSession(SessionId(name), "test"))
        epoch = await store.journal.seize(SessionId(name), owner)
        assert not isinstance(epoch, Held)
        await store.journal.record(SessionId(name), epoch, [STARTED])
    await store.owners.leave(owner)

    assert await store.journal.interrupted() == ["b", "c", "a"]


async def test_unknown_session_has_an_empty_journal(store: Store) -> None:
    nobody = SessionId("nobody")

    assert await store.journal.entries(nobody) == []
    assert await store.journal.calls(nobody, TURN) == []
    assert await store.journal.pending(nobody) == []
    with pytest.raises(Fenced):
        await store.journal.record(nobody, Epoch(1), [Noted("x")])
