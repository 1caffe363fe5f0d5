import pytest

from talaria.core.entries import Noted, TurnEnded, TurnStarted
from talaria.core.errors import Fenced, UnknownSession
from talaria.core.ids import Epoch, OwnerId, SessionId, TurnId
from talaria.store.base import BrokenRuleError, Held, SessionReleased, SessionSeized, Store
from talaria.store.chat_ports import Inbound, InboxDone, InboxTaken, Outgoing


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


async def test_holder_is_the_living_owner_until_it_releases(
    store: Store, session: SessionId, epoch: Epoch, owner: OwnerId
) -> None:
    assert await store.journal.holder(session) == owner

    await store.journal.release(session, epoch)

    assert await store.journal.holder(session) is None


async def test_holder_that_has_died_is_nobody_until_another_seizes(
    store: Store, session: SessionId, epoch: Epoch, owner: OwnerId
) -> None:
    rival = await store.owners.join("test")
    await store.owners.leave(owner)
    assert await store.journal.holder(session) is None
    with pytest.raises(Fenced):  # asking has changed nothing
        await store.journal.record(session, Epoch(epoch + 1), [SessionSeized(rival)])

    await store.journal.seize(session, rival)

    assert await store.journal.holder(session) == rival


async def test_nobody_holds_a_session_that_is_free_or_unknown(store: Store, session: SessionId) -> None:
    assert await store.journal.holder(session) is None
    assert await store.journal.holder(SessionId("nobody")) is None


async def test_leaving_twice_does_no_harm(store: Store, owner: OwnerId) -> None:
    await store.owners.leave(owner)
    await store.owners.leave(owner)


TURN = TurnId("turn-1")


async def written(store: Store, session: SessionId) -> list[object]:
    return [one.entry for one in await store.journal.entries(session)]


async def test_a_record_may_seize_a_free_session_under_the_next_epoch(
    store: Store, session: SessionId, epoch: Epoch, owner: OwnerId
) -> None:
    await store.journal.release(session, epoch)

    assert not await store.journal.record(session, Epoch(epoch + 1), [SessionSeized(owner), Noted("mine at once")])

    assert await store.journal.seize(session, owner) == Held(owner)
    await store.journal.record(session, Epoch(epoch + 1), [Noted("still mine")])
    assert await written(store, session) == [Noted("mine at once"), Noted("still mine")]


@pytest.mark.parametrize("way", ["held", "left by the dead", "had by another", "of before", "unknown"])
async def test_a_record_that_cannot_seize_writes_nothing(
    store: Store, session: SessionId, epoch: Epoch, owner: OwnerId, way: str
) -> None:
    expected = Epoch(epoch + 1)
    match way:
        case "held":
            pass
        case "left by the dead":
            await store.owners.leave(owner)
        case "had by another":
            await store.journal.release(session, epoch)
            seized = await store.journal.seize(session, await store.owners.join("test"))
            assert not isinstance(seized, Held)
            await store.journal.release(session, seized)
        case "of before":
            await store.journal.release(session, epoch)
            expected = epoch
        case _:
            session = SessionId("nobody")

    with pytest.raises(Fenced):
        await store.journal.record(
            session, expected, [SessionSeized(owner), Noted("x"), Outgoing("42", "x", "key", 9e9)]
        )

    assert await written(store, session) == []
    assert await store.outbox.find("key") is None
    with pytest.raises(Fenced):
        await store.journal.record(session, expected, [Noted("x")])


async def test_a_record_that_breaks_a_rule_has_not_seized(
    store: Store, session: SessionId, epoch: Epoch, owner: OwnerId
) -> None:
    await store.journal.release(session, epoch)

    with pytest.raises(BrokenRuleError):
        await store.journal.record(session, Epoch(epoch + 1), [SessionSeized(owner), TurnEnded(TURN, "completed")])

    assert await store.journal.seize(session, owner) == epoch + 1


async def test_a_record_may_release_the_session(store: Store, session: SessionId, epoch: Epoch) -> None:
    rival = await store.owners.join("test")

    assert await store.journal.record(session, epoch, [Noted("the last word"), SessionReleased()])

    with pytest.raises(Fenced):
        await store.journal.record(session, epoch, [Noted("too late")])
    assert await store.journal.seize(session, rival) == epoch + 1
    assert await written(store, session) == [Noted("the last word")]


@pytest.mark.parametrize("leaves_mail", [False, True])
async def test_a_record_releases_as_release_does_when_mail_waits(
    store: Store, session: SessionId, epoch: Epoch, owner: OwnerId, leaves_mail: bool
) -> None:
    await store.inbox.accept([Inbound("telegram", "bot", "42", number, session, "hi") for number in "12"])
    first, _ = await store.inbox.list_pending(session)
    opening = [TurnStarted(TURN, "platform"), InboxTaken(TURN, (first.id,))]
    await store.journal.record(session, epoch, opening)

    ending = [TurnEnded(TURN, "completed"), InboxDone((first.id,)), SessionReleased(leaves_mail)]
    is_released = await store.journal.record(session, epoch, ending)

    assert is_released == leaves_mail
    assert (await store.journal.seize(session, owner) == Held(owner)) == (not leaves_mail)
    assert [mail.message_id for mail in await store.inbox.list_pending(session)] == ["2"]


async def test_mail_that_is_done_in_a_record_does_not_keep_it_from_releasing(
    store: Store, session: SessionId, epoch: Epoch
) -> None:
    await store.inbox.accept([Inbound("telegram", "bot", "42", "1", session, "hi")])
    (mail,) = await store.inbox.list_pending(session)

    assert await store.journal.record(
        session, epoch, [InboxTaken(TURN, (mail.id,)), InboxDone((mail.id,)), SessionReleased()]
    )
