import pytest

from talaria.core.entries import Noted
from talaria.core.ids import Epoch, OutboxId, SessionId
from talaria.store.base import BrokenRuleError, Store
from talaria.store.chat_ports import OutboxRow, OutboxState, Outgoing
from talaria.testing.manual_clock import ManualClock

TTL_S = 60.0
CHAT = "telegram:42"
OTHER = SessionId("session-2")
NOBODY = OutboxId(999)


@pytest.fixture
async def rows(store: Store, session: SessionId, epoch: Epoch, clock: ManualClock) -> list[OutboxRow]:
    """Three parts of a reply, written in one record."""
    parts = [Outgoing(CHAT, f"part {n}", f"key {n}", clock.now() + TTL_S) for n in range(3)]
    await store.journal.record(session, epoch, parts)
    return list(await store.outbox.list_due(CHAT))


def said(text: str, key: str = "key 0") -> Outgoing:
    return Outgoing(CHAT, text, key, 9e9)


async def seen(store: Store, key: str = "key 0") -> OutboxRow:
    row = await store.outbox.find(key)
    assert row is not None
    return row


async def bring_to(store: Store, row: OutboxId, state: OutboxState) -> None:
    """From pending."""
    match state:
        case "pending":
            return
        case "started":
            await store.outbox.start(row)
        case "sent":
            await store.outbox.start(row)
            await store.outbox.mark_sent(row, "message 7")
        case "failed":
            await store.outbox.fail(row, "chat is gone")
        case "expired":
            await store.outbox.expire(row)


async def test_rows_are_due_in_the_order_they_were_written(
    store: Store, session: SessionId, rows: list[OutboxRow], clock: ManualClock
) -> None:
    now = clock.now()
    assert rows[0] == OutboxRow(
        rows[0].id, session, CHAT, "part 0", "key 0", now, now + TTL_S, "pending", 0, None, None, ""
    )
    assert [row.body for row in rows] == ["part 0", "part 1", "part 2"]
    assert [row.body for row in await store.outbox.list_due(CHAT, limit=2)] == ["part 0", "part 1"]
    assert await store.outbox.rows(session) == rows


async def test_targets_are_those_with_something_due_the_longest_waiting_first(store: Store, session: SessionId) -> None:
    targets = ("slack:C1", CHAT, "slack:C1", "email:a@example.org")
    await store.outbox.add(session, [Outgoing(target, "x", str(n), 9e9) for n, target in enumerate(targets)])
    first, second, *_ = await store.outbox.rows(session)
    await store.outbox.start(second.id)
    assert await store.outbox.list_targets() == ["slack:C1", CHAT, "email:a@example.org"]

    await store.outbox.fail(first.id, "no")
    assert await store.outbox.list_targets() == [CHAT, "slack:C1", "email:a@example.org"]
    assert [row.key for row in await store.outbox.list_due("slack:C1")] == ["2"]
    assert await store.outbox.list_due("nowhere") == []


async def test_row_may_be_added_beside_a_turn(store: Store, session: SessionId) -> None:
    await store.outbox.add(session, [said("one", "a"), said("two", "b")])

    assert [(row.session, row.body, row.state) for row in await store.outbox.list_due(CHAT)] == [
        (session, "one", "pending"),
        (session, "two", "pending"),
    ]


async def test_started_row_stays_due_until_its_fate_is_known(store: Store, rows: list[OutboxRow]) -> None:
    started = await store.outbox.start(rows[0].id)
    assert started is not None
    assert (started.state, started.attempts) == ("started", 1)

    assert list(await store.outbox.list_due(CHAT)) == [started, *rows[1:]]


async def test_row_knows_when_the_wire_was_first_touched_for_it(
    store: Store, rows: list[OutboxRow], clock: ManualClock
) -> None:
    clock.advance(1)
    first = clock.now()
    await store.outbox.start(rows[0].id)
    await store.outbox.defer(rows[0].id, "busy")
    clock.advance(1)

    again = await store.outbox.start(rows[0].id)

    assert again is not None
    assert (again.started_at, again.attempts) == (first, 2)


async def test_sent_row_keeps_the_platforms_id_and_is_not_due(store: Store, rows: list[OutboxRow]) -> None:
    await bring_to(store, rows[0].id, "sent")

    assert list(await store.outbox.list_due(CHAT)) == rows[1:]
    sent = await seen(store)
    assert (sent.state, sent.sent_id, sent.error) == ("sent", "message 7", "")


