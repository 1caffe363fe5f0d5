import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from talaria.core.entries import Noted, TurnEnded
from talaria.core.errors import Fenced
from talaria.core.ids import Epoch, HoldId, OwnerId, SessionId, TurnId
from talaria.core.messages import Usage
from talaria.store.base import (
    Amount,
    BrokenRuleError,
    HoldReleased,
    NewSession,
    Spent,
    Store,
    Totals,
    UsageKey,
    UsageRow,
)
from talaria.testing.manual_clock import ManualClock

A_DAY_S = 86_400.0
OTHER = SessionId("session-2")
ANN, BOB = "ann", "bob"
CHEAP, DEAR, LOCAL = "openai:small", "openai:large", "ollama:tiny"


class Refused(Exception):
    """What a `decide` raises that sees no room."""


def spent(tokens: int = 0, cost_usd: float | None = 0.0, *, person: str = ANN, model: str = CHEAP) -> Spent:
    return Spent(model, person, "turn", Usage(tokens), cost_usd)


def always(tokens: int, cost_usd: float = 0.0) -> Callable[[Totals], Amount]:
    return lambda _: Amount(tokens, cost_usd)


def within(cap: int, tokens: int) -> Callable[[Totals], Amount]:
    """Room for `tokens`, if the day has it."""

    def decide(totals: Totals) -> Amount:
        if totals.day.tokens + tokens > cap:
            raise Refused
        return Amount(tokens)

    return decide


async def totals(store: Store, session: SessionId, owner: OwnerId, person: str = ANN) -> Totals:
    """What `decide` is shown at this moment."""
    seen: list[Totals] = []

    def look(totals: Totals) -> Amount:
        seen.append(totals)
        raise Refused

    with pytest.raises(Refused):
        await store.spending.hold(session, person, owner, look)
    return seen[0]


async def tokens(store: Store, session: SessionId, owner: OwnerId, person: str = ANN) -> tuple[int, int, int]:
    """Of the session, the day and the person."""
    seen = await totals(store, session, owner, person)
    return seen.session.tokens, seen.day.tokens, seen.person.tokens


async def keys(store: Store, by: UsageKey) -> list[str]:
    return [row.key for row in await store.spending.usage(by)]


@pytest.fixture
def fourteen_hours_ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time is that of Kiritimati."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "<+14>-14")
        time.tzset()
        yield
    time.tzset()


async def test_nothing_is_spent_in_the_beginning(store: Store, session: SessionId, owner: OwnerId) -> None:
    assert await totals(store, session, owner) == Totals()
    assert await store.spending.usage("day") == []


async def test_what_is_spent_counts_for_its_session_its_day_and_its_person(
    store: Store, session: SessionId, owner: OwnerId
) -> None:
    await store.spending.add(session, [spent(1, 0.5), spent(2, 0.25, person=BOB)])
    await store.spending.add(OTHER, [spent(4, 2.0)])

    assert await totals(store, session, owner, ANN) == Totals(Amount(3, 0.75), Amount(7, 2.75), Amount(5, 2.5))
    assert await totals(store, OTHER, owner, BOB) == Totals(Amount(4, 2.0), Amount(7, 2.75), Amount(2, 0.25))


async def test_reasoning_is_a_part_of_the_output_and_not_counted_again(
    store: Store, session: SessionId, owner: OwnerId
) -> None:
    await store.spending.add(session, [Spent(CHEAP, ANN, "turn", Usage(1, 20, 300, 4_000, 10), 0.0)])

    assert await tokens(store, session, owner) == (4_321, 4_321, 4_321)


async def test_call_without_a_price_counts_with_its_tokens(store: Store, session: SessionId, owner: OwnerId) -> None:
    await store.spending.add(session, [spent(10, None), spent(5, 0.5)])

    assert (await totals(store, session, owner)).session == Amount(15, 0.5)


async def test_what_is_held_counts_as_if_it_were_spent(store: Store, session: SessionId, owner: OwnerId) -> None:
    await store.spending.hold(session, ANN, owner, always(10, 0.5))
    await store.spending.hold(OTHER, BOB, owner, always(7, 0.25))

    assert await totals(store, session, owner, ANN) == Totals(Amount(10, 0.5), Amount(17, 0.75), Amount(10, 0.5))
    assert await totals(store, session, owner, BOB) == Totals(Amount(10, 0.5), Amount(17, 0.75), Amount(7, 0.25))


async def test_decision_sees_what_is_spent_and_held_together(store: Store, session: SessionId, owner: OwnerId) -> None:
    await store.spending.add(session, [spent(100)])
    await store.spending.hold(session, ANN, owner, lambda seen: Amount(seen.session.tokens + 1))

    assert await tokens(store, session, owner) == (201, 201, 201)


async def test_decision_that_raises_holds_nothing_and_its_error_comes_through(
    store: Store, session: SessionId, owner: OwnerId
) -> None:
    refusal = Refused("no room")

    def refuse(_: Totals) -> Amount:
        raise refusal

    with pytest.raises(Refused) as caught:
        await store.spending.hold(session, ANN, owner, refuse)

    assert caught.value is refusal
    assert await totals(store, session, owner) == Totals()


