"""When a live session holds its conversation: for no longer than it must, and with no more commits than it must."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
from tests.port_proxies import JournalProxy

from talaria.agent.hooks import NoHooks, Notify, SessionContext
from talaria.core.entries import Noted, TurnOutcome
from talaria.core.errors import SessionBusy, StoreUnavailable
from talaria.core.ids import Epoch, OwnerId, SessionId
from talaria.core.messages import Message, User, user
from talaria.store.base import Held, Journal, Write

if TYPE_CHECKING:
    from tests.scenarios.agent.conftest import Scene


class Watched(JournalProxy):
    """Knows what was done besides reading, and does something before a record if it is told to."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.done: list[str] = []
        self.has_arrived = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.is_full = False

    async def seize(self, session: SessionId, owner: OwnerId) -> Epoch | Held:
        self.done.append("seize")
        return await super().seize(session, owner)

    async def record(self, session: SessionId, epoch: Epoch, writes: Sequence[Write]) -> bool:
        self.done.append("record")
        self.has_arrived.set()
        await self.may_go_on.wait()
        if self.is_full:
            raise StoreUnavailable("The disk is full.")
        return await super().record(session, epoch, writes)

    async def release(self, session: SessionId, epoch: Epoch, *, leaves_mail: bool = False) -> bool:
        self.done.append("release")
        return await super().release(session, epoch, leaves_mail=leaves_mail)


async def somebody_else(scene: "Scene", session: SessionId, *writes: Write) -> OwnerId:
    """Another process that has had the conversation, and still has it if it wrote nothing."""
    rival = await scene.store.owners.join("test")
    epoch = await scene.store.journal.seize(session, rival)
    assert not isinstance(epoch, Held)
    if writes:
        await scene.store.journal.record(session, epoch, writes)
        await scene.store.journal.release(session, epoch)
    return rival


async def test_every_turn_is_begun_and_ended_in_one_commit_each(scene: "Scene") -> None:
    scene.provider.say("one", "two")
    journal = Watched(scene.store.journal)
    live = await scene.session(journal=journal)
    await live.ask(user("first"))
    await live.ask(user("second"))
    assert journal.done == ["record", "record"] * 2


async def test_what_another_process_wrote_between_two_turns_is_read_before_the_second(scene: "Scene") -> None:
    scene.provider.say("one", "two")
    journal = Watched(scene.store.journal)
    live = await scene.session(journal=journal)
    await live.ask(user("first"))
    await somebody_else(scene, live.id, Noted("from elsewhere"))

    report = await live.ask(user("second"))

    assert report.outcome == "completed"
    assert journal.done[2:] == ["record", "seize", "record", "record"]
    said = [one.text for one in await scene.messages() if isinstance(one, User)]
    assert [text.rpartition("\n")[2] for text in said] == ["first", "second"]


async def test_a_conversation_that_another_process_holds_is_busy_also_after_a_turn_of_ours(scene: "Scene") -> None:
    scene.provider.say("one", "two")
    live = await scene.session()
    await live.ask(user("first"))
    rival = await somebody_else(scene, live.id)

    with pytest.raises(SessionBusy):
        await live.ask(user("not taken"))

    assert not live.is_in_use
    await scene.store.owners.leave(rival)
    assert (await live.ask(user("second"))).text == "two"
    assert await scene.ends() == ["completed", "completed"]


async def test_a_turn_that_is_cancelled_while_it_is_begun_at_once_is_closed(scene: "Scene") -> None:
    scene.provider.say("one", "two")
    journal = Watched(scene.store.journal)
    live = await scene.session(journal=journal)
    await live.ask(user("first"))
    journal.has_arrived.clear()
    journal.may_go_on.clear()
    asking = asyncio.create_task(live.ask(user("second")))
    await journal.has_arrived.wait()

    asking.cancel()
    await asyncio.sleep(0)
    journal.may_go_on.set()

    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await scene.ends() == ["completed", "interrupted"]
    assert not live.is_in_use


async def test_one_who_is_cancelled_while_another_process_was_quicker_leaves_nothing(scene: "Scene") -> None:
    scene.provider.say("one")
    journal = Watched(scene.store.journal)
    live = await scene.session(journal=journal)
    await live.ask(user("first"))
    await somebody_else(scene, live.id, Noted("from elsewhere"))
    journal.has_arrived.clear()
    journal.may_go_on.clear()
    asking = asyncio.create_task(live.ask(user("second")))
    await journal.has_arrived.wait()

    asking.cancel()
    await asyncio.sleep(0)
    journal.may_go_on.set()

    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await scene.ends() == ["completed"]
    assert not live.is_in_use


async def test_a_message_is_not_taken_while_the_store_is_not_well(scene: "Scene") -> None:
    scene.provider.say("one", "two")
    journal = Watched(scene.store.journal)
    live = await scene.session(journal=journal)
    await live.ask(user("first"))
    journal.is_full = True

    with pytest.raises(StoreUnavailable):
        await live.ask(user("second"))

    assert scene.clock.slept == []  # who waits for the store does so outside of a turn
    journal.is_full = False
    assert (await live.ask(user("second"))).text == "two"
    assert await scene.ends() == ["completed", "completed"]


async def test_those_who_hear_of_turns_are_called_while_the_conversation_is_held(scene: "Scene") -> None:
    held: list[bool] = []

    class Looking(NoHooks):
        @property
        def is_empty(self) -> bool:
            return False

        async def look(self) -> None:
            rival = await scene.store.owners.join("test")
            held.append(isinstance(await scene.store.journal.seize(live.id, rival), Held))

        async def before_turn(
            self, context: SessionContext, asked: str, history: Sequence[Message], tell: Notify
        ) -> Sequence[str]:
            await self.look()
            return ()

        async def after_turn(
            self, context: SessionContext, asked: str, answer: str, history: Sequence[Message], outcome: TurnOutcome
        ) -> None:
            await self.look()

    scene.provider.say("one", "two")
    live = await scene.session(hooks=Looking())
    await live.ask(user("first"))
    await live.ask(user("second"))
    assert held == [True] * 4
