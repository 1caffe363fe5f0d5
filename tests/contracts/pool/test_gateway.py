"""How the gateway uses the session pool: what a message, a command and new settings do to a live session."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.port_proxies import InboxProxy, StoreProxy
from tests.scenarios.gateway.conftest import harness as gateway_house
from tests.scenarios.gateway.conftest import run_folder
from tests.waiting import until

from talaria.app.build import open_application, open_store
from talaria.app.settings import Settings
from talaria.config.load import decode
from talaria.core.clock import Clock
from talaria.core.ids import InboxId, SessionId
from talaria.core.messages import user
from talaria.gateway.service import Gateway
from talaria.runtime.session import LiveSession
from talaria.store.base import Store
from talaria.store.chat_ports import Inbox, Outgoing
from talaria.store.memory import MemoryStore
from talaria.testing import Reply
from talaria.testing.harness import OWNER, Harness
from talaria.testing.manual_clock import ManualClock
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.chat_service import Slow
from talaria.testing.servers.scripted_replies import Faults

__all__ = ["gateway_house", "run_folder"]

KEY = f"agent:main:telegram:dm:{OWNER}"
GROUP, OTHER = "-100777", "1002"


@pytest.fixture
def gateway(gateway_house: Harness) -> Harness:
    return gateway_house


async def live_in(house: Harness, key: str = KEY) -> LiveSession:
    assert house.gateway is not None
    live = house.gateway.gateway.pool.find(await house.session_of(key))
    assert live is not None
    return live


async def until_idle(live: LiveSession) -> None:
    while live.is_in_use:
        await asyncio.sleep(0.01)


@pytest.mark.clause("C-07")
async def test_the_messages_of_a_chat_share_a_live_session(gateway: Harness) -> None:
    gateway.model.say("One.", "Two.")
    async with gateway.serve():
        await gateway.telegram.say("first")
        await gateway.wait_for_messages(1)
        live = await live_in(gateway)
        await gateway.telegram.say("second")
        await gateway.wait_for_messages(2)
        assert await live_in(gateway) is live


@pytest.mark.clause("C-X4")
async def test_what_may_differ_from_turn_to_turn_is_read_anew_and_the_live_session_stays(gateway: Harness) -> None:
    gateway.model.say("One.", "Two.", "Three.")
    async with gateway.serve() as gateway_app:
        await gateway.telegram.say("first")
        await gateway.wait_for_messages(1)
        live = await live_in(gateway)
        gateway.config["model"]["reasoning_effort"] = "high"
        await gateway_app.reload(gateway.settings())
        await gateway.telegram.say("second")
        await gateway.wait_for_messages(2)
        assert await live_in(gateway) is live
        gateway.config["model"]["default"] = "another"
        await gateway_app.reload(gateway.settings())
        await gateway.telegram.say("third")
        await gateway.wait_for_messages(3)
        assert await live_in(gateway) is not live
    asked = [request.json for request in gateway.model.requests]
    assert [one.get("reasoning_effort") for one in asked] == [None, "high", "high"]
    assert [one["model"] for one in asked] == ["scripted", "scripted", "another"]


@pytest.mark.clause("C-X8")
async def test_another_conversation_leaves_the_live_session_and_a_turn_taken_back_does_not(gateway: Harness) -> None:
    gateway.model.say("One.", "Two.", "Three.")
    async with gateway.serve() as gateway_app:
        await gateway.telegram.say("the cat is white")
        await gateway.wait_for_messages(1)
        first = await live_in(gateway)
        await gateway.telegram.say("/undo")
        await gateway.wait_for_messages(2)
        await gateway.telegram.say("the dog is black")
        await gateway.wait_for_messages(3)
        assert await live_in(gateway) is first
        assert "the cat is white" not in gateway.model.requests[-1].body.decode()
        for number, command in enumerate(("/branch", "/new", f"/resume {first.id}"), 4):
            left = await live_in(gateway)
            await gateway.telegram.say(command)
            await gateway.wait_for_messages(number)
            await gateway.until(lambda left=left: gateway_app.gateway.pool.find(left.id) is not left)
        assert await gateway.session_of(KEY) == first.id
        await gateway.telegram.say("and now?")
        await gateway.wait_for_messages(7)
        assert "the dog is black" in gateway.model.requests[-1].body.decode()
        assert await live_in(gateway) is not first


@pytest.mark.clause("C-28")
async def test_who_speaks_next_may_be_somebody_else_while_a_turn_still_runs(gateway: Harness) -> None:
    allowed = {"allowed_users": [OWNER, OTHER], "allowed_chats": [GROUP], "require_mention": False}
    gateway.add_platform("telegram", {**gateway.telegram.settings, **allowed})
    gateway.model.say(Reply("First.", faults=Faults(first_byte_delay_s=0.3)), "Second.")
    async with gateway.serve():
        await gateway.telegram.say("one", chat=GROUP, thread="7")
        await asyncio.to_thread(gateway.model.wait_for_requests, 1)
        await gateway.telegram.say("two", chat=GROUP, thread="7", user=OTHER)
        assert [one.text for one in await gateway.wait_for_messages(2, chat=GROUP)] == ["First.", "Second."]


@pytest.mark.clause("C-28")
async def test_a_conversation_is_free_for_others_after_it_was_stopped(gateway: Harness) -> None:
    gateway.model.say(Reply(faults=Faults(hang=True)), "At the terminal.")
    async with gateway.serve() as gateway_app:
        await gateway.telegram.say("go")
        await asyncio.to_thread(gateway.model.wait_for_requests, 1)
        live = await live_in(gateway)
        await gateway.telegram.say("/stop")
        await gateway.wait_for_messages(1)
        async with asyncio.timeout(PATIENCE_S):
            await until_idle(live)
        async with open_application(gateway.settings(), tools=()) as terminal:
            row = await gateway_app.app.store.sessions.get(live.id)
            elsewhere = terminal.session(row, cwd=gateway.home, origin="terminal")
            assert (await elsewhere.ask(user("and here?"))).text == "At the terminal."


class SlowInbox(InboxProxy):
    """Finishes nothing before it may."""

    def __init__(self, inbox: Inbox, may_finish: asyncio.Event) -> None:
        super().__init__(inbox)
        self._may_finish = may_finish

    async def finish(self, session: SessionId, ids: Sequence[InboxId], replies: Sequence[Outgoing] = ()) -> None:
        await self._may_finish.wait()
        await super().finish(session, ids, replies)


@pytest.mark.clause("C-28")
async def test_a_conversation_is_let_go_of_when_a_command_takes_longer_than_the_turn_beside_it(
    gateway: Harness,
) -> None:
    may_finish = asyncio.Event()

    @asynccontextmanager
    async def opened(home: Path, clock: Clock) -> AsyncGenerator[Store]:
        async with open_store(home, clock) as store:
            yield StoreProxy(store, store.journal, inbox=SlowInbox(store.inbox, may_finish))

    gateway.open_store = opened
    gateway.model.say(Reply("Done.", faults=Faults(first_byte_delay_s=0.2)))
    async with gateway.serve():
        await gateway.telegram.say("go")
        await asyncio.to_thread(gateway.model.wait_for_requests, 1)
        await gateway.telegram.say("/whoami")
        await gateway.wait_for_messages(1)
        live = await live_in(gateway)
        await gateway.until(lambda: not live.is_busy)
        may_finish.set()
        await gateway.wait_for_messages(2)
        async with asyncio.timeout(PATIENCE_S):
            await until_idle(live)


@pytest.mark.clause("C-24")
async def test_one_whose_attachments_are_still_on_their_way_does_not_miss_its_turn(gateway: Harness) -> None:
    gateway.config["gateway"]["max_live_sessions"] = 1
    gateway.add_platform("telegram", {**gateway.telegram.settings, "allowed_users": [OWNER, OTHER]})
    gateway.model.say("For the other.", "Seen.")
    async with gateway.serve():
        file = gateway.telegram.keep_file(b"words")
        gateway.telegram.fault("getFile", Slow(0.4))
        document = {"file_id": file, "file_unique_id": file, "file_name": "a.txt", "file_size": 5}
        await gateway.telegram.post({"document": document, "caption": "look"})
        await gateway.telegram.wait_for_calls("getfile", 1)
        await gateway.telegram.say("me, too", user=OTHER)
        assert [one.text for one in await gateway.wait_for_messages(1, user=OTHER)] == ["For the other."]
        assert [one.text for one in await gateway.wait_for_messages(1)] == ["Seen."]


@pytest.mark.clause("C-X1")
async def test_the_first_sweep_is_after_a_minute_and_then_every_five(tmp_path: Path) -> None:
    clock = ManualClock()
    config = {"model": {"default": "demo"}, "gateway": {"live_session_idle_s": 10}}
    settings = Settings(tmp_path, decode(config, tmp_path / "config.yaml"), {})
    async with open_application(settings, clock=clock, tools=(), open_store=lambda _, clock: MemoryStore(clock)) as app:
        gateway, session = Gateway(app, settings.config.gateway, ()), SessionId("idle")
        setup = app.session_config(cwd=tmp_path, origin="platform")
        running = asyncio.create_task(gateway.run())
        for number, wait_s in enumerate((60.0, 300.0, 300.0)):
            await until(lambda number=number, wait_s=wait_s: clock.slept.count(wait_s) >= max(1, number))
            gateway.pool.get(session, setup, lambda: app.live_session(session, None, setup))
            gateway.pool.touch(session)
            clock.advance(wait_s - 1)
            for _ in range(50):
                await asyncio.sleep(0)
            assert len(gateway.pool) == 1
            clock.advance(1)
            await until(lambda: len(gateway.pool) == 0)
        gateway.stop()
        while not running.done():
            clock.advance(1)
            await asyncio.sleep(0)
        await running
