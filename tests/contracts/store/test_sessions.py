import pytest

from talaria.core.entries import MessageAdded, Noted, TurnEnded, TurnStarted
from talaria.core.errors import BadInput, Fenced, SessionBusy, UnknownSession
from talaria.core.ids import CallId, Epoch, OwnerId, SessionId, TurnId
from talaria.core.messages import NO_USAGE, Assistant, Context, Text, ToolCall, Usage, User, user
from talaria.store.base import (
    BrokenRuleError,
    CallIntended,
    Held,
    NewSession,
    Session,
    Store,
)
from talaria.store.chat_ports import Inbound, Outgoing
from talaria.testing.manual_clock import ManualClock


def turn(name: str) -> TurnId:
    return TurnId(name)


def spoken(number: int, question: str, usage: Usage = NO_USAGE) -> list[TurnStarted | MessageAdded | TurnEnded]:
    """One whole turn."""
    return [
        TurnStarted(turn(f"turn-{number}"), "terminal"),
        MessageAdded(user(question)),
        MessageAdded(Assistant((Text(f"answer to {question}"),))),
        TurnEnded(turn(f"turn-{number}"), "completed", usage),
    ]


async def seen(store: Store, session: SessionId) -> Session:
    found = await store.sessions.get(session)
    assert found is not None
    return found


async def test_new_session_is_kept_as_it_was_given(store: Store, clock: ManualClock) -> None:
    await store.sessions.create(NewSession(SessionId("mother"), "cli"))
    new = NewSession(
        id=SessionId("child"),
        source="telegram",
        model="gpt",
        cwd="/work",
        system_prompt="You are…",
        tools='[{"name":"x"}]',
        title="A title",
        parent=SessionId("mother"),
        person="telegram:42",
    )

    created = await store.sessions.create(new)

    assert created == Session(
        id=new.id,
        source="telegram",
        model="gpt",
        cwd="/work",
        system_prompt="You are…",
        tools='[{"name":"x"}]',
        title="A title",
        parent=SessionId("mother"),
        created_at=clock.now(),
        updated_at=clock.now(),
        open_turn=None,
        message_count=0,
        person="telegram:42",
    )
    assert await store.sessions.get(new.id) == created


async def test_person_at_the_terminal_is_local(store: Store, session: SessionId) -> None:
    assert (await seen(store, session)).person == "local"


async def test_unknown_session_is_none(store: Store) -> None:
    assert await store.sessions.get(SessionId("nobody")) is None


async def test_session_id_is_given_once(store: Store, session: SessionId) -> None:
    with pytest.raises(BrokenRuleError):
        await store.sessions.create(NewSession(session, "test"))


async def test_parent_must_exist(store: Store) -> None:
    with pytest.raises(BrokenRuleError):
        await store.sessions.create(NewSession(SessionId("orphan"), "test", parent=SessionId("nobody")))


async def test_list_shows_newest_activity_first_up_to_the_limit(
    store: Store, session: SessionId, epoch: Epoch, clock: ManualClock
) -> None:
    for name in ("session-2", "session-3"):
        clock.advance(1)
        await store.sessions.create(NewSession(SessionId(name), "test"))
    clock.advance(1)
    await store.journal.record(session, epoch, [Noted("alive")])

    assert [found.id for found in await store.sessions.list()] == ["session-1", "session-3", "session-2"]
    assert [found.id for found in await store.sessions.list(limit=2)] == ["session-1", "session-3"]


async def test_list_of_one_person_shows_only_theirs(store: Store, clock: ManualClock) -> None:
    for name, person in (("s-1", "ann"), ("s-2", "bob"), ("s-3", "ann"), ("s-4", "ann")):
        clock.advance(1)
        await store.sessions.create(NewSession(SessionId(name), "test", person=person))

    assert [found.id for found in await store.sessions.list(person="ann")] == ["s-4", "s-3", "s-1"]
    assert [found.id for found in await store.sessions.list(2, "ann")] == ["s-4", "s-3"]
    assert await store.sessions.list(person="nobody") == []
    assert len(await store.sessions.list()) == 4


