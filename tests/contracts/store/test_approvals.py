import asyncio

import pytest

from talaria.core.ids import ApprovalId, CallId, OwnerId, SessionId, TurnId, new_approval_id
from talaria.store.base import BrokenRuleError, NewSession, Store
from talaria.store.permission_ports import Approval, NewApproval
from talaria.testing.manual_clock import ManualClock

ANN, BOB = "ann", "bob"
TEN_MINUTES_S = 600.0
FIRST, SECOND = ApprovalId("7f3a" + "0" * 28), ApprovalId("c0de" + "1" * 28)
DIGEST, OTHER_DIGEST = "sha256:1", "sha256:2"


class Questions:
    """Asked by Ann in `session`."""

    def __init__(self, store: Store, session: SessionId, owner: OwnerId, clock: ManualClock) -> None:
        self._approvals = store.approvals
        self._session = session
        self._owner = owner
        self._clock = clock

    async def ask(
        self, id: ApprovalId = FIRST, *, session: SessionId | None = None, owner: OwnerId | None = None
    ) -> None:
        await self._approvals.request(
            NewApproval(
                id=id,
                session=session or self._session,
                turn=TurnId("turn-1"),
                call=CallId("call-1"),
                owner=owner or self._owner,
                requester=ANN,
                tool="terminal",
                question="rm -r build",
                digest=DIGEST,
                expires_at=self._clock.now() + TEN_MINUTES_S,
            )
        )

    async def ask_and_allow(self, id: ApprovalId = FIRST) -> None:
        await self.ask(id)
        assert await self._approvals.decide(id, is_allowed=True, by=ANN)


@pytest.fixture
def questions(store: Store, session: SessionId, owner: OwnerId, clock: ManualClock) -> Questions:
    return Questions(store, session, owner, clock)


async def seen(store: Store, id: ApprovalId) -> Approval:
    found = await store.approvals.find(id)
    assert found is not None
    return found


async def waiting(store: Store, session: SessionId | None = None) -> list[ApprovalId]:
    return [one.id for one in await store.approvals.list_pending(session)]


async def allow(store: Store, id: ApprovalId, by: str = ANN) -> bool:
    return await store.approvals.decide(id, is_allowed=True, by=by)


async def deny(store: Store, id: ApprovalId, by: str = ANN) -> bool:
    return await store.approvals.decide(id, is_allowed=False, by=by)


def test_id_has_128_bits_of_its_own() -> None:
    ids = {new_approval_id() for _ in range(100)}

    assert len(ids) == 100
    assert {len(bytes.fromhex(id)) for id in ids} == {16}


async def test_question_is_kept_as_it_was_asked(
    store: Store, session: SessionId, owner: OwnerId, questions: Questions, clock: ManualClock
) -> None:
    await questions.ask()

    assert await seen(store, FIRST) == Approval(
        id=FIRST,
        session=session,
        turn=TurnId("turn-1"),
        call=CallId("call-1"),
        owner=owner,
        requester=ANN,
        tool="terminal",
        question="rm -r build",
        digest=DIGEST,
        expires_at=clock.now() + TEN_MINUTES_S,
        state="pending",
        created_at=clock.now(),
        decided_by=None,
        decided_at=None,
    )
    assert await store.approvals.list_pending() == [await seen(store, FIRST)]


async def test_question_is_asked_once(store: Store, questions: Questions) -> None:
    await questions.ask()
    assert await deny(store, FIRST)

    with pytest.raises(BrokenRuleError):
        await questions.ask()

    assert (await seen(store, FIRST)).state == "denied"


async def test_question_needs_a_session(store: Store, questions: Questions) -> None:
    with pytest.raises(BrokenRuleError):
        await questions.ask(session=SessionId("nobody"))

    assert await store.approvals.find(FIRST) is None


async def test_allowed_call_may_run_once(store: Store, questions: Questions, clock: ManualClock) -> None:
    await questions.ask()
    clock.advance(5)

    assert await allow(store, FIRST) is True
    allowed = await seen(store, FIRST)
    assert (allowed.state, allowed.decided_by, allowed.decided_at) == ("allowed", ANN, clock.now())
    assert await waiting(store) == []

    assert await store.approvals.use(FIRST, DIGEST) is True
    assert (await seen(store, FIRST)).state == "used"


