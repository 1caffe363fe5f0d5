from collections.abc import Sequence

import pytest

from talaria.core.entries import TurnEnded, TurnStarted
from talaria.core.ids import Epoch, InboxId, SessionId, TurnId
from talaria.store.base import BrokenRuleError, NewSession, Store
from talaria.store.chat_ports import Cursor, Inbound, InboxDone, InboxTaken, Outgoing
from talaria.testing.manual_clock import ManualClock

TURN = TurnId("turn-1")
HERE = SessionId("session-1")
OTHER = SessionId("session-2")
CHAT = "agent:main:telegram:dm:42"


def inbound(message_id: str, session: str = HERE, *, chat: str = "42", key: str = "") -> Inbound:
    return Inbound("telegram", "bot", chat, message_id, SessionId(session), f"body of {message_id}", key)


async def pending(store: Store, session: SessionId) -> list[str]:
    return [mail.message_id for mail in await store.inbox.list_pending(session)]


async def accepted(store: Store, inbounds: Sequence[Inbound]) -> list[SessionId | None]:
    """The session of each that was new."""
    return [row.session if row else None for row in await store.inbox.accept(inbounds)]


async def test_message_is_accepted_once(store: Store) -> None:
    assert await accepted(store, [inbound("1"), inbound("2"), inbound("1")]) == [HERE, HERE, None]
    assert await accepted(store, [inbound("2"), inbound("3"), inbound("2", chat="7")]) == [None, HERE, HERE]


async def test_message_stays_known_after_it_is_done(store: Store, session: SessionId, epoch: Epoch) -> None:
    await store.inbox.accept([inbound("1")])
    (mail,) = await store.inbox.list_pending(session)
    await store.journal.record(session, epoch, [InboxTaken(TURN, (mail.id,)), InboxDone((mail.id,))])

    assert await accepted(store, [inbound("1")]) == [None]


async def test_cursor_moves_with_the_messages_it_stands_behind(store: Store) -> None:
    assert await store.inbox.cursor("telegram", "bot") is None

    await store.inbox.accept([inbound("1")], Cursor("telegram", "bot", "10"))
    assert await store.inbox.cursor("telegram", "bot") == "10"

    await store.inbox.accept([], Cursor("telegram", "bot", "11"))
    assert await store.inbox.cursor("telegram", "bot") == "11"
    assert await store.inbox.cursor("telegram", "another bot") is None


async def test_first_message_of_a_chat_binds_it_and_the_others_follow(store: Store) -> None:
    batch = [inbound("1", "first", key=CHAT), inbound("2", "second", key=CHAT), inbound("3", "third")]

    assert await accepted(store, batch) == ["first", "first", "third"]
    assert await accepted(store, [inbound("4", "fourth", key=CHAT)]) == ["first"]

    chat = await store.chats.get(CHAT)
    assert chat is not None
    assert (chat.session, chat.address, chat.busy_mode) == ("first", "", None)
    assert await pending(store, SessionId("first")) == ["1", "2", "4"]


async def test_message_of_a_bound_chat_goes_where_the_chat_is(store: Store) -> None:
    await store.chats.bind(CHAT, OTHER, "telegram:42")

    assert await accepted(store, [inbound("1", key=CHAT), inbound("2")]) == [OTHER, HERE]

    chat = await store.chats.get(CHAT)
    assert chat is not None
    assert chat.address == "telegram:42"


async def test_message_that_was_known_binds_nothing(store: Store) -> None:
    await store.inbox.accept([inbound("1")])

    assert await accepted(store, [inbound("1", OTHER, key=CHAT)]) == [None]
    assert await store.chats.get(CHAT) is None


async def test_mail_is_kept_as_it_was_given(store: Store) -> None:
    given = Inbound("telegram", "bot", "42", "1", HERE, "body", CHAT, InboxId(99), "done", TURN)

    await store.inbox.accept([given])

    (mail,) = await store.inbox.list_pending(HERE)
    assert mail == Inbound("telegram", "bot", "42", "1", HERE, "body", CHAT, mail.id, "new", None)


async def test_pending_mail_is_oldest_first_and_only_the_sessions_own(store: Store, session: SessionId) -> None:
    await store.inbox.accept([inbound("2"), inbound("1"), inbound("3", OTHER)])

    assert await pending(store, session) == ["2", "1"]
    assert await pending(store, OTHER) == ["3"]
    assert await pending(store, SessionId("nobody")) == []


async def test_mail_may_arrive_before_its_session_exists(store: Store) -> None:
    await store.inbox.accept([inbound("1", "later")])
    await store.sessions.create(NewSession(SessionId("later"), "telegram"))

    assert await pending(store, SessionId("later")) == ["1"]


async def test_mail_is_pending_until_done(store: Store, session: SessionId, epoch: Epoch) -> None:
    await store.inbox.accept([inbound("1"), inbound("2")])
    first, second = await store.inbox.list_pending(session)

    await store.journal.record(session, epoch, [TurnStarted(TURN, "platform"), InboxTaken(TURN, (first.id, second.id))])
    assert [(mail.state, mail.turn) for mail in await store.inbox.list_pending(session)] == [("taken", TURN)] * 2

    await store.journal.record(session, epoch, [TurnEnded(TURN, "completed"), InboxDone((first.id,))])
    assert await pending(store, session) == ["2"]


async def test_mail_refuses_to_be_taken_twice_done_untaken_or_by_another_session(
    store: Store, session: SessionId, epoch: Epoch
) -> None:
    await store.inbox.accept([inbound("1"), inbound("2", OTHER)])
    (mine,) = await store.inbox.list_pending(session)
    (foreign,) = await store.inbox.list_pending(OTHER)

    for writes in ([InboxDone((mine.id,))], [InboxTaken(TURN, (foreign.id,))], [InboxTaken(TURN, (InboxId(999),))]):
        with pytest.raises(BrokenRuleError):
            await store.journal.record(session, epoch, writes)
    await store.journal.record(session, epoch, [InboxTaken(TURN, (mine.id,))])
    with pytest.raises(BrokenRuleError):
        await store.journal.record(session, epoch, [InboxTaken(TURN, (mine.id,))])