async def test_list_goes_on_after_a_session(store: Store, clock: ManualClock) -> None:
    """Also among those whose activity was at the same time."""
    for name, person in (("s-1", "ann"), ("s-2", "ann"), ("s-5", "bob"), ("s-3", "ann"), ("s-4", "ann")):
        await store.sessions.create(NewSession(SessionId(name), "test", person=person))
        clock.advance(name == "s-2")

    async def page(after: str, limit: int = 50, person: str | None = None) -> list[str]:
        return [found.id for found in await store.sessions.list(limit, person, SessionId(after))]

    assert [found.id for found in await store.sessions.list()] == ["s-5", "s-4", "s-3", "s-2", "s-1"]
    assert await page("s-5", 2) == ["s-4", "s-3"]
    assert await page("s-3", 2) == ["s-2", "s-1"]
    assert await page("s-1") == []
    assert await page("s-4", 2, "ann") == ["s-3", "s-2"]


async def test_list_goes_on_only_after_one_of_those_that_it_shows(store: Store) -> None:
    for name, person in (("s-1", "ann"), ("s-2", "bob")):
        await store.sessions.create(NewSession(SessionId(name), "test", person=person))

    for after, person in (("nobody", None), ("nobody", "ann"), ("s-2", "ann")):
        with pytest.raises(UnknownSession):
            await store.sessions.list(person=person, after=SessionId(after))


async def test_find_among_those_of_one_person(store: Store) -> None:
    for name, title, person in (("2026_a", "Garden", "ann"), ("2026_b", "Harness", "bob")):
        await store.sessions.create(NewSession(SessionId(name), "test", title=title, person=person))

    for name in ("2026_a", "2026", "Garden"):
        assert (await store.sessions.find(name, "ann")).id == "2026_a"
    for name in ("2026_b", "Harness"):
        with pytest.raises(UnknownSession):
            await store.sessions.find(name, "ann")


async def test_find_by_id_by_its_beginning_and_by_title(store: Store) -> None:
    for name, title in (("20261115_a", "Garden"), ("20261116_b", None)):
        await store.sessions.create(NewSession(SessionId(name), "test", title=title))

    assert (await store.sessions.find("20261115_a")).id == "20261115_a"
    assert (await store.sessions.find("20261116")).id == "20261116_b"
    assert (await store.sessions.find("Garden")).id == "20261115_a"


@pytest.mark.parametrize("name", ["", "2026", "garden", "116_b", "202", "%", "2026111_"])
async def test_find_refuses_what_fits_none_or_many(store: Store, name: str) -> None:
    for id, title in (("20261115_a", "Garden"), ("20261116_b", None)):
        await store.sessions.create(NewSession(SessionId(id), "test", title=title))

    with pytest.raises(UnknownSession):
        await store.sessions.find(name)


async def test_find_says_when_a_beginning_fits_many(store: Store) -> None:
    for id in ("20261115_a", "20261116_b"):
        await store.sessions.create(NewSession(SessionId(id), "test"))

    with pytest.raises(UnknownSession, match="more than one"):
        await store.sessions.find("2026")


async def test_exact_name_wins_over_many_that_begin_with_it(store: Store) -> None:
    for number in range(5):
        await store.sessions.create(NewSession(SessionId(f"2026_{number}"), "test"))
    await store.sessions.create(NewSession(SessionId("zz"), "test", title="2026"))
    await store.sessions.create(NewSession(SessionId("2026_3_more"), "test"))

    assert (await store.sessions.find("2026")).id == "zz"
    assert (await store.sessions.find("2026_3")).id == "2026_3"


async def test_id_wins_over_a_title_that_reads_the_same(store: Store) -> None:
    await store.sessions.create(NewSession(SessionId("aaaa"), "test", title="bbbb"))
    await store.sessions.create(NewSession(SessionId("bbbb"), "test"))

    assert (await store.sessions.find("bbbb")).id == "bbbb"


async def test_title_belongs_to_one_session(store: Store, session: SessionId) -> None:
    await store.sessions.create(NewSession(SessionId("other"), "test", title="Garden"))

    with pytest.raises(BadInput, match="other"):
        await store.sessions.rename(session, "Garden")
    with pytest.raises(BadInput):
        await store.sessions.create(NewSession(SessionId("third"), "test", title="Garden"))
    with pytest.raises(BadInput):
        await store.sessions.fork(session, SessionId("third"), "Garden")
    assert (await seen(store, session)).title is None
    assert await store.sessions.get(SessionId("third")) is None


