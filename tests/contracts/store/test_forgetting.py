"""What is thrown away for good, and what stays."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import pytest

from talaria.core.entries import MessageAdded, TurnEnded, TurnStarted
from talaria.core.errors import SessionBusy
from talaria.core.ids import ApprovalId, CallId, Epoch, GrantId, InboxId, OwnerId, SessionId, TurnId
from talaria.core.messages import Usage, user
from talaria.store.api_ports import ApiToken, HistoryPoint
from talaria.store.base import Held, NewSession, Spent, Store
from talaria.store.chat_ports import Inbound, InboxTaken, Outgoing
from talaria.store.forgetting import Forgetting, PersonQuery, Traces
from talaria.store.memory import MemoryStore
from talaria.store.permission_ports import Grant, NewApproval, PairingRequest
from talaria.store.signal_port import NewSignal, SignalObeyed
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.manual_clock import ManualClock

ANN = PersonQuery(
    "telegram",
    "42",
    lambda body: body.startswith("ann:"),
    lambda key: key.endswith(":42"),
    lambda key: ":dm:" in key,
)
OWN, GROUP = SessionId("own"), SessionId("group")


class ForgettingStore(Store, Protocol):
    @property
    def forgetting(self) -> Forgetting: ...


@pytest.fixture(params=["sqlite", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[ForgettingStore]:
    opened = SqliteStore(tmp_path / "home", clock) if request.param == "sqlite" else MemoryStore(clock)
    async with opened:
        yield opened


async def begin(store: Store, *names: str, person: str = "local", cwd: str = "/work") -> None:
    for name in names:
        await store.sessions.create(NewSession(SessionId(name), "test", person=person, cwd=cwd))


async def seized(store: Store, session: SessionId, owner: OwnerId) -> Epoch:
    epoch = await store.journal.seize(session, owner)
    assert not isinstance(epoch, Held)
    return epoch


async def say(store: Store, session: SessionId, text: str, owner: OwnerId) -> None:
    epoch = await seized(store, session, owner)
    turn = TurnId(f"turn of {text}")
    spoken = [TurnStarted(turn, "terminal"), MessageAdded(user(text)), TurnEnded(turn, "completed")]
    await store.journal.record(session, epoch, spoken)
    await store.journal.release(session, epoch, leaves_mail=True)


async def stale(
    store: ForgettingStore, before: float | None = None, keep: int = 0, *, is_empty: bool = False
) -> list[str]:
    return [one.id for one in await store.forgetting.stale(before, keep, is_empty=is_empty)]


async def test_stale_are_those_that_fulfil_all_that_is_asked_oldest_first(
    store: ForgettingStore, clock: ManualClock, owner: OwnerId
) -> None:
    for name in ("c", "b", "a"):
        await begin(store, name)
        clock.advance(10)
    since = clock.now()
    await say(store, SessionId("b"), "hello", owner)

    assert await stale(store) == ["c", "a", "b"]
    assert await stale(store, since) == ["c", "a"]
    assert await stale(store, since - 10) == ["c"]
    assert await stale(store, keep=1) == ["c", "a"]
    assert await stale(store, since - 10, keep=3) == []
    assert await stale(store, is_empty=True) == ["c", "a"]
    assert await stale(store, keep=2, is_empty=True) == ["c"]


async def test_stale_conversation_tells_its_name_and_size(
    store: ForgettingStore, clock: ManualClock, owner: OwnerId
) -> None:
    await begin(store, "a")
    await say(store, SessionId("a"), "grüße", owner)

    (found,) = await store.forgetting.stale()
    assert (found.name, found.updated_at, found.message_count) == ("grüße", clock.now(), 1)
    assert 200 < found.size_bytes < 400

    await store.sessions.rename(SessionId("a"), "Garden")
    assert [one.name for one in await store.forgetting.stale()] == ["Garden"]


async def test_conversation_goes_only_when_it_is_at_rest(store: ForgettingStore, owner: OwnerId) -> None:
    await begin(store, "running", "mail", "reply", "moving", "free")
    await seized(store, SessionId("running"), owner)
    await store.inbox.accept([Inbound("telegram", "bot", "42", "1", SessionId("mail"), "body")])
    await store.outbox.add(SessionId("reply"), [Outgoing("telegram:42", "body", "key", 9e9)])
    await store.handoffs.request(SessionId("moving"), "telegram")

    assert await stale(store) == ["free"]
    for name in ("running", "mail", "reply", "moving", "nobody"):
        assert await store.forgetting.discard(SessionId(name)) is False
    assert await store.forgetting.discard(SessionId("free")) is True
    assert await store.forgetting.discard(SessionId("free")) is False

    await store.owners.leave(owner)
    (row,) = await store.outbox.rows(SessionId("reply"))
    await store.outbox.expire(row.id)
    assert sorted(await stale(store)) == ["reply", "running"]
    assert sorted(one.id for one in await store.sessions.list()) == ["mail", "moving", "reply", "running"]


@pytest.fixture
async def known(store: ForgettingStore, owner: OwnerId, clock: ManualClock) -> ForgettingStore:
    """Ann has a conversation of her own, and took part in one of others."""
    await begin(store, OWN, person="telegram:42", cwd="/people/ann")
    await begin(store, GROUP, person="telegram:43", cwd="/people/group")
    await store.inbox.accept(
        [
            Inbound("telegram", "bot", "42", "1", OWN, "ann: hello", "agent:main:telegram:dm:42"),
            Inbound("telegram", "bot", "-1", "2", GROUP, "ann: all", "agent:main:telegram:group:-1"),
            Inbound("telegram", "bot", "-1", "3", GROUP, "bob: all", "agent:main:telegram:group:-1"),
            Inbound("slack", "bot", "-1", "4", GROUP, "ann: somebody else", ""),
        ]
    )
    await store.chats.bind("agent:main:telegram:dm:42", OWN, "telegram:42")
    await store.chats.set_home("telegram", "telegram:42")
    await store.outbox.add(OWN, [Outgoing("telegram:42", "answer", "key-1", 9e9)])
    await store.outbox.add(SessionId("gateway"), [Outgoing("telegram:42", "beside", "key-2", 9e9)])
    await store.outbox.add(GROUP, [Outgoing("telegram:-1", "to all", "key-3", 9e9)])
    await say(store, OWN, "hello", owner)
    for user_id in ("42", "43"):
        asked = PairingRequest("telegram", user_id, f"name of {user_id}", f"digest {user_id}", clock.now() + 9)
        await store.access.request(asked, 3)
        await store.access.approve("telegram", asked.digest)
        await store.grants.add(grant(user_id))
        await store.approvals.request(question(owner, user_id))
        await store.signals.send(stop(user_id))
        spent = Spent("x:y", f"telegram:{user_id}", "turn", Usage(1, 2), 0.5)
        await store.spending.add(GROUP, [spent])
    return store


def grant(user_id: str) -> Grant:
    return Grant(GrantId(f"grant-{user_id}"), f"telegram:{user_id}", "terminal", "ls", "/", None, 0.0, None)


def question(owner: OwnerId, user_id: str) -> NewApproval:
    return NewApproval(
        ApprovalId(f"asked-{user_id}"),
        GROUP,
        TurnId("t"),
        CallId("c"),
        owner,
        f"telegram:{user_id}",
        "x",
        "?",
        "d",
        9e9,
    )


def stop(user_id: str) -> NewSignal:
    return NewSignal(f"stop-{user_id}", GROUP, TurnId("t"), "stop", f"telegram:{user_id}", "telegram")


TRACES = Traces(
    conversations=(OWN,),
    messages=1,
    inbox=2,
    outbox=2,
    chats=1,
    approvals=1,
    grants=1,
    signals=1,
    pairing=1,
    homes=1,
    spending=1,
    shared=(GROUP,),
    names=("name of 42",),
    folders=("/people/ann",),
)


async def test_all_that_is_kept_about_a_person_goes_and_is_counted(known: ForgettingStore) -> None:
    assert await known.forgetting.traces(ANN) == TRACES
    assert await known.forgetting.forget(ANN) == TRACES
    assert await known.forgetting.traces(ANN) == Traces()

    assert await known.sessions.get(OWN) is None
    assert await known.journal.entries(OWN) == []
    assert await known.search.search("hello") == []
    assert await known.outbox.list_due("telegram:42") == []
    assert await known.chats.get("agent:main:telegram:dm:42") is None
    assert await known.chats.home("telegram") is None
    assert await known.approvals.find("asked-42") is None
    assert await known.signals.find("stop-42") is None


async def test_what_is_of_others_stays(known: ForgettingStore) -> None:
    await known.forgetting.forget(ANN)

    assert [one.id for one in await known.sessions.list()] == [GROUP]
    assert [one.body for one in await known.inbox.list_pending(GROUP)] == ["bob: all", "ann: somebody else"]
    assert [one.body for one in await known.outbox.rows(GROUP)] == ["to all"]
    assert await known.chats.get("agent:main:telegram:group:-1") is not None
    assert [one.user for one in await known.access.members()] == ["43"]
    assert [one.person for one in await known.grants.list()] == ["telegram:43"]
    assert await known.approvals.find("asked-43") is not None
    assert [one.key for one in await known.signals.list_new([GROUP])] == ["stop-43"]


async def test_what_was_spent_stays_counted_without_the_name(known: ForgettingStore) -> None:
    before = await known.spending.usage("day")

    await known.forgetting.forget(ANN)

    assert await known.spending.usage("day") == before
    assert before[0].calls == 2


async def test_chat_by_the_name_of_a_person_goes_though_the_conversation_is_anothers(store: ForgettingStore) -> None:
    await begin(store, "local")
    await store.chats.bind("agent:main:telegram:dm:42", SessionId("local"), "telegram:42")
    await store.outbox.add(SessionId("local"), [Outgoing("telegram:42", "answer", "key", 9e9)])

    told = await store.forgetting.forget(ANN)

    assert (told.chats, told.outbox, told.conversations) == (1, 1, ())
    assert await store.chats.list_for(SessionId("local")) == []
    assert await store.sessions.get(SessionId("local")) is not None


async def test_chat_in_which_only_they_spoke_is_theirs_whatever_its_name(store: ForgettingStore) -> None:
    await begin(store, "local")
    key = "agent:main:slack:dm:D1"
    ann = PersonQuery("slack", "U1", ANN.has_said, lambda key: key.endswith(":U1"), ANN.is_private)
    await store.inbox.accept([Inbound("slack", "bot", "D1", "1", SessionId("local"), "ann: hello", key)])
    assert await store.inbox.take(InboxId(1)) is not None
    await store.inbox.finish(SessionId("local"), [InboxId(1)])

    told = await store.forgetting.forget(ann)

    assert (told.chats, told.inbox, told.shared) == (1, 1, (SessionId("local"),))
    assert await store.chats.get(key) is None


async def test_nobody_is_forgotten_while_a_turn_of_theirs_runs(known: ForgettingStore, owner: OwnerId) -> None:
    epoch = await seized(known, OWN, owner)
    with pytest.raises(SessionBusy, match="own is running"):
        await known.forgetting.forget(ANN)
    await known.journal.release(OWN, epoch, leaves_mail=True)

    epoch = await seized(known, GROUP, owner)
    hers = (await known.inbox.list_pending(GROUP))[0]
    taken = [TurnStarted(TurnId("t"), "platform"), InboxTaken(TurnId("t"), (hers.id,))]
    await known.journal.record(GROUP, epoch, taken)
    with pytest.raises(SessionBusy, match="group is answering"):
        await known.forgetting.forget(ANN)
    assert (await known.forgetting.traces(ANN)).conversations == (OWN,)


async def test_nobody_is_forgotten_while_a_turn_is_about_to_obey_them(known: ForgettingStore, owner: OwnerId) -> None:
    epoch = await seized(known, GROUP, owner)

    with pytest.raises(SessionBusy, match="group is about to obey"):
        await known.forgetting.forget(ANN)
    hers, _ = await known.signals.list_new([GROUP])
    await known.journal.record(GROUP, epoch, [SignalObeyed(hers.id)])

    assert (await known.forgetting.forget(ANN)).signals == 1


async def test_somebody_of_whom_nothing_is_kept_has_no_traces(known: ForgettingStore) -> None:
    nobody = PersonQuery("telegram", "99", lambda _: False, lambda _: False, lambda _: True)

    assert await known.forgetting.forget(nobody) == Traces()
    assert await known.forgetting.traces(ANN) == TRACES


async def test_an_address_of_a_group_is_not_theirs_though_their_chat_in_it_is(store: ForgettingStore) -> None:
    await begin(store, "local")
    await store.chats.bind("agent:main:telegram:group:-1:42", SessionId("local"), "telegram:-1")
    await store.outbox.add(SessionId("local"), [Outgoing("telegram:-1", "to all", "key", 9e9)])
    told = await store.forgetting.forget(ANN)
    assert (told.chats, told.outbox) == (1, 0)


async def test_program_is_forgotten_with_its_token_and_what_it_is_found_by(store: ForgettingStore) -> None:
    for name in ("ann", "bob"):
        await store.api_tokens.add(ApiToken(name=name, digest=name))
    theirs, others = HistoryPoint("api:ann", "digest"), HistoryPoint("api:bob", "digest")
    for name, person, point in (("anns", "api:ann", theirs), ("bobs", "api:bob", theirs), ("more", "api:bob", others)):
        await store.sessions.adopt(NewSession(SessionId(name), "api", person=person), 1.0, [], point)

    told = await store.forgetting.forget(program("ann"))

    assert told == Traces(conversations=(SessionId("anns"),), tokens=1, folders=())
    assert [one.name for one in await store.api_tokens.list()] == ["bob"]
    assert await store.histories.find(theirs) == []
    assert [one.session for one in await store.histories.find(others)] == ["more"]


async def test_person_of_another_platform_has_no_token_of_that_name(store: ForgettingStore) -> None:
    await store.api_tokens.add(ApiToken(name="42", digest="digest"))

    assert (await store.forgetting.forget(ANN)).tokens == 0
    assert len(await store.api_tokens.list()) == 1


def program(name: str) -> PersonQuery:
    return PersonQuery("api", name, lambda _: False, lambda _: False, lambda _: True)