async def test_two_who_ask_at_once_never_both_get_room_for_one(
    store: Store, session: SessionId, owner: OwnerId
) -> None:
    await store.spending.add(session, [spent(50)])

    asked = [store.spending.hold(session, ANN, owner, within(100, 10)) for _ in range(50)]
    answers = await asyncio.gather(*asked, return_exceptions=True)

    refusals = [answer for answer in answers if isinstance(answer, BaseException)]
    assert [type(refusal) for refusal in refusals] == [Refused] * 45
    assert len({answer for answer in answers if isinstance(answer, int)}) == 5
    assert await tokens(store, session, owner) == (100, 100, 100)


async def test_what_is_spent_takes_the_place_of_what_was_held(
    store: Store, session: SessionId, owner: OwnerId, epoch: Epoch
) -> None:
    hold = await store.spending.hold(session, ANN, owner, always(1_000, 1.0))

    await store.journal.record(session, epoch, [Noted("answered"), spent(10, 0.25), HoldReleased(hold)])

    assert (await totals(store, session, owner)).person == Amount(10, 0.25)
    assert [one.entry for one in await store.journal.entries(session)] == [Noted("answered")]


async def test_call_outside_of_a_turn_is_released_without_an_epoch(
    store: Store, session: SessionId, owner: OwnerId
) -> None:
    hold = await store.spending.hold(session, ANN, owner, always(1_000))

    await store.spending.add(session, [Spent(CHEAP, ANN, "title", Usage(10), 0.0), HoldReleased(hold)])

    assert await tokens(store, session, owner) == (10, 10, 10)


async def test_release_frees_one_hold_only(store: Store, session: SessionId, owner: OwnerId) -> None:
    await store.spending.hold(session, ANN, owner, always(1))
    hold = await store.spending.hold(session, ANN, owner, always(2))
    await store.spending.hold(session, ANN, owner, always(4))

    await store.spending.add(session, [HoldReleased(hold)])

    assert await tokens(store, session, owner) == (5, 5, 5)


async def test_releasing_what_is_not_held_does_no_harm(store: Store, session: SessionId, owner: OwnerId) -> None:
    hold = await store.spending.hold(session, ANN, owner, always(1))
    await store.spending.add(session, [HoldReleased(hold), HoldReleased(hold), HoldReleased(HoldId(999))])

    assert await tokens(store, session, owner) == (0, 0, 0)


async def test_late_release_does_not_free_the_hold_of_somebody_else(
    store: Store, session: SessionId, owner: OwnerId
) -> None:
    late = await store.spending.hold(session, ANN, owner, always(1))
    await store.spending.add(session, [HoldReleased(late)])
    await store.spending.hold(session, ANN, owner, always(2))

    await store.spending.add(session, [HoldReleased(late)])

    assert await tokens(store, session, owner) == (2, 2, 2)


async def test_record_that_breaks_a_rule_neither_spends_nor_releases(
    store: Store, session: SessionId, owner: OwnerId, epoch: Epoch
) -> None:
    hold = await store.spending.hold(session, ANN, owner, always(1))

    with pytest.raises(BrokenRuleError):
        await store.journal.record(
            session, epoch, [spent(10), HoldReleased(hold), TurnEnded(TurnId("never started"), "completed")]
        )

    assert await tokens(store, session, owner) == (1, 1, 1)


async def test_zombie_cannot_record_what_it_spent(store: Store, session: SessionId, epoch: Epoch) -> None:
    with pytest.raises(Fenced):
        await store.journal.record(session, Epoch(epoch + 1), [spent(10)])

    assert await store.spending.usage("session") == []


async def test_holds_of_an_owner_that_left_count_for_nothing(store: Store, session: SessionId, owner: OwnerId) -> None:
    other = await store.owners.join("test")
    await store.spending.hold(session, ANN, other, always(90))
    await store.spending.hold(session, ANN, owner, always(5))
    with pytest.raises(Refused):
        await store.spending.hold(session, ANN, owner, within(100, 10))

    await store.owners.leave(other)

    assert await tokens(store, session, owner) == (5, 5, 5)
    await store.spending.hold(session, ANN, owner, within(100, 10))
    assert await tokens(store, session, owner) == (15, 15, 15)


async def test_what_an_owner_that_left_has_spent_still_counts(store: Store, session: SessionId, owner: OwnerId) -> None:
    other = await store.owners.join("test")
    hold = await store.spending.hold(session, ANN, other, always(90))
    await store.spending.add(session, [spent(10), HoldReleased(hold)])

    await store.owners.leave(other)

    assert await tokens(store, session, owner) == (10, 10, 10)


async def test_what_was_spent_another_day_counts_for_the_session_only_and_what_is_held_counts_today(
    store: Store, session: SessionId, owner: OwnerId, clock: ManualClock
) -> None:
    await store.spending.add(session, [spent(10)])
    await store.spending.hold(session, ANN, owner, always(5))
    clock.advance(A_DAY_S)
    await store.spending.add(session, [spent(1)])

    assert await tokens(store, session, owner) == (16, 6, 6)