async def test_deferred_row_is_pending_again_and_counts_its_attempts(store: Store, rows: list[OutboxRow]) -> None:
    for attempt in (1, 2, 3):
        await store.outbox.start(rows[0].id)
        await store.outbox.defer(rows[0].id, "no route to host")
        assert ((await seen(store)).state, (await seen(store)).attempts) == ("pending", attempt)

    due = (await store.outbox.list_due(CHAT))[0]
    assert (due.id, due.error) == (rows[0].id, "no route to host")


@pytest.mark.parametrize("state", ["pending", "started"])
async def test_row_that_is_due_may_fail_or_expire(store: Store, rows: list[OutboxRow], state: OutboxState) -> None:
    for row in rows[:2]:
        await bring_to(store, row.id, state)

    await store.outbox.fail(rows[0].id, "chat is gone")
    await store.outbox.expire(rows[1].id)

    assert [(row.state, row.error) for row in await store.outbox.rows(rows[0].session)] == [
        ("failed", "chat is gone"),
        ("expired", "not delivered in time"),
        ("pending", ""),
    ]
    assert list(await store.outbox.list_due(CHAT)) == rows[2:]


@pytest.mark.parametrize("state", ["sent", "failed", "expired"])
async def test_row_that_is_over_is_not_started_and_has_no_other_outcome(
    store: Store, rows: list[OutboxRow], state: OutboxState
) -> None:
    await bring_to(store, rows[0].id, state)
    before = await seen(store)

    for row in (rows[0].id, NOBODY):
        assert await store.outbox.start(row) is None
        for step in (store.outbox.mark_sent(row, "message 8"), store.outbox.defer(row, "why")):
            with pytest.raises(BrokenRuleError):
                await step
        for step in (store.outbox.fail(row, "why"), store.outbox.expire(row)):
            with pytest.raises(BrokenRuleError):
                await step
    assert await seen(store) == before


async def test_row_that_is_not_started_was_neither_sent_nor_deferred(store: Store, rows: list[OutboxRow]) -> None:
    with pytest.raises(BrokenRuleError):
        await store.outbox.mark_sent(rows[0].id, "message 7")
    with pytest.raises(BrokenRuleError):
        await store.outbox.defer(rows[0].id, "why")
    assert await seen(store) == rows[0]


async def test_row_left_started_by_a_crash_can_be_started_again(store: Store, rows: list[OutboxRow]) -> None:
    await store.outbox.start(rows[0].id)

    again = await store.outbox.start(rows[0].id)

    assert again is not None
    assert again.attempts == 2


async def test_row_past_its_time_is_due_until_somebody_says_that_it_expired(
    store: Store, rows: list[OutboxRow], clock: ManualClock
) -> None:
    clock.advance(2 * TTL_S)

    assert list(await store.outbox.list_due(CHAT)) == rows


async def test_draft_is_started_as_it_begins(store: Store, session: SessionId, clock: ManualClock) -> None:
    row = await store.outbox.begin(session, said("The first wo"))

    assert row is not None
    assert row == await seen(store)
    assert (row.session, row.target, row.body, row.expires_at) == (session, CHAT, "The first wo", 9e9)
    assert (row.state, row.attempts, row.created_at, row.started_at) == ("started", 1, clock.now(), clock.now())


async def test_draft_does_not_begin_twice(store: Store, session: SessionId, rows: list[OutboxRow]) -> None:
    assert await store.outbox.begin(session, said("again")) is None
    assert await store.outbox.begin(OTHER, said("again")) is None
    assert await seen(store) == rows[0]


@pytest.mark.parametrize("state", ["pending", "sent", "failed", "expired"])
async def test_row_takes_another_text_and_is_pending_with_the_id_it_was_sent_under(
    store: Store, session: SessionId, epoch: Epoch, rows: list[OutboxRow], state: OutboxState
) -> None:
    await bring_to(store, rows[0].id, state)
    before = await seen(store)

    await store.journal.record(session, epoch, [said("In the end")])

    row = await seen(store)
    assert (row.id, row.body, row.expires_at, row.state) == (before.id, "In the end", 9e9, "pending")
    assert (row.sent_id, row.attempts, row.error) == (before.sent_id, 0, "")
    assert len(await store.outbox.rows(session)) == 3