async def test_used_approval_is_not_used_again(store: Store, questions: Questions) -> None:
    await questions.ask_and_allow()
    assert await store.approvals.use(FIRST, DIGEST)

    assert await store.approvals.use(FIRST, DIGEST) is False
    assert await allow(store, FIRST) is False
    assert await store.approvals.use(FIRST, DIGEST) is False


async def test_denied_call_never_runs(store: Store, questions: Questions) -> None:
    await questions.ask()

    assert await deny(store, FIRST) is True
    assert await store.approvals.use(FIRST, DIGEST) is False
    denied = await seen(store, FIRST)
    assert (denied.state, denied.decided_by) == ("denied", ANN)
    assert await waiting(store) == []


async def test_call_does_not_run_before_the_answer(store: Store, questions: Questions) -> None:
    await questions.ask()

    assert await store.approvals.use(FIRST, DIGEST) is False
    assert await waiting(store) == [FIRST]


async def test_first_answer_stands(store: Store, questions: Questions) -> None:
    await questions.ask_and_allow(FIRST)
    await questions.ask(SECOND)
    assert await deny(store, SECOND)

    assert await deny(store, FIRST) is False
    assert await allow(store, SECOND) is False
    assert (await seen(store, FIRST)).state == "allowed"
    assert (await seen(store, SECOND)).state == "denied"


@pytest.mark.parametrize("by", [BOB, "Ann", "ann ", ""])
async def test_nobody_but_the_requester_may_answer(store: Store, questions: Questions, by: str) -> None:
    await questions.ask()

    assert await allow(store, FIRST, by) is False
    assert await deny(store, FIRST, by) is False
    assert await waiting(store) == [FIRST]
    assert await allow(store, FIRST, ANN) is True


async def test_question_expires(store: Store, questions: Questions, clock: ManualClock) -> None:
    await questions.ask()
    clock.advance(TEN_MINUTES_S - 1)
    assert await waiting(store) == [FIRST]

    clock.advance(1)

    assert await waiting(store) == []
    assert await allow(store, FIRST) is False
    assert await deny(store, FIRST) is False
    assert (await seen(store, FIRST)).state == "pending"


async def test_answer_expires_with_its_question(store: Store, questions: Questions, clock: ManualClock) -> None:
    await questions.ask_and_allow()
    clock.advance(TEN_MINUTES_S)

    assert await store.approvals.use(FIRST, DIGEST) is False
    assert (await seen(store, FIRST)).state == "allowed"


async def test_question_dies_with_its_owner_whoever_comes_after(
    store: Store, questions: Questions, owner: OwnerId
) -> None:
    await questions.ask()
    await store.owners.leave(owner)
    await store.owners.join("test")

    assert await waiting(store) == []
    assert await allow(store, FIRST) is False
    assert await deny(store, FIRST) is False
    assert (await seen(store, FIRST)).state == "pending"


async def test_answer_that_was_not_used_dies_with_its_owner(store: Store, questions: Questions, owner: OwnerId) -> None:
    await questions.ask_and_allow()
    await store.owners.leave(owner)
    await store.owners.join("test")

    assert await store.approvals.use(FIRST, DIGEST) is False
    assert (await seen(store, FIRST)).state == "allowed"


async def test_question_outlives_the_owners_of_others(store: Store, questions: Questions) -> None:
    other = await store.owners.join("test")
    await questions.ask(FIRST)
    await questions.ask(SECOND, owner=other)

    await store.owners.leave(other)

    assert await waiting(store) == [FIRST]
    assert await allow(store, FIRST) is True


async def test_changed_call_is_not_what_was_allowed(store: Store, questions: Questions) -> None:
    await questions.ask_and_allow()

    assert await store.approvals.use(FIRST, OTHER_DIGEST) is False
    assert await store.approvals.use(FIRST, "") is False
    assert await store.approvals.use(FIRST, DIGEST) is True


async def test_answer_is_for_its_own_question_only(store: Store, questions: Questions) -> None:
    await questions.ask_and_allow(FIRST)
    await questions.ask(SECOND)

    assert await store.approvals.use(SECOND, DIGEST) is False
    assert await store.approvals.use(FIRST, DIGEST) is True
    assert await waiting(store) == [SECOND]


