"""A live session over the in-memory store and a scripted model: the whole agent without a disk or a network."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tests.live_sessions import process_services
from tests.port_proxies import StoreProxy
from tests.scripted_provider import ScriptedProvider

from talaria.agent.budget import Limits
from talaria.agent.hooks import Hooks
from talaria.core.entries import MessageAdded, TurnEnded
from talaria.core.events import Event
from talaria.core.ids import OwnerId, SessionId
from talaria.core.messages import Message
from talaria.providers.base import Route
from talaria.providers.upstream import Upstream
from talaria.runtime.session import LiveSession
from talaria.runtime.session_config import SessionConfig, TurnOptions
from talaria.runtime.session_services import SessionServices
from talaria.store.base import Journal
from talaria.store.memory import MemoryStore
from talaria.testing.manual_clock import ManualClock
from talaria.tools.base import Gate, OpenGate, Tool
from talaria.tools.registry import Toolbox

SESSION = SessionId("scenario")


class Scene:
    def __init__(self, store: MemoryStore, clock: ManualClock, folder: Path) -> None:
        self.store = store
        self.clock = clock
        self.provider = ScriptedProvider()
        self.events: list[Event] = []
        self._folder = folder
        self._owners: list[OwnerId] = []

    async def session(
        self,
        *tools: Tool,
        limits: Limits | None = None,
        gate: Gate | None = None,
        journal: Journal | None = None,
        clock: ManualClock | None = None,
        hooks: Hooks | None = None,
    ) -> LiveSession:
        """The conversation as a fresh process would open it, the one before it being gone."""
        for owner in self._owners:
            await self.store.owners.leave(owner)
        owner = await self.store.owners.join("test")
        self._owners = [owner]
        config = SessionConfig(route=Route(self.provider.endpoint), cwd=self._folder, home=self._folder)
        return LiveSession(
            await self.store.sessions.get(SESSION),
            SessionServices(SESSION, config, Toolbox(tools), gate or OpenGate(), hooks=hooks),
            options=TurnOptions(limits or Limits()),
            process=process_services(
                StoreProxy(self.store, journal or self.store.journal),
                owner,
                Upstream(lambda _: self.provider, clock or self.clock),
                clock or self.clock,
            ),
        )

    async def messages(self) -> Sequence[Message]:
        entries = await self.store.journal.entries(SESSION)
        return [recorded.entry.message for recorded in entries if isinstance(recorded.entry, MessageAdded)]

    async def ends(self) -> list[str]:
        entries = await self.store.journal.entries(SESSION)
        return [recorded.entry.outcome for recorded in entries if isinstance(recorded.entry, TurnEnded)]


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    clock = ManualClock(auto=True)
    async with MemoryStore(clock) as store:
        yield Scene(store, clock, tmp_path)