async def test_sessions_wait_in_the_order_of_their_oldest_mail(store: Store, session: SessionId, epoch: Epoch) -> None:
    await store.inbox.accept([inbound("1"), inbound("2", OTHER), inbound("3", "a third"), inbound("4")])
    assert await store.inbox.list_sessions() == [session, OTHER, "a third"]

    first, _ = await store.inbox.list_pending(session)
    await store.journal.record(session, epoch, [InboxTaken(TURN, (first.id,))])
    assert await store.inbox.list_sessions() == [session, OTHER, "a third"]

    await store.journal.record(session, epoch, [InboxDone((first.id,))])
    assert await store.inbox.list_sessions() == [OTHER, "a third", session]


async def test_nobody_waits_without_mail(store: Store, session: SessionId) -> None:
    await store.inbox.accept([inbound("1")])
    (mail,) = await store.inbox.list_pending(session)
    await store.inbox.take(mail.id)
    await store.inbox.finish(session, [mail.id])

    assert await store.inbox.list_sessions() == []


async def test_mail_is_taken_beside_a_turn_exactly_once(store: Store, session: SessionId, epoch: Epoch) -> None:
    await store.inbox.accept([inbound("1")])
    (mail,) = await store.inbox.list_pending(session)

    assert await store.inbox.take(mail.id) == HERE
    assert await store.inbox.take(mail.id) is None
    assert await store.inbox.take(InboxId(999)) is None
    assert [(one.state, one.turn) for one in await store.inbox.list_pending(session)] == [("taken", None)]

    await store.journal.record(session, epoch, [InboxTaken(TURN, (mail.id,))])
    assert [(one.state, one.turn) for one in await store.inbox.list_pending(session)] == [("taken", TURN)]
    with pytest.raises(BrokenRuleError):
        await store.journal.record(session, epoch, [InboxTaken(TurnId("another"), (mail.id,))])


async def test_mail_that_a_turn_has_is_not_taken_beside_it(store: Store, session: SessionId, epoch: Epoch) -> None:
    await store.inbox.accept([inbound("1")])
    (mail,) = await store.inbox.list_pending(session)
    await store.journal.record(session, epoch, [InboxTaken(TURN, (mail.id,))])

    assert await store.inbox.take(mail.id) is None
    assert (await store.inbox.list_pending(session))[0].turn == TURN


async def test_mail_is_finished_together_with_its_replies(store: Store, session: SessionId) -> None:
    await store.inbox.accept([inbound("1"), inbound("2")])
    first, second = await store.inbox.list_pending(session)
    await store.inbox.take(first.id)
    replies = [Outgoing("telegram:42", text, text, 9e9) for text in ("one", "two")]

    with pytest.raises(BrokenRuleError):
        await store.inbox.finish(session, [first.id, second.id], replies)
    with pytest.raises(BrokenRuleError):
        await store.inbox.finish(OTHER, [first.id], replies)
    assert (await pending(store, session), await store.outbox.list_targets()) == (["1", "2"], [])

    await store.inbox.finish(session, [first.id], replies)
    assert await pending(store, session) == ["2"]
    assert [(row.body, row.state) for row in await store.outbox.rows(session)] == [
        ("one", "pending"),
        ("two", "pending"),
    ]


async def test_prune_forgets_what_was_done_before(store: Store, session: SessionId, clock: ManualClock) -> None:
    await store.inbox.accept([inbound("1"), inbound("2")])
    clock.advance(10)
    await store.inbox.accept([inbound("3")])
    for mail in await store.inbox.list_pending(session):
        await store.inbox.take(mail.id)
        if mail.message_id != "2":
            await store.inbox.finish(session, [mail.id])

    assert await store.inbox.prune(clock.now() - 10) == 0
    assert await store.inbox.prune(clock.now()) == 1

    assert await accepted(store, [inbound("1"), inbound("2"), inbound("3")]) == [session, None, None]


async def test_mail_of_one_chat_is_listed_newest_first_whatever_its_state(store: Store, session: SessionId) -> None:
    mail = await store.inbox.accept([inbound(number) for number in "4132"])
    await store.inbox.accept([inbound("5", chat="7"), Inbound("slack", "bot", "42", "6", HERE, "")])
    await store.inbox.accept([Inbound("telegram", "other", "42", "7", HERE, "")])
    ids = [row.id for row in mail if row]
    await store.inbox.take(ids[0])
    await store.inbox.finish(session, ids[:1])
    await store.inbox.take(ids[1])

    listed = await store.inbox.list_from("telegram", "bot", "42")
    assert [(row.message_id, row.state) for row in listed] == [
        ("2", "new"),
        ("3", "new"),
        ("1", "taken"),
        ("4", "done"),
    ]
    assert listed[0] == mail[3]
    assert [row.message_id for row in await store.inbox.list_from("telegram", "bot", "42", 2)] == ["2", "3"]
    assert await store.inbox.list_from("telegram", "bot", "nobody") == []


async def test_mail_of_a_chat_that_was_pruned_is_not_listed(
    store: Store, session: SessionId, clock: ManualClock
) -> None:
    (mail,) = await store.inbox.accept([inbound("1")])
    assert mail is not None
    await store.inbox.take(mail.id)
    await store.inbox.finish(session, [mail.id])
    await store.inbox.prune(clock.now() + 1)

    assert await store.inbox.list_from("telegram", "bot", "42") == []