@pytest.mark.usefixtures("fourteen_hours_ahead")
async def test_day_ends_at_midnight_in_local_time(
    store: Store, session: SessionId, owner: OwnerId, clock: ManualClock
) -> None:
    clock.advance(1_800_050_399.0 - clock.now())  # 2027-01-15 21:59:59 UTC, 2027-01-16 11:59:59 there
    await store.spending.add(session, [spent(10)])
    clock.advance(A_DAY_S / 2)
    assert await tokens(store, session, owner) == (10, 10, 10)

    clock.advance(1.0)

    assert await tokens(store, session, owner) == (10, 0, 0)
    await store.spending.add(session, [spent(1)])
    assert await keys(store, "day") == ["2027-01-17", "2027-01-16"]


async def test_deleted_session_still_counts(store: Store, session: SessionId, owner: OwnerId) -> None:
    await store.spending.add(session, [spent(10, 0.5)])

    await store.sessions.delete(session)

    assert await totals(store, OTHER, owner) == Totals(Amount(), Amount(10, 0.5), Amount(10, 0.5))
    assert await keys(store, "session") == [session]


async def test_deleted_session_holds_nothing(store: Store, session: SessionId, owner: OwnerId) -> None:
    await store.sessions.create(NewSession(OTHER, "test"))
    hold = await store.spending.hold(session, ANN, owner, always(10))
    await store.spending.hold(OTHER, ANN, owner, always(5))

    await store.sessions.delete(session)

    assert await tokens(store, OTHER, owner) == (5, 5, 5)
    await store.spending.add(session, [spent(1), HoldReleased(hold)])
    assert await tokens(store, OTHER, owner) == (5, 6, 6)


async def test_fork_has_spent_nothing_yet(store: Store, session: SessionId, owner: OwnerId) -> None:
    await store.spending.add(session, [spent(10)])

    copy = await store.sessions.fork(session, SessionId("copy"))

    assert await tokens(store, copy.id, owner) == (0, 10, 10)


async def test_usage_by_day_is_newest_first(store: Store, session: SessionId, clock: ManualClock) -> None:
    await store.spending.add(session, [spent(1, 0.5), spent(2, 0.25, person=BOB, model=DEAR)])
    clock.advance(A_DAY_S)
    await store.spending.add(OTHER, [Spent(CHEAP, ANN, "title", Usage(1, 2, 3, 4, 5), None)])

    newer, older = await store.spending.usage("day")

    assert newer.key > older.key
    assert newer == UsageRow(newer.key, 1, Usage(1, 2, 3, 4, 5), 0.0, 1)
    assert older == UsageRow(older.key, 2, Usage(3), 0.75, 0)


async def test_usage_by_session_is_ordered_by_the_latest_call(
    store: Store, session: SessionId, clock: ManualClock
) -> None:
    for where in (OTHER, session, OTHER):
        await store.spending.add(where, [spent(10, 0.5)])
        clock.advance(1.0)

    assert await store.spending.usage("session") == [
        UsageRow(OTHER, 2, Usage(20), 1.0, 0),
        UsageRow(session, 1, Usage(10), 0.5, 0),
    ]


async def test_usage_by_session_at_the_same_moment_has_the_last_written_first(store: Store, session: SessionId) -> None:
    for where in (session, OTHER, session):
        await store.spending.add(where, [spent(1)])

    assert await keys(store, "session") == [session, OTHER]


async def test_usage_by_model_is_dearest_first_and_then_the_one_with_most_tokens(
    store: Store, session: SessionId
) -> None:
    await store.spending.add(
        session,
        [
            spent(500, 0.25, model=CHEAP),
            spent(1, 2.0, model=DEAR),
            spent(8, None, model="ollama:small"),
            spent(9, None, model=LOCAL),
        ],
    )

    assert await keys(store, "model") == [DEAR, CHEAP, LOCAL, "ollama:small"]


async def test_usage_says_how_many_calls_its_cost_does_not_include(store: Store, session: SessionId) -> None:
    await store.spending.add(session, [spent(1, 0.5), spent(2, None), spent(4, None), spent(8, 0.0)])

    assert await store.spending.usage("model") == [UsageRow(CHEAP, 4, Usage(15), 0.5, 2)]


async def test_usage_since_a_moment_includes_that_moment(store: Store, session: SessionId, clock: ManualClock) -> None:
    await store.spending.add(session, [spent(1)])
    clock.advance(60.0)
    since = clock.now()
    await store.spending.add(session, [spent(2)])
    clock.advance(60.0)
    await store.spending.add(OTHER, [spent(4)])

    assert [(row.key, row.usage.total) for row in await store.spending.usage("session", since)] == [
        (OTHER, 4),
        (session, 2),
    ]
    assert await store.spending.usage("model", clock.now() + 1) == []


async def test_what_is_held_is_not_usage(store: Store, session: SessionId, owner: OwnerId) -> None:
    await store.spending.hold(session, ANN, owner, always(10, 0.5))

    assert await store.spending.usage("session") == []
