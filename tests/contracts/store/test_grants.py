import pytest

from talaria.core.ids import GrantId, OwnerId, SessionId, new_grant_id
from talaria.store.base import BrokenRuleError, NewSession, Store
from talaria.store.permission_ports import Grant
from talaria.testing.manual_clock import ManualClock

ANN, BOB = "ann", "bob"
A_DAY_S = 86_400.0
OTHER = SessionId("session-2")


def grant(
    id: str, session: SessionId | None = None, *, person: str = ANN, at: float = 0.0, expires_at: float | None = None
) -> Grant:
    return Grant(GrantId(id), person, "terminal", "make test", "/home/ann/garden", session, at, expires_at)


async def valid(store: Store, session: SessionId, person: str = ANN) -> list[str]:
    return [one.id for one in await store.grants.list_valid(person, session)]


async def listed(store: Store) -> list[str]:
    return [one.id for one in await store.grants.list()]


def test_id_has_128_bits_of_its_own() -> None:
    ids = {new_grant_id() for _ in range(100)}

    assert len(ids) == 100
    assert {len(bytes.fromhex(id)) for id in ids} == {16}


async def test_grant_is_kept_as_it_was_given(store: Store, session: SessionId, clock: ManualClock) -> None:
    given = Grant(
        id=GrantId("g"),
        person=ANN,
        tool="terminal",
        what="make test",
        cwd="/home/ann/garden",
        session=session,
        created_at=clock.now(),
        expires_at=clock.now() + A_DAY_S,
    )

    await store.grants.add(given)

    assert await store.grants.list() == [given]
    assert await store.grants.list_valid(ANN, session) == [given]


async def test_grant_holds_for_its_session_or_for_every_one_oldest_first(store: Store, session: SessionId) -> None:
    await store.sessions.create(NewSession(OTHER, "test"))
    for given in (grant("z", session), grant("m"), grant("b", OTHER), grant("a", session)):
        await store.grants.add(given)

    assert await valid(store, session) == ["z", "m", "a"]
    assert await valid(store, OTHER) == ["m", "b"]
    assert await valid(store, SessionId("one of tomorrow")) == ["m"]
    assert await listed(store) == ["z", "m", "b", "a"]


@pytest.mark.parametrize("person", [BOB, "Ann", ""])
async def test_grant_is_of_one_person(store: Store, session: SessionId, person: str) -> None:
    await store.grants.add(grant("everywhere"))
    await store.grants.add(grant("here", session))

    assert await valid(store, session, person) == []
    assert await valid(store, session, ANN) == ["everywhere", "here"]


async def test_grant_expires(store: Store, session: SessionId, clock: ManualClock) -> None:
    await store.grants.add(grant("for a day", expires_at=clock.now() + A_DAY_S))
    await store.grants.add(grant("for good"))
    clock.advance(A_DAY_S - 1)
    assert await valid(store, session) == await listed(store) == ["for a day", "for good"]

    clock.advance(1)

    assert await valid(store, session) == await listed(store) == ["for good"]


async def test_revoked_grant_holds_no_more(store: Store, session: SessionId) -> None:
    for id in ("a", "b"):
        await store.grants.add(grant(id))

    assert await store.grants.revoke(GrantId("a")) is True
    assert await valid(store, session) == await listed(store) == ["b"]
    assert await store.grants.revoke(GrantId("a")) is False


async def test_grant_outlives_its_process(store: Store, session: SessionId, owner: OwnerId) -> None:
    await store.grants.add(grant("here", session))
    await store.owners.leave(owner)

    assert await valid(store, session) == ["here"]


async def test_grant_is_given_once(store: Store, session: SessionId) -> None:
    await store.grants.add(grant("a", session))

    with pytest.raises(BrokenRuleError):
        await store.grants.add(grant("a"))

    assert await store.grants.list() == [grant("a", session)]


async def test_grant_for_a_session_needs_that_session(store: Store) -> None:
    with pytest.raises(BrokenRuleError):
        await store.grants.add(grant("a", SessionId("nobody")))

    assert await listed(store) == []


async def test_deleted_session_takes_its_own_grants_along(store: Store, session: SessionId) -> None:
    await store.sessions.create(NewSession(OTHER, "test"))
    for given in (grant("here", session), grant("there", OTHER), grant("everywhere")):
        await store.grants.add(given)

    await store.sessions.delete(session)
    assert await listed(store) == ["there", "everywhere"]

    await store.sessions.create(NewSession(session, "test"))
    assert await valid(store, session) == ["everywhere"]


async def test_fork_inherits_no_grant_of_its_session(store: Store, session: SessionId) -> None:
    await store.grants.add(grant("here", session))
    await store.grants.add(grant("everywhere"))

    copy = await store.sessions.fork(session, SessionId("copy"))

    assert await valid(store, copy.id) == ["everywhere"]
