"""A gateway and a terminal on one home, both in this process; real time, which can be turned forward."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from tests.contracts.pool.travelling import TravellingClock
from tests.scenarios.gateway.conftest import harness, run_folder

from talaria.app.build import Application, open_application
from talaria.core.ids import SessionId
from talaria.core.messages import user
from talaria.gateway.handoffs import EVERY_S, hand_off
from talaria.store.chat_ports import HandoffState
from talaria.testing import Reply
from talaria.testing.harness import OWNER, Harness

__all__ = ["harness", "run_folder"]

FORUM = "-100500"


class Terminal:
    """Where a conversation begins that goes over to a chat."""

    def __init__(self, app: Application, harness: Harness, clock: TravellingClock) -> None:
        self.app = app
        self.harness = harness
        self.clock = clock

    async def talk(
        self, session: str = "s1", text: str = "the cat is white", answer: Reply | str = "Noted."
    ) -> SessionId:
        self.harness.model.say(answer)
        row = await self.app.store.sessions.get(SessionId(session))
        live = self.app.session(row, id=SessionId(session), cwd=self.harness.home, origin="terminal")
        await live.ask(user(text))
        return live.id

    async def request(self, session: SessionId, platform: str = "telegram") -> HandoffState:
        """As `hand_off` does; how it ended."""
        assert await self.app.store.handoffs.request(session, platform)
        return await self.ended(session)

    async def ended(self, session: SessionId) -> HandoffState:
        async def has_ended() -> bool:
            if (await self.state(session)).state == "pending":
                self.clock.advance(EVERY_S)
            return (await self.state(session)).state in ("completed", "failed")

        await self.harness.until(has_ended)
        return await self.state(session)

    async def state(self, session: SessionId) -> HandoffState:
        state = await self.app.store.handoffs.state(session)
        assert state is not None
        return state

    async def hand_off(self, session: SessionId, platform: str = "telegram") -> None:
        await hand_off(self.app.store, self.clock, session, platform)


@pytest.fixture
async def terminal(harness: Harness) -> AsyncIterator[Terminal]:
    clock = TravellingClock()
    harness.gateway_clock = clock
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(open_application(harness.settings(), tools=(), clock=clock))
        yield Terminal(app, harness, clock)


@pytest.fixture
def in_forum(harness: Harness) -> None:
    """The home channel is a group with topics."""
    harness.telegram.group(FORUM, is_forum=True)
    allowed = {"allowed_users": [OWNER, "1002"], "allowed_chats": [FORUM], "require_mention": False}
    harness.add_platform("telegram", {**harness.telegram.settings, **allowed, "home_channel": FORUM})


@pytest.fixture
def in_chat(harness: Harness) -> None:
    """The home channel is the chat of one person, who has spoken there before."""
    harness.telegram.list_messages(user=OWNER)
    harness.add_platform("telegram", {**harness.telegram.settings, "allowed_users": [OWNER], "home_channel": OWNER})
