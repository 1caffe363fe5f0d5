import pytest

from talaria.model.entries import Noted
from talaria.model.ids import Epoch, OutboxId, SessionId
from talaria.store.base import BrokenRuleError, OutboxRow, Outgoing, Store
from talaria.testing.clock import ManualClock

TTL_S = 60.0


@pytest.fixture
async def rows(store: Store, session: SessionId, epoch: Epoch, clock: ManualClock) -> list[OutboxRow]:
    """Three parts of a reply, written in one record."""
    parts = [Outgoing("chat 42", f"part {n}", f"key {n}", clock.now() + TTL_S) for n in range(3)]
    await store.journal.record(session, epoch, parts)
    return list(await store.outbox.due())


async def state(store: Store, row: OutboxRow) -> tuple[str, int]:
    found = next(known for known in await store.outbox.rows(row.session) if known.id == row.id)
    return found.state, found.attempts


async def test_rows_are_due_in_the_order_they_were_written(store: Store, rows: list[OutboxRow]) -> None:
    assert [(row.body, row.state, row.attempts, row.sent_id) for row in rows] == [
        ("part 0", "pending", 0, None),
        ("part 1", "pending", 0, None),
        ("part 2", "pending", 0, None),
    ]
    assert [row.body for row in await store.outbox.due(limit=2)] == ["part 0", "part 1"]


async def test_started_row_stays_due_until_its_fate_is_known(store: Store, rows: list[OutboxRow]) -> None:
    started = await store.outbox.start(rows[0].id)
    assert started is not None
    assert (started.state, started.attempts) == ("started", 1)

    assert list(await store.outbox.due()) == [started, *rows[1:]]


async def test_sent_row_keeps_the_platforms_id_and_is_not_due(store: Store, rows: list[OutboxRow]) -> None:
    await store.outbox.start(rows[0].id)
    await store.outbox.sent(rows[0].id, "message 7")

    assert list(await store.outbox.due()) == rows[1:]
    sent = (await store.outbox.rows(rows[0].session))[0]
    assert (sent.state, sent.sent_id, sent.error) == ("sent", "message 7", "")


async def test_deferred_row_is_pending_again_and_counts_its_attempts(store: Store, rows: list[OutboxRow]) -> None:
    for attempt in (1, 2, 3):
        await store.outbox.start(rows[0].id)
        await store.outbox.defer(rows[0].id, "no route to host")
        assert await state(store, rows[0]) == ("pending", attempt)

    due = (await store.outbox.due())[0]
    assert (due.id, due.error) == (rows[0].id, "no route to host")


async def test_failed_row_is_over(store: Store, rows: list[OutboxRow]) -> None:
    await store.outbox.start(rows[0].id)
    await store.outbox.fail(rows[0].id, "chat is gone")

    assert await store.outbox.start(rows[0].id) is None
    assert await state(store, rows[0]) == ("failed", 1)


async def test_row_that_was_sent_cannot_be_started(store: Store, rows: list[OutboxRow]) -> None:
    await store.outbox.start(rows[0].id)
    await store.outbox.sent(rows[0].id, "message 7")

    assert await store.outbox.start(rows[0].id) is None
    assert await store.outbox.start(OutboxId(999)) is None


async def test_row_left_started_by_a_crash_can_be_started_again(store: Store, rows: list[OutboxRow]) -> None:
    await store.outbox.start(rows[0].id)

    again = await store.outbox.start(rows[0].id)

    assert again is not None
    assert again.attempts == 2


async def test_row_that_is_not_started_has_no_outcome(store: Store, rows: list[OutboxRow]) -> None:
    for row in (rows[0].id, OutboxId(999)):
        with pytest.raises(BrokenRuleError):
            await store.outbox.sent(row, "message 7")
        with pytest.raises(BrokenRuleError):
            await store.outbox.defer(row, "why")
        with pytest.raises(BrokenRuleError):
            await store.outbox.fail(row, "why")
    assert await state(store, rows[0]) == ("pending", 0)


async def test_rows_past_their_time_expire_instead_of_being_due(
    store: Store, rows: list[OutboxRow], clock: ManualClock
) -> None:
    await store.outbox.start(rows[0].id)
    clock.advance(TTL_S - 1)
    assert len(await store.outbox.due()) == 3

    clock.advance(1)

    assert await store.outbox.due() == []
    assert [(row.state, row.error) for row in await store.outbox.rows(rows[0].session)] == [
        ("expired", "not delivered in time")
    ] * 3
    assert await store.outbox.start(rows[1].id) is None


async def test_sent_row_does_not_expire(store: Store, rows: list[OutboxRow], clock: ManualClock) -> None:
    await store.outbox.start(rows[0].id)
    await store.outbox.sent(rows[0].id, "message 7")
    clock.advance(2 * TTL_S)
    await store.outbox.due()

    assert await state(store, rows[0]) == ("sent", 1)


async def test_key_is_used_once_even_after_it_was_sent(
    store: Store, session: SessionId, epoch: Epoch, rows: list[OutboxRow]
) -> None:
    await store.outbox.start(rows[0].id)
    await store.outbox.sent(rows[0].id, "message 7")

    with pytest.raises(BrokenRuleError):
        await store.journal.record(session, epoch, [Noted("x"), Outgoing("chat 42", "again", "key 0", 9e9)])

    assert len(await store.outbox.rows(session)) == 3
    assert await store.journal.entries(session) == []
