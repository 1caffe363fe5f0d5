import pytest

from talaria.core.entries import MessageAdded, TurnEnded, TurnStarted
from talaria.core.ids import Epoch, SessionId, TurnId
from talaria.core.messages import Assistant, Text, user
from talaria.store.base import NewSession, Store
from talaria.store.chat_ports import HandoffState, Inbound
from talaria.testing.manual_clock import ManualClock


async def running(store: Store, session: SessionId) -> None:
    await store.handoffs.request(session, "telegram")
    await store.handoffs.claim(session)


@pytest.mark.clause("H-01")
async def test_session_row_carries_state_platform_and_error(store: Store, session: SessionId) -> None:
    assert await store.handoffs.state(session) == HandoffState(state=None, platform=None, error=None)

    await running(store, session)
    await store.handoffs.fail(session, "no home channel")

    assert await store.handoffs.state(session) == HandoffState("failed", "telegram", "no home channel")


@pytest.mark.clause("H-02")
async def test_request_on_an_idle_session_is_pending(store: Store, session: SessionId) -> None:
    assert await store.handoffs.request(session, "telegram") is True
    assert await store.handoffs.state(session) == HandoffState("pending", "telegram", None)


@pytest.mark.clause("H-03")
async def test_request_while_pending_or_running_changes_nothing(store: Store, session: SessionId) -> None:
    await store.handoffs.request(session, "telegram")
    assert await store.handoffs.request(session, "discord") is False
    assert await store.handoffs.state(session) == HandoffState("pending", "telegram", None)

    await store.handoffs.claim(session)
    assert await store.handoffs.request(session, "discord") is False
    assert await store.handoffs.state(session) == HandoffState("running", "telegram", None)


@pytest.mark.clause("H-04")
async def test_request_after_a_failure_starts_anew(store: Store, session: SessionId) -> None:
    await running(store, session)
    await store.handoffs.fail(session, "no home channel")

    assert await store.handoffs.request(session, "discord") is True
    assert await store.handoffs.state(session) == HandoffState("pending", "discord", None)


@pytest.mark.clause("H-04")
async def test_request_after_completion_starts_anew(store: Store, session: SessionId) -> None:
    await running(store, session)
    await store.handoffs.complete(session)

    assert await store.handoffs.request(session, "discord") is True
    assert await store.handoffs.state(session) == HandoffState("pending", "discord", None)


@pytest.mark.clause("H-05")
async def test_only_pending_rows_are_listed_oldest_session_first(
    store: Store, session: SessionId, clock: ManualClock
) -> None:
    for name in ("z", "b", "a", "idle"):
        clock.advance(1)
        await store.sessions.create(NewSession(SessionId(name), "test"))
    for name in ("a", "b", "z", session):
        await store.handoffs.request(SessionId(name), "telegram")
    await store.handoffs.claim(SessionId("b"))

    assert await store.handoffs.list_pending() == [session, "z", "a"]


@pytest.mark.clause("H-06")
async def test_claim_succeeds_once(store: Store, session: SessionId) -> None:
    assert await store.handoffs.claim(session) is False
    await store.handoffs.request(session, "telegram")

    assert await store.handoffs.claim(session) is True
    assert await store.handoffs.claim(session) is False
    assert await store.handoffs.state(session) == HandoffState("running", "telegram", None)


@pytest.mark.clause("H-07")
async def test_completed_handoff_has_no_error_also_after_an_earlier_failure(store: Store, session: SessionId) -> None:
    await running(store, session)
    await store.handoffs.fail(session, "send failed")
    await running(store, session)

    assert await store.handoffs.complete(session) is True
    assert await store.handoffs.state(session) == HandoffState("completed", "telegram", None)


@pytest.mark.clause("H-07")
async def test_only_a_running_handoff_completes(store: Store, session: SessionId) -> None:
    assert await store.handoffs.complete(session) is False
    await store.handoffs.request(session, "telegram")
    assert await store.handoffs.complete(session) is False
    await store.handoffs.fail(session, "timed out")
    assert await store.handoffs.complete(session) is False
    assert await store.handoffs.state(session) == HandoffState("failed", "telegram", "timed out")


@pytest.mark.clause("H-08")
async def test_failed_handoff_keeps_its_reason(store: Store, session: SessionId) -> None:
    await running(store, session)

    assert await store.handoffs.fail(session, "platform not active") is True
    assert await store.handoffs.state(session) == HandoffState("failed", "telegram", "platform not active")


@pytest.mark.clause("H-08")
async def test_first_end_of_a_handoff_stands(store: Store, session: SessionId) -> None:
    await running(store, session)
    await store.handoffs.complete(session)

    assert await store.handoffs.fail(session, "too late") is False
    assert await store.handoffs.state(session) == HandoffState("completed", "telegram", None)


@pytest.mark.clause("H-09")
async def test_reason_is_cut_at_500_characters(store: Store, session: SessionId) -> None:
    await running(store, session)
    await store.handoffs.fail(session, "ä" * 501)

    assert await store.handoffs.state(session) == HandoffState("failed", "telegram", "ä" * 500)


@pytest.mark.clause("H-10")
async def test_unknown_session_has_no_handoff(store: Store) -> None:
    nobody = SessionId("nobody")

    assert await store.handoffs.state(nobody) is None
    assert await store.handoffs.request(nobody, "telegram") is False
    assert await store.handoffs.claim(nobody) is False
    assert await store.handoffs.complete(nobody) is False
    assert await store.handoffs.fail(nobody, "why") is False


