import pytest

from talaria.model.entries import Noted
from talaria.model.errors import Fenced, UnknownSession
from talaria.model.ids import Epoch, OwnerId, SessionId
from talaria.store.base import Held, Store


async def test_every_owner_has_a_name_of_its_own(store: Store) -> None:
    assert len({await store.owners.join("test") for _ in range(5)}) == 5


async def test_session_of_a_living_owner_is_held(
    store: Store, session: SessionId, epoch: Epoch, owner: OwnerId
) -> None:
    rival = await store.owners.join("test")

    assert await store.journal.seize(session, rival) == Held(owner)
    assert await store.journal.seize(session, owner) == Held(owner)
    await store.journal.record(session, epoch, [Noted("still mine")])


async def test_epoch_grows_with_every_owner(store: Store, session: SessionId, epoch: Epoch, owner: OwnerId) -> None:
    await store.journal.release(session, epoch)
    second = await store.journal.seize(session, owner)
    assert not isinstance(second, Held)

    assert second == epoch + 1


async def test_session_of_an_owner_that_left_may_be_seized(
    store: Store, session: SessionId, epoch: Epoch, owner: OwnerId
) -> None:
    rival = await store.owners.join("test")
    await store.owners.leave(owner)

    assert await store.journal.seize(session, rival) == epoch + 1


async def test_zombie_can_neither_record_nor_release(
    store: Store, session: SessionId, epoch: Epoch, owner: OwnerId
) -> None:
    rival = await store.owners.join("test")
    await store.owners.leave(owner)
    seized = await store.journal.seize(session, rival)
    assert not isinstance(seized, Held)

    with pytest.raises(Fenced):
        await store.journal.record(session, epoch, [Noted("from beyond")])
    with pytest.raises(Fenced):
        await store.journal.release(session, epoch)

    await store.journal.record(session, seized, [Noted("mine now")])
    assert [one.entry for one in await store.journal.entries(session)] == [Noted("mine now")]
    assert await store.journal.seize(session, owner) == Held(rival)


async def test_epoch_of_the_future_is_fenced_too(store: Store, session: SessionId, epoch: Epoch) -> None:
    with pytest.raises(Fenced):
        await store.journal.record(session, Epoch(epoch + 1), [Noted("x")])


async def test_owner_may_hold_many_sessions_and_leaving_frees_them_all(
    store: Store, owner: OwnerId, session: SessionId, epoch: Epoch
) -> None:
    copy = await store.sessions.fork(session, SessionId("copy"))
    assert not isinstance(await store.journal.seize(copy.id, owner), Held)
    await store.owners.leave(owner)
    rival = await store.owners.join("test")

    assert not isinstance(await store.journal.seize(session, rival), Held)
    assert not isinstance(await store.journal.seize(copy.id, rival), Held)


async def test_unknown_session_cannot_be_seized(store: Store, owner: OwnerId) -> None:
    with pytest.raises(UnknownSession):
        await store.journal.seize(SessionId("nobody"), owner)


async def test_leaving_twice_does_no_harm(store: Store, owner: OwnerId) -> None:
    await store.owners.leave(owner)
    await store.owners.leave(owner)
