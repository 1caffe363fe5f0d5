"""A question in a chat: whose answer counts is judged when the answer comes."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from talaria.core.errors import Denied
from talaria.core.ids import SessionId
from talaria.core.questions import Question
from talaria.gateway.chat_person import ChatPerson, Questions
from talaria.gateway.envelope import Principal, read_body
from talaria.gateway.replies import Replies
from talaria.platforms.base import Address, Capabilities
from talaria.store.base import NewSession, Store
from talaria.store.memory import MemoryStore
from talaria.testing import ManualClock
from talaria.testing.patience import PATIENCE_S

USUAL = Capabilities(4000)
SESSION, WHERE = SessionId("s1"), Address("telegram", "42")
ANN = Principal("telegram", "42", "Ann", is_admin=True)
NO_ADMIN = Principal("telegram", "42", "Ann")


@dataclass
class Ann:
    """Somebody who can be asked; `now` is who they are by now."""

    store: Store
    questions: Questions
    clock: ManualClock
    now: Principal | None = ANN
    capabilities: Capabilities = USUAL

    def person(self) -> ChatPerson:
        async def replies() -> Replies:
            return Replies(WHERE, self.capabilities, self.clock)

        return ChatPerson(
            ANN.person,
            SESSION,
            WHERE,
            judge=lambda: self.now,
            replies=replies,
            questions=self.questions,
            outbox=self.store.outbox,
            wake=lambda _: None,
        )

    async def is_asked(self, key: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await self.store.outbox.find(key) is None:
                await asyncio.sleep(0)


@pytest.fixture
async def ann() -> AsyncIterator[Ann]:
    clock = ManualClock()
    async with MemoryStore(clock) as store:
        await store.sessions.create(NewSession(SESSION, "platform"))
        yield Ann(store, Questions(), clock)


@pytest.mark.parametrize("now", [NO_ADMIN, None])
async def test_a_yes_counts_only_from_somebody_who_is_an_admin_at_that_moment(ann: Ann, now: Principal | None) -> None:
    asking = asyncio.create_task(ann.person().allow(Question("q1", "terminal", "ls")))
    await ann.is_asked("question:q1:0")
    ann.now = now
    assert not ann.questions.answer("q1", "once", WHERE, ANN)
    assert not ann.questions.decide("once", WHERE, ANN)
    ann.now = ANN
    assert ann.questions.answer("q1", "once", WHERE, ANN)
    assert await asking == "once"


async def test_whoever_was_asked_may_still_say_no(ann: Ann) -> None:
    asking = asyncio.create_task(ann.person().allow(Question("q1", "terminal", "ls")))
    await ann.is_asked("question:q1:0")
    ann.now = NO_ADMIN
    assert ann.questions.decide("no", WHERE, ANN)
    assert await asking == "no"


async def test_where_no_files_can_be_sent_what_is_too_long_is_refused_with_a_sentence(ann: Ann) -> None:
    ann.capabilities = Capabilities(4000, max_upload_bytes=0)
    asked = Question("q1", "terminal", "Run this?", content="x" * 40_000)
    with pytest.raises(Denied, match=r"files cannot be sent in this chat\. Do it in smaller pieces"):
        await ann.person().allow(asked)
    assert await ann.store.outbox.find("question:q1:file") is None
    row = await ann.store.outbox.find("question:q1:0")
    assert row is not None
    assert "could not be shown here in full (terminal); it was not done." in row.body


async def test_a_file_that_nobody_waits_for_any_more_is_taken_back(ann: Ann) -> None:
    asking = asyncio.create_task(ann.person().allow(Question("q1", "terminal", "Run this?", content="x" * 40_000)))
    await ann.is_asked("question:q1:file")
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    row = await ann.store.outbox.find("question:q1:file")
    assert row is not None
    assert read_body(row.body).is_empty
    assert await ann.store.outbox.find("question:q1:0") is None


async def test_words_count_only_from_somebody_who_may_still_speak(ann: Ann) -> None:
    asking = asyncio.create_task(ann.person().choose("Which colour?", ["red"]))
    async with asyncio.timeout(PATIENCE_S):
        while not ann.questions.is_waiting_for_words(WHERE, ANN):
            await asyncio.sleep(0)
    ann.now = None
    assert not ann.questions.reply("red", WHERE, ANN)
    ann.now = NO_ADMIN
    assert ann.questions.reply("red", WHERE, ANN)
    assert await asking == "red"


async def test_a_question_that_nobody_can_say_yes_to_any_more_is_closed(ann: Ann) -> None:
    asking = asyncio.create_task(ann.person().allow(Question("q1", "terminal", "ls")))
    await ann.is_asked("question:q1:0")
    ann.questions.close_unanswerable()
    assert ann.questions.decide("once", WHERE, Principal("telegram", "43")) is False
    ann.now = NO_ADMIN
    ann.questions.close_unanswerable()
    async with asyncio.timeout(PATIENCE_S):
        assert await asking == "no"
    row = await ann.store.outbox.find("question:q1:0")
    assert row is not None
    assert "no longer open" in row.body