async def test_row_that_was_sent_as_it_should_read_stays_sent(
    store: Store, session: SessionId, rows: list[OutboxRow]
) -> None:
    await bring_to(store, rows[0].id, "sent")
    before = await seen(store)

    await store.outbox.add(session, [said(rows[0].body)])

    assert await seen(store) == before


async def test_row_whose_fate_is_unknown_stays_started_with_another_text(store: Store, session: SessionId) -> None:
    draft = await store.outbox.begin(session, said("The first wo"))
    assert draft is not None

    await store.outbox.add(session, [said("The first words.")])

    row = await seen(store)
    assert (row.body, row.state, row.sent_id, row.attempts) == ("The first words.", "started", None, 1)


async def test_text_that_came_while_another_was_on_the_wire_is_still_to_be_sent(
    store: Store, session: SessionId
) -> None:
    draft = await store.outbox.begin(session, said("The first wo"))
    assert draft is not None
    await store.outbox.add(session, [said("The first words.")])

    await store.outbox.mark_sent(draft.id, "message 7")

    row = await store.outbox.start(draft.id)
    assert row is not None
    assert (row.body, row.sent_id, row.attempts) == ("The first words.", "message 7", 1)
    await store.outbox.mark_sent(draft.id, "message 7")
    assert (await seen(store)).state == "sent"


async def test_text_that_came_before_the_wire_was_touched_again_is_what_is_sent(
    store: Store, session: SessionId
) -> None:
    draft = await store.outbox.begin(session, said("The first wo"))
    assert draft is not None
    await store.outbox.add(session, [said("The first words.")])

    again = await store.outbox.start(draft.id)
    await store.outbox.mark_sent(draft.id, "message 7")

    assert again is not None
    assert (again.body, (await seen(store)).state) == ("The first words.", "sent")


async def test_same_text_that_came_while_it_was_on_the_wire_is_sent(store: Store, session: SessionId) -> None:
    draft = await store.outbox.begin(session, said("All."))
    assert draft is not None
    await store.outbox.add(session, [said("All.")])

    await store.outbox.mark_sent(draft.id, "message 7")

    assert (await seen(store)).state == "sent"


async def test_row_that_is_deferred_with_another_text_is_sent_with_it(
    store: Store, session: SessionId, rows: list[OutboxRow]
) -> None:
    await store.outbox.start(rows[0].id)
    await store.outbox.add(session, [said("In the end")])
    await store.outbox.defer(rows[0].id, "busy")

    again = await store.outbox.start(rows[0].id)
    await store.outbox.mark_sent(rows[0].id, "message 7")

    assert again is not None
    assert (again.body, (await seen(store)).state) == ("In the end", "sent")


async def test_key_of_another_session_is_refused_with_all_that_came_with_it(
    store: Store, session: SessionId, epoch: Epoch, rows: list[OutboxRow]
) -> None:
    await store.outbox.add(OTHER, [said("mine", "key of the other")])

    with pytest.raises(BrokenRuleError):
        await store.journal.record(session, epoch, [Noted("x"), said("again"), said("stolen", "key of the other")])
    with pytest.raises(BrokenRuleError):
        await store.outbox.add(OTHER, [said("again")])

    assert await store.journal.entries(session) == []
    assert await store.outbox.rows(session) == rows
    assert (await seen(store, "key of the other")).body == "mine"


@pytest.mark.parametrize("state", ["failed", "expired"])
async def test_person_may_have_it_tried_again(store: Store, rows: list[OutboxRow], state: OutboxState) -> None:
    await store.outbox.start(rows[0].id)
    await bring_to(store, rows[0].id, state)

    assert await store.outbox.retry(rows[0].id, 9e9) is True

    row = await seen(store)
    assert (row.state, row.expires_at, row.attempts, row.error) == ("pending", 9e9, 0, "")


@pytest.mark.parametrize("state", ["pending", "started", "sent"])
async def test_row_that_is_due_or_sent_is_not_tried_again(
    store: Store, rows: list[OutboxRow], state: OutboxState
) -> None:
    await bring_to(store, rows[0].id, state)
    before = await seen(store)

    assert await store.outbox.retry(rows[0].id, 9e9) is False
    assert await store.outbox.retry(NOBODY, 9e9) is False
    assert await seen(store) == before