async def test_rename_gives_a_title_and_frees_the_old_one(store: Store, session: SessionId) -> None:
    await store.sessions.rename(session, "Garden")
    await store.sessions.rename(session, "Garden")
    await store.sessions.rename(session, "Kitchen")
    await store.sessions.create(NewSession(SessionId("other"), "test", title="Garden"))

    assert (await seen(store, session)).title == "Kitchen"


@pytest.mark.parametrize("title", ["", "  ", "\n\t"])
async def test_blank_title_is_refused(store: Store, session: SessionId, title: str) -> None:
    with pytest.raises(BadInput):
        await store.sessions.rename(session, title)


async def test_unknown_session_cannot_be_renamed_deleted_or_forked(store: Store) -> None:
    nobody = SessionId("nobody")

    with pytest.raises(UnknownSession):
        await store.sessions.rename(nobody, "Title")
    with pytest.raises(UnknownSession):
        await store.sessions.delete(nobody)
    with pytest.raises(UnknownSession):
        await store.sessions.fork(nobody, SessionId("copy"))


async def test_delete_removes_all_that_belongs_to_the_session(
    store: Store, session: SessionId, epoch: Epoch, owner: OwnerId
) -> None:
    await store.inbox.accept([Inbound("telegram", "bot", "42", "1", session, "mail")])
    await store.journal.record(
        session,
        epoch,
        [
            TurnStarted(turn("turn-1"), "terminal"),
            MessageAdded(user("needle")),
            CallIntended(turn("turn-1"), ToolCall(CallId("c1"), "terminal", "{}")),
            Outgoing("42", "hello", "key", 9e9),
        ],
    )
    assert len(await store.search.search("needle")) == 1
    await store.owners.leave(owner)

    await store.sessions.delete(session)

    assert await store.sessions.get(session) is None
    assert await store.sessions.list() == []
    assert await store.journal.entries(session) == []
    assert await store.journal.calls(session, turn("turn-1")) == []
    assert await store.inbox.list_pending(session) == []
    assert await store.journal.list_interrupted() == []
    assert await store.outbox.rows(session) == []
    assert await store.outbox.list_targets() == []
    assert await store.search.search("needle") == []
    assert await store.handoffs.state(session) is None
    with pytest.raises(Fenced):
        await store.journal.record(session, epoch, [Noted("late")])


async def test_deleted_session_leaves_no_trace_in_a_new_one_of_the_same_id(store: Store, session: SessionId) -> None:
    await store.sessions.delete(session)
    await store.sessions.create(NewSession(session, "test"))

    assert await store.journal.entries(session) == []


async def test_busy_session_is_not_deleted(store: Store, session: SessionId, epoch: Epoch) -> None:
    with pytest.raises(SessionBusy):
        await store.sessions.delete(session)

    await store.journal.record(session, epoch, [Noted("unharmed")])
    await store.journal.release(session, epoch)
    await store.sessions.delete(session)


async def test_children_of_a_deleted_session_live_on(store: Store, session: SessionId) -> None:
    child = await store.sessions.fork(session, SessionId("child"))
    assert child.parent == session

    await store.sessions.delete(session)

    assert (await seen(store, child.id)).parent is None


async def test_preview_is_the_start_of_the_first_thing_a_person_said(
    store: Store, session: SessionId, epoch: Epoch
) -> None:
    await store.journal.record(
        session,
        epoch,
        [
            MessageAdded(user("background", author="host")),
            MessageAdded(User((Context("today"), Text("What \n is\t this? " + "x" * 200)))),
            MessageAdded(user("second")),
        ],
    )

    preview = (await seen(store, session)).preview
    assert preview.startswith("What is this? xxx")
    assert len(preview) == 80


async def test_usage_of_all_turns_adds_up(store: Store, session: SessionId, epoch: Epoch) -> None:
    await store.journal.record(session, epoch, spoken(1, "a", Usage(1, 2, 3, 4, 5)))
    await store.journal.record(session, epoch, spoken(2, "b", Usage(10, 20, 30, 40, 50)))

    found = await seen(store, session)

    assert found.usage == Usage(11, 22, 33, 44, 55)
    assert found.message_count == 4
    assert found.open_turn is None


