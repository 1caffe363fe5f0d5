import msgspec
import pytest

from talaria.core.ids import SessionId
from talaria.store.base import Store
from talaria.store.permission_ports import LOCKED_S, MAX_FAILURES, Greeting, Locked, Member, PairingRequest
from talaria.testing.manual_clock import ManualClock

TTL_S = 600.0


@pytest.fixture
def asked(clock: ManualClock) -> PairingRequest:
    return request(clock, "42")


def request(clock: ManualClock, user: str, platform: str = "telegram") -> PairingRequest:
    return PairingRequest(platform, user, f"name of {user}", f"digest of {user}", clock.now() + TTL_S)


async def fail(store: Store, times: int, platform: str = "telegram") -> None:
    for _ in range(times):
        assert await store.access.approve(platform, "wrong") is None


async def test_right_code_lets_in_whoever_was_told_it(store: Store, asked: PairingRequest, clock: ManualClock) -> None:
    assert await store.access.request(asked, 3) == "added"
    assert await store.access.request(request(clock, "43"), 3) == "added"
    clock.advance(5)

    member = await store.access.approve("telegram", asked.digest)

    assert member == Member("telegram", "42", "name of 42", clock.now())
    assert await store.access.members() == [member]
    assert [one.user for one in await store.access.requests()] == ["43"]
    assert await store.access.approve("telegram", asked.digest) is None


async def test_who_is_let_in_is_greeted_where_they_were_told_the_code(store: Store, clock: ManualClock) -> None:
    greeting = Greeting(SessionId("gateway"), "welcome", clock.now() + TTL_S)
    there = msgspec.structs.replace(request(clock, "42"), address="telegram:42")
    await store.access.request(there, 3)
    await store.access.request(request(clock, "43"), 3)
    assert await store.access.approve("telegram", "wrong", greeting) is None
    assert await store.outbox.list_targets() == []
    for _ in range(2):
        await store.access.approve("telegram", there.digest, greeting)
    await store.access.approve("telegram", "digest of 43", greeting)  # of whom it is not known where they are
    assert await store.outbox.list_targets() == ["telegram:42"]
    (row,) = await store.outbox.list_due("telegram:42")
    assert (row.session, row.body, row.state, row.expires_at) == ("gateway", "welcome", "pending", clock.now() + TTL_S)


async def test_code_counts_on_its_own_platform_only(store: Store, asked: PairingRequest) -> None:
    await store.access.request(asked, 3)

    assert await store.access.approve("slack", asked.digest) is None
    assert await store.access.members() == []


async def test_code_counts_until_it_expires(store: Store, asked: PairingRequest, clock: ManualClock) -> None:
    await store.access.request(asked, 3)
    clock.advance(TTL_S)

    assert await store.access.requests() == []
    assert await store.access.approve("telegram", asked.digest) is None


async def test_person_has_one_living_request(store: Store, asked: PairingRequest, clock: ManualClock) -> None:
    await store.access.request(asked, 3)
    again = PairingRequest("telegram", "42", "another name", "another digest", clock.now() + 2 * TTL_S)
    assert await store.access.request(again, 3) == "known"
    assert await store.access.requests() == [asked]

    clock.advance(TTL_S)
    assert await store.access.request(again, 3) == "added"
    assert await store.access.requests() == [again]


async def test_so_many_may_wait_on_each_platform(store: Store, clock: ManualClock) -> None:
    for user in ("1", "2"):
        assert await store.access.request(request(clock, user), 2) == "added"
    assert await store.access.request(request(clock, "3"), 2) == "full"
    assert await store.access.request(request(clock, "2"), 2) == "known"
    assert await store.access.request(request(clock, "3", "slack"), 2) == "added"
    assert [(one.platform, one.user) for one in await store.access.requests()] == [
        ("telegram", "1"),
        ("telegram", "2"),
        ("slack", "3"),
    ]

    clock.advance(TTL_S)
    assert await store.access.request(request(clock, "3"), 2) == "added"


async def test_member_who_is_let_in_again_has_the_new_name(
    store: Store, asked: PairingRequest, clock: ManualClock
) -> None:
    await store.access.request(asked, 3)
    await store.access.approve("telegram", asked.digest)
    clock.advance(7)
    await store.access.request(PairingRequest("telegram", "42", "new name", "digest", clock.now() + TTL_S), 3)

    member = await store.access.approve("telegram", "digest")

    assert await store.access.members() == [member] == [Member("telegram", "42", "new name", clock.now())]


async def test_revoked_member_is_none(store: Store, asked: PairingRequest, clock: ManualClock) -> None:
    for one in (asked, request(clock, "42", "slack")):
        await store.access.request(one, 3)
        await store.access.approve(one.platform, one.digest)

    assert await store.access.revoke("telegram", "42") is True
    assert await store.access.revoke("telegram", "42") is False
    assert [member.platform for member in await store.access.members()] == ["slack"]


async def test_too_many_wrong_codes_lock_the_platform_even_for_a_right_one(store: Store, clock: ManualClock) -> None:
    patient = PairingRequest("telegram", "42", "name", "right", clock.now() + 10 * LOCKED_S)
    await store.access.request(patient, 3)
    await fail(store, MAX_FAILURES - 1)
    clock.advance(60)
    await fail(store, 1)
    until = clock.now() + LOCKED_S

    clock.advance(LOCKED_S - 1)
    assert await store.access.approve("telegram", "right") == Locked(until)
    assert await store.access.approve("telegram", "wrong") == Locked(until)
    assert await store.access.approve("slack", "wrong") is None

    clock.advance(1)
    assert isinstance(await store.access.approve("telegram", "right"), Member)


async def test_lock_lasts_from_the_last_wrong_code_however_far_apart_they_were(
    store: Store, clock: ManualClock
) -> None:
    await fail(store, 1)
    clock.advance(LOCKED_S - 1)
    await fail(store, MAX_FAILURES - 1)
    until = clock.now() + LOCKED_S

    clock.advance(60)
    assert await store.access.approve("telegram", "wrong") == Locked(until)


async def test_wrong_codes_of_long_ago_are_forgotten(store: Store, clock: ManualClock) -> None:
    await fail(store, MAX_FAILURES - 1)
    clock.advance(LOCKED_S)
    await fail(store, MAX_FAILURES)

    clock.advance(LOCKED_S)
    await fail(store, MAX_FAILURES)
    assert isinstance(await store.access.approve("telegram", "wrong"), Locked)


async def test_right_code_makes_the_wrong_ones_forgotten(store: Store, asked: PairingRequest) -> None:
    await store.access.request(asked, 3)
    await fail(store, MAX_FAILURES - 1)
    await fail(store, MAX_FAILURES - 1, "slack")
    await store.access.approve("telegram", asked.digest)

    await fail(store, MAX_FAILURES)
    await fail(store, 1, "slack")
    assert isinstance(await store.access.approve("slack", "wrong"), Locked)


async def test_code_of_any_signs_is_just_wrong(store: Store, asked: PairingRequest) -> None:
    await store.access.request(asked, 3)

    assert await store.access.approve("telegram", "größer 漢字") is None