async def test_rows_move_with_their_chat_unless_they_are_over(store: Store, rows: list[OutboxRow]) -> None:
    await bring_to(store, rows[0].id, "sent")
    await bring_to(store, rows[1].id, "started")
    await store.outbox.add(rows[0].session, [Outgoing("slack:C1", "x", "elsewhere", 9e9)])

    await store.outbox.move(CHAT, "telegram:-100")

    assert [row.target for row in await store.outbox.rows(rows[0].session)] == [
        CHAT,
        "telegram:-100",
        "telegram:-100",
        "slack:C1",
    ]


async def test_row_is_found_by_its_key(store: Store, rows: list[OutboxRow]) -> None:
    assert await store.outbox.find("key 1") == rows[1]
    assert await store.outbox.find("key 9") is None


async def test_rows_are_listed_by_state_newest_first(store: Store, rows: list[OutboxRow]) -> None:
    await bring_to(store, rows[0].id, "failed")
    await bring_to(store, rows[2].id, "expired")

    assert [row.key for row in await store.outbox.list(["failed", "expired"])] == ["key 2", "key 0"]
    assert [row.key for row in await store.outbox.list(["failed", "pending", "expired"], limit=2)] == [
        "key 2",
        "key 1",
    ]
    assert await store.outbox.list([]) == await store.outbox.list(["sent"]) == []


async def test_prune_forgets_what_was_sent_before(store: Store, rows: list[OutboxRow], clock: ManualClock) -> None:
    for row, state in zip(rows, ("sent", "failed", "pending"), strict=True):
        await bring_to(store, row.id, state)
    clock.advance(10)
    await store.outbox.add(rows[0].session, [said("late", "key 3")])
    await bring_to(store, (await seen(store, "key 3")).id, "sent")

    assert await store.outbox.prune(clock.now() - 10) == 0
    assert await store.outbox.prune(clock.now()) == 1
    assert [row.key for row in await store.outbox.rows(rows[0].session)] == ["key 1", "key 2", "key 3"]


async def test_rows_are_counted_by_state(store: Store, session: SessionId) -> None:
    rows = [Outgoing("telegram:1", "x", key, 9e9) for key in ("a", "b", "c")]
    await store.outbox.add(session, rows)
    first = (await store.outbox.list_due("telegram:1"))[0]
    await store.outbox.fail(first.id, "no")

    found = await store.outbox.count()
    assert (found.get("pending"), found.get("failed"), found.get("sent", 0)) == (2, 1, 0)


async def test_the_first_that_is_due_may_be_started_with_the_look_for_it(
    store: Store, rows: list[OutboxRow], clock: ManualClock
) -> None:
    asked: list[OutboxRow] = []

    def is_wanted(row: OutboxRow) -> bool:
        asked.append(row)
        return True

    started, others = await store.outbox.start_due(CHAT, 2, is_wanted)

    assert started == await seen(store)
    assert started is not None
    assert (started.state, started.attempts, started.started_at) == ("started", 1, clock.now())
    assert list(others) == rows[1:2]
    assert set(map(repr, asked)) == {repr(rows[0])}


async def test_what_is_not_wanted_or_was_started_before_is_only_looked_at(store: Store, rows: list[OutboxRow]) -> None:
    started, others = await store.outbox.start_due(CHAT, 20, lambda row: row.body != "part 0")
    assert (started, list(others)) == (None, rows)

    await store.outbox.start(rows[0].id)
    before = await seen(store)
    started, others = await store.outbox.start_due(CHAT, 20, lambda _: True)
    assert (started, list(others)) == (None, [before, *rows[1:]])
    assert await seen(store) == before


async def test_where_nothing_is_due_nothing_is_started(store: Store, rows: list[OutboxRow]) -> None:
    assert rows
    started, others = await store.outbox.start_due("nowhere", 20, lambda _: True)
    assert (started, list(others)) == (None, [])


async def test_another_text_that_came_before_the_start_is_the_one_to_be_sent(
    store: Store, session: SessionId, rows: list[OutboxRow]
) -> None:
    await store.outbox.add(session, [said("better")])
    started, _ = await store.outbox.start_due(CHAT, 1, lambda _: True)
    assert started is not None
    assert started.body == "better"
    await store.outbox.mark_sent(rows[0].id, "message 7")
    assert (await seen(store)).state == "sent"