async def test_of_many_who_answer_at_once_one_is_heard(store: Store, questions: Questions) -> None:
    await questions.ask()

    answers = await asyncio.gather(*(answer(store, FIRST) for answer in (allow, deny) * 10))

    assert sorted(answers) == [False] * 19 + [True]
    is_allowed = answers.index(True) % 2 == 0
    assert (await seen(store, FIRST)).state == ("allowed" if is_allowed else "denied")


async def test_of_many_who_use_it_at_once_one_may(store: Store, questions: Questions) -> None:
    await questions.ask_and_allow()

    uses = await asyncio.gather(*(store.approvals.use(FIRST, DIGEST) for _ in range(20)))

    assert sorted(uses) == [False] * 19 + [True]


async def test_unknown_question_is_neither_answered_nor_used(store: Store) -> None:
    assert await allow(store, FIRST) is False
    assert await store.approvals.use(FIRST, DIGEST) is False
    assert await store.approvals.find(FIRST) is None
    assert await waiting(store) == []


async def test_pending_questions_are_listed_oldest_first_for_all_sessions_or_one(
    store: Store, session: SessionId, questions: Questions
) -> None:
    other = (await store.sessions.create(NewSession(SessionId("session-2"), "test"))).id
    third = ApprovalId("0" * 32)
    await questions.ask(SECOND)
    await questions.ask(FIRST, session=other)
    await questions.ask(third)

    assert await waiting(store) == [SECOND, FIRST, third]
    assert await waiting(store, session) == [SECOND, third]
    assert await waiting(store, other) == [FIRST]
    assert await waiting(store, SessionId("nobody")) == []


@pytest.mark.parametrize("name", ["7f3a", "7F3A", "7f3a0", FIRST, FIRST.upper()])
async def test_pending_question_is_found_by_a_beginning(store: Store, questions: Questions, name: str) -> None:
    await questions.ask(FIRST)
    await questions.ask(SECOND)

    assert await store.approvals.find(name) == await seen(store, FIRST)


@pytest.mark.parametrize("name", ["", "7f3", "7f3b", "3a00", "%", "7f3_", "____", FIRST + "0", " 7f3a"])
async def test_nothing_else_finds_it(store: Store, questions: Questions, name: str) -> None:
    await questions.ask()

    assert await store.approvals.find(name) is None


async def test_beginning_that_fits_many_finds_none(store: Store, questions: Questions) -> None:
    twin = ApprovalId("7f3a" + "1" * 28)
    await questions.ask(FIRST)
    await questions.ask(twin)

    assert await store.approvals.find("7f3a") is None
    assert await store.approvals.find("7f3a1") == await seen(store, twin)


async def test_beginning_means_the_one_that_still_waits(
    store: Store, questions: Questions, owner: OwnerId, clock: ManualClock
) -> None:
    answered, orphaned, late, fresh = (ApprovalId(f"7f3a{number}" + "0" * 27) for number in range(4))
    other = await store.owners.join("test")
    await questions.ask(late)
    clock.advance(TEN_MINUTES_S)
    await questions.ask_and_allow(answered)
    await questions.ask(orphaned, owner=other)
    await store.owners.leave(other)
    assert await store.approvals.find("7f3a") is None

    await questions.ask(fresh)

    assert await store.approvals.find("7f3a") == await seen(store, fresh)
    for id in (answered, orphaned, late):
        assert (await seen(store, id)).id == id


async def test_deleted_session_takes_its_questions_along(
    store: Store, session: SessionId, questions: Questions
) -> None:
    other = (await store.sessions.create(NewSession(SessionId("session-2"), "test"))).id
    await questions.ask_and_allow(FIRST)
    await questions.ask(SECOND, session=other)

    await store.sessions.delete(session)

    assert await store.approvals.find(FIRST) is None
    assert await store.approvals.use(FIRST, DIGEST) is False
    assert await waiting(store) == [SECOND]


async def test_fork_asks_nothing(store: Store, session: SessionId, questions: Questions) -> None:
    await questions.ask()

    copy = await store.sessions.fork(session, SessionId("copy"))

    assert await waiting(store, copy.id) == []
    assert await waiting(store) == [FIRST]