async def test_fork_copies_the_journal_up_to_the_last_ended_turn(
    store: Store, session: SessionId, epoch: Epoch, clock: ManualClock
) -> None:
    await store.journal.record(session, epoch, spoken(1, "first", Usage(1, 1)))
    await store.journal.record(session, epoch, spoken(2, "second", Usage(2, 2)))
    await store.journal.record(session, epoch, [TurnStarted(turn("turn-3"), "terminal"), MessageAdded(user("third"))])
    clock.advance(60)

    copy = await store.sessions.fork(session, SessionId("copy"), "Other way")

    assert await store.journal.entries(copy.id) == (await store.journal.entries(session))[:8]
    assert (copy.title, copy.parent, copy.created_at) == ("Other way", session, clock.now())
    assert (copy.open_turn, copy.message_count, copy.usage) == (None, 4, Usage(3, 3))
    assert copy.preview == "first"
    assert await store.sessions.get(copy.id) == copy


async def test_fork_until_the_end_of_a_turn_has_nothing_from_after_it(
    store: Store, session: SessionId, epoch: Epoch
) -> None:
    await store.journal.record(session, epoch, spoken(1, "first", Usage(1, 1)))
    await store.journal.record(session, epoch, spoken(2, "second", Usage(2, 2)))
    await store.journal.record(session, epoch, [TurnStarted(turn("turn-3"), "terminal"), MessageAdded(user("third"))])

    copy = await store.sessions.fork(session, SessionId("copy"), until=4)

    assert await store.journal.entries(copy.id) == (await store.journal.entries(session))[:4]
    assert (copy.open_turn, copy.message_count, copy.usage, copy.preview) == (None, 2, Usage(1, 1), "first")
    assert await store.sessions.get(copy.id) == copy
    for name, until, length in (("empty", 0, 0), ("whole", 8, 8), ("open", 9, 8), ("more", 1_000, 8)):
        await store.sessions.fork(session, SessionId(name), until=until)
        assert len(await store.journal.entries(SessionId(name))) == length


async def test_fork_that_would_end_inside_a_turn_is_refused(store: Store, session: SessionId, epoch: Epoch) -> None:
    await store.journal.record(session, epoch, spoken(1, "first"))

    for until in (1, 3):
        with pytest.raises(BrokenRuleError):
            await store.sessions.fork(session, SessionId("copy"), until=until)
    assert [found.id for found in await store.sessions.list()] == [session]


async def test_fork_until_the_end_of_a_turn_goes_on_from_there(
    store: Store, session: SessionId, epoch: Epoch, owner: OwnerId
) -> None:
    await store.journal.record(session, epoch, [*spoken(1, "first"), *spoken(2, "second")])
    copy = await store.sessions.fork(session, SessionId("copy"), until=4)
    seized = await store.journal.seize(copy.id, owner)
    assert not isinstance(seized, Held)

    await store.journal.record(copy.id, seized, spoken(2, "elsewhere"))

    assert [one.seq for one in await store.journal.entries(copy.id)] == list(range(1, 9))
    assert [hit.session for hit in await store.search.search("second")] == [session, session]
    assert [hit.session for hit in await store.search.search("elsewhere")] == [copy.id, copy.id]


async def test_fork_belongs_to_the_same_person(store: Store) -> None:
    await store.sessions.create(NewSession(SessionId("mother"), "test", person="ann"))

    assert (await store.sessions.fork(SessionId("mother"), SessionId("copy"))).person == "ann"


async def test_fork_goes_its_own_way(store: Store, session: SessionId, epoch: Epoch, owner: OwnerId) -> None:
    await store.journal.record(session, epoch, spoken(1, "first"))
    copy = await store.sessions.fork(session, SessionId("copy"))
    seized = await store.journal.seize(copy.id, owner)
    assert not isinstance(seized, Held)

    await store.journal.record(copy.id, seized, spoken(2, "elsewhere"))

    assert [one.seq for one in await store.journal.entries(copy.id)] == list(range(1, 9))
    assert len(await store.journal.entries(session)) == 4


async def test_fork_before_any_turn_ended_is_empty(store: Store, session: SessionId, epoch: Epoch) -> None:
    await store.journal.record(session, epoch, [TurnStarted(turn("turn-1"), "terminal"), MessageAdded(user("open"))])

    copy = await store.sessions.fork(session, SessionId("copy"))

    assert await store.journal.entries(copy.id) == []
    assert (copy.preview, copy.message_count, copy.open_turn) == ("", 0, None)


async def test_fork_needs_a_new_id(store: Store, session: SessionId) -> None:
    with pytest.raises(BrokenRuleError):
        await store.sessions.fork(session, session)