@pytest.mark.clause("H-11")
async def test_whole_flow_with_the_transcript_in_order(store: Store, session: SessionId, epoch: Epoch) -> None:
    asked, answered = user("hi"), Assistant((Text("hello"),))
    await store.journal.record(
        session,
        epoch,
        [
            TurnStarted(TurnId("turn-1"), "terminal"),
            MessageAdded(asked),
            MessageAdded(answered),
            TurnEnded(TurnId("turn-1"), "completed"),
        ],
    )
    await store.journal.release(session, epoch)

    assert await store.handoffs.request(session, "telegram")
    assert await store.handoffs.list_pending() == [session]
    assert await store.handoffs.claim(session)
    journal = [one.entry for one in await store.journal.entries(session)]
    assert [entry.message for entry in journal if isinstance(entry, MessageAdded)] == [asked, answered]
    assert await store.handoffs.complete(session)
    assert await store.handoffs.list_pending() == []


async def test_handoffs_left_running_by_a_crash_are_pending_again(store: Store, session: SessionId) -> None:
    for name in ("pending", "completed"):
        await store.sessions.create(NewSession(SessionId(name), "test"))
    await running(store, session)
    await running(store, SessionId("completed"))
    await store.handoffs.complete(SessionId("completed"))
    await store.handoffs.request(SessionId("pending"), "telegram")

    assert await store.handoffs.reclaim() == [session]
    assert sorted(await store.handoffs.list_pending()) == ["pending", session]
    assert await store.handoffs.reclaim() == []


async def test_fork_does_not_inherit_the_handoff(store: Store, session: SessionId) -> None:
    await running(store, session)
    copy = await store.sessions.fork(session, SessionId("copy"))

    assert await store.handoffs.state(copy.id) == HandoffState(None, None, None)


KEY, OTHER = "agent:main:telegram:dm:42", "agent:main:telegram:group:-9:42"


async def test_each_request_has_an_id_of_its_own(store: Store, session: SessionId) -> None:
    assert await store.handoffs.find_running(session) is None
    await running(store, session)
    first = await store.handoffs.find_running(session)
    assert first is not None
    assert (first.platform, first.address) == ("telegram", "")
    await store.handoffs.reclaim()
    await store.handoffs.claim(session)
    assert await store.handoffs.find_running(session) == first
    await store.handoffs.fail(session, "too slow")
    assert await store.handoffs.find_running(session) is None
    await running(store, session)
    second = await store.handoffs.find_running(session)
    assert second is not None
    assert second.id != first.id


async def mail(store: Store, key: str) -> Inbound:
    (kept,) = await store.inbox.accept([Inbound("telegram", "bot", "42", "m1", SessionId("new"), "{}", key)])
    assert kept is not None
    return kept


@pytest.mark.clause("H-18")
async def test_a_running_handoff_binds_chats_and_keeps_them_when_it_completes(store: Store, session: SessionId) -> None:
    await store.chats.bind(KEY, SessionId("before"), "telegram:42")
    assert await store.handoffs.bind(session, [KEY], "telegram:42") is False
    await running(store, session)
    waiting = await mail(store, KEY)
    assert await store.handoffs.bind(session, [KEY, OTHER], "telegram:42") is True
    found = await store.handoffs.find_running(session)
    assert found is not None
    assert found.address == "telegram:42"
    assert [row.id for row in await store.inbox.list_pending(session)] == [waiting.id]
    await store.handoffs.complete(session)
    for key in (KEY, OTHER):
        bound = await store.chats.get(key)
        assert bound is not None
        assert bound.session == session
    assert await store.handoffs.fail(session, "too late") is False


@pytest.mark.clause("H-15")
@pytest.mark.parametrize("crashes", [0, 1])
async def test_a_handoff_that_fails_leaves_its_chats_as_they_were(
    store: Store, session: SessionId, crashes: int
) -> None:
    await store.chats.bind(KEY, SessionId("before"), "telegram:42")
    await running(store, session)
    await store.handoffs.bind(session, [KEY, OTHER], "telegram:42")
    for _ in range(crashes):
        await store.handoffs.reclaim()
        await store.handoffs.claim(session)
        await store.handoffs.bind(session, [KEY, OTHER], "telegram:42")
    waiting = await mail(store, KEY)
    await store.handoffs.fail(session, "blocked")
    bound = await store.chats.get(KEY)
    assert bound is not None
    assert (bound.session, bound.address) == ("before", "telegram:42")
    assert [row.id for row in await store.inbox.list_pending(SessionId("before"))] == [waiting.id]
    assert await store.chats.get(OTHER) is None
    assert await store.chats.list_for(session) == []


@pytest.mark.clause("H-15")
async def test_what_was_said_meanwhile_in_a_chat_that_was_about_nothing_begins_a_conversation(
    store: Store, session: SessionId
) -> None:
    await running(store, session)
    await store.handoffs.bind(session, [KEY], "telegram:42")
    waiting = await mail(store, KEY)
    await store.handoffs.fail(session, "blocked")
    (new,) = await store.inbox.list_sessions()
    assert new != session
    assert [row.id for row in await store.inbox.list_pending(new)] == [waiting.id]
    bound = await store.chats.get(KEY)
    assert bound is not None
    assert bound.session == new


async def test_a_chat_that_has_moved_on_is_not_bound_back(store: Store, session: SessionId) -> None:
    await store.chats.bind(KEY, SessionId("before"), "telegram:42")
    await running(store, session)
    await store.handoffs.bind(session, [KEY], "telegram:42")
    await store.chats.bind(KEY, SessionId("later"), "telegram:42")
    await store.handoffs.fail(session, "blocked")
    bound = await store.chats.get(KEY)
    assert bound is not None
    assert bound.session == "later"
