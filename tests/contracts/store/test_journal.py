from collections.abc import Sequence

import pytest

from talaria.core.entries import Entry, MessageAdded, Noted, RouteChanged, TurnEnded, TurnStarted
from talaria.core.errors import Fenced
from talaria.core.ids import CallId, Epoch, OwnerId, SessionId, TurnId
from talaria.core.messages import Assistant, Image, Text, Thinking, ToolCall, ToolResult, Usage, User, user
from talaria.store.base import (
    BrokenRuleError,
    CallEnded,
    CallIntended,
    CallRow,
    CallStarted,
    Held,
    NewSession,
    Store,
    Write,
)
from talaria.store.chat_ports import Inbound, InboxDone, InboxTaken, Outgoing
from talaria.testing.manual_clock import ManualClock

TURN = TurnId("turn-1")
OTHER = SessionId("session-2")
STARTED = TurnStarted(TURN, "terminal")
ENDED = TurnEnded(TURN, "completed")


def inbound(message_id: str) -> Inbound:
    return Inbound("telegram", "bot", "42", message_id, SessionId("session-1"), f"body of {message_id}")


def call(id: str) -> ToolCall:
    return ToolCall(CallId(id), "terminal", '{"command": "ls"}')


def result(id: str) -> ToolResult:
    return ToolResult(CallId(id), "view_image", "a dot", images=(Image("image/png", "aGk="),))


async def entries(store: Store, session: SessionId) -> list[Entry]:
    return [recorded.entry for recorded in await store.journal.entries(session)]


async def states(store: Store, session: SessionId) -> list[tuple[str, str]]:
    return [(row.call.id, row.state) for row in await store.journal.calls(session, TURN)]


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
    await store.inbox.accept([inbound("1")])
    (mail,) = await store.inbox.list_pending(session)
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


async def test_release_says_no_while_mail_waits_and_the_session_stays_ours(
    store: Store, session: SessionId, epoch: Epoch
) -> None:
    await store.inbox.accept([inbound("1")])

    assert await store.journal.release(session, epoch) is False

    (mail,) = await store.inbox.list_pending(session)
    await store.journal.record(session, epoch, [InboxTaken(TURN, (mail.id,)), InboxDone((mail.id,))])
    assert await store.journal.release(session, epoch) is True


async def test_session_may_be_given_up_although_mail_waits(
    store: Store, session: SessionId, epoch: Epoch, owner: OwnerId
) -> None:
    await store.inbox.accept([inbound("1")])

    assert await store.journal.release(session, epoch, leaves_mail=True) is True

    assert [mail.message_id for mail in await store.inbox.list_pending(session)] == ["1"]
    assert await store.journal.seize(session, owner) == epoch + 1


async def test_released_session_takes_no_more_writes(store: Store, session: SessionId, epoch: Epoch) -> None:
    await store.journal.release(session, epoch)

    with pytest.raises(Fenced):
        await store.journal.record(session, epoch, [Noted("late")])
    for leaves_mail in (False, True):
        with pytest.raises(Fenced):
            await store.journal.release(session, epoch, leaves_mail=leaves_mail)


async def test_turn_without_end_is_interrupted_once_its_owner_is_gone(
    store: Store, session: SessionId, epoch: Epoch, owner: OwnerId
) -> None:
    await store.journal.record(session, epoch, [STARTED])
    assert await store.journal.list_interrupted() == []

    await store.owners.leave(owner)
    assert await store.journal.list_interrupted() == [session]


async def test_released_session_with_an_open_turn_is_interrupted(
    store: Store, session: SessionId, epoch: Epoch
) -> None:
    await store.journal.record(session, epoch, [STARTED])
    await store.journal.release(session, epoch)

    assert await store.journal.list_interrupted() == [session]


async def test_ended_turn_is_not_interrupted(store: Store, session: SessionId, epoch: Epoch, owner: OwnerId) -> None:
    await store.journal.record(session, epoch, [STARTED, ENDED])
    await store.owners.leave(owner)

    assert await store.journal.list_interrupted() == []


async def test_interrupted_sessions_are_newest_first(store: Store, clock: ManualClock) -> None:
    owner = await store.owners.join("test")
    for name in ("a", "c", "b"):
        clock.advance(1)
        await store.sessions.create(NewSession(SessionId(name), "test"))
        epoch = await store.journal.seize(SessionId(name), owner)
        assert not isinstance(epoch, Held)
        await store.journal.record(SessionId(name), epoch, [STARTED])
    await store.owners.leave(owner)

    assert await store.journal.list_interrupted() == ["b", "c", "a"]


async def test_unknown_session_has_an_empty_journal(store: Store) -> None:
    nobody = SessionId("nobody")

    assert await store.journal.entries(nobody) == []
    assert await store.journal.calls(nobody, TURN) == []
    with pytest.raises(Fenced):
        await store.journal.record(nobody, Epoch(1), [Noted("x")])


async def test_the_end_of_a_journal_can_be_read_alone(store: Store, session: SessionId, epoch: Epoch) -> None:
    await store.journal.record(session, epoch, [Noted(str(number)) for number in range(10)])
    assert [(one.seq, one.entry) for one in await store.journal.latest(session, 3)] == [
        (8, Noted("7")),
        (9, Noted("8")),
        (10, Noted("9")),
    ]
    assert await store.journal.latest(session, 100) == await store.journal.entries(session)
    assert await store.journal.latest(OTHER, 3) == []


async def test_a_journal_can_be_read_backwards_page_by_page(store: Store, session: SessionId, epoch: Epoch) -> None:
    await store.journal.record(session, epoch, [Noted(str(number)) for number in range(10)])

    async def seqs(limit: int, before: int | None) -> list[int]:
        return [one.seq for one in await store.journal.latest(session, limit, before)]

    assert await seqs(4, None) == [7, 8, 9, 10]
    assert await seqs(4, 7) == [3, 4, 5, 6]
    assert await seqs(4, 3) == [1, 2]
    assert await seqs(4, 1) == await seqs(4, 0) == []
    assert await seqs(2, 1_000) == [9, 10]
    assert await store.journal.latest(OTHER, 3, 3) == []
