"""The composition root: the only place that knows everybody."""

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from talaria.agent.limits import Limits
from talaria.config import paths
from talaria.config.load import load
from talaria.config.schema import Config
from talaria.config.secrets import environment as read_environment
from talaria.config.selection import DEMO, Choice, choose, endpoint, is_streaming, local_servers
from talaria.model.clock import Clock, SystemClock
from talaria.model.entries import TurnOrigin
from talaria.model.errors import TalariaError
from talaria.model.ids import OwnerId, SessionId, new_session_id
from talaria.providers.base import Provider
from talaria.providers.demo import DemoProvider
from talaria.runtime.session import LiveSession
from talaria.runtime.setup import Setup
from talaria.store.base import Session, Store
from talaria.store.sqlite.store import SqliteStore
from talaria.tools.approval import Gate, OpenGate
from talaria.tools.base import Tool
from talaria.tools.registry import Toolbox

log = logging.getLogger(__name__)

OpenStore = Callable[[Path, Clock], AbstractAsyncContextManager[Store]]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the outside says: config.yaml, .env and the environment, read once."""

    home: Path
    config: Config
    environment: Mapping[str, str]


def read_settings(home: Path) -> Settings:
    environment = read_environment(paths.secrets_file(home))
    return Settings(home, load(paths.config_file(home), environment), environment)


def open_store(home: Path, clock: Clock | None = None) -> SqliteStore:
    """All that a command needs which only looks at conversations."""
    return SqliteStore(home, clock or SystemClock())


@dataclass(frozen=True, slots=True)
class Application:
    settings: Settings
    store: Store
    owner: OwnerId
    provider: Provider
    toolbox: Toolbox
    clock: Clock
    is_stand_in: bool = False
    """The provider is the demo, because nothing else was found or asked for."""

    def session(
        self,
        row: Session | None = None,
        *,
        id: SessionId | None = None,
        cwd: Path,
        origin: TurnOrigin,
        gate: Gate | None = None,
        max_rounds: int | None = None,
        instructions: str = "",
    ) -> LiveSession:
        """A conversation: that of `row`, or a new one (under `id`, if given)."""
        agent = self.settings.config.agent
        limits = Limits(max_rounds or agent.max_turns, agent.max_tokens, agent.max_cost_usd, agent.max_seconds)
        setup = Setup(
            cwd=Path(row.cwd) if row else cwd,
            home=self.settings.home,
            origin=origin,
            limits=limits,
            effort=self.settings.config.model.reasoning_effort,
            instructions=instructions,
            is_streaming=is_streaming(self.provider.endpoint.provider, self.settings.config),
        )
        return LiveSession(
            row.id if row else id or new_session_id(self.clock.now()),
            row=row,
            setup=setup,
            store=self.store,
            owner=self.owner,
            provider=self.provider,
            toolbox=self.toolbox,
            gate=gate or OpenGate(),
            clock=self.clock,
        )


@asynccontextmanager
async def open_application(
    settings: Settings,
    *,
    model: str | None = None,
    tools: Iterable[Tool] | None = None,
    kind: str = "terminal",
    clock: Clock | None = None,
    open_store: OpenStore = open_store,
) -> AsyncGenerator[Application]:
    """Everything wired together, open until the context ends. `model` is what the person asked for, if anything."""
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        choice = choose(settings.config, settings.environment, model) or await _local_choice(settings)
        provider = await _provider(choice or Choice(DEMO), settings, stack)
        store = await stack.enter_async_context(open_store(settings.home, clock))
        owner = await store.owners.join(kind)
        stack.push_async_callback(_leave, store, owner)
        toolbox = Toolbox(_builtin() if tools is None else tools)
        yield Application(settings, store, owner, provider, toolbox, clock, is_stand_in=choice is None)


async def _leave(store: Store, owner: OwnerId) -> None:
    """Only tidiness: who is alive is told by the kernel's lock, so a failure here must not spoil what was done."""
    try:
        await store.owners.leave(owner)
    except TalariaError as fault:
        log.warning("owner %s not signed off: %s", owner, fault)


def _builtin() -> Iterable[Tool]:
    from talaria.tools.builtin import BUILTIN  # noqa: PLC0415  (an embedding program may bring only its own)

    return BUILTIN


async def _provider(choice: Choice, settings: Settings, stack: AsyncExitStack) -> Provider:
    if choice.provider == DEMO:
        return DemoProvider(paths.secrets_file(settings.home))
    from talaria.net.client import HttpClient  # noqa: PLC0415  (100 ms that the demo does not pay)
    from talaria.providers.http import HttpProvider  # noqa: PLC0415
    from talaria.providers.wires import wire_for  # noqa: PLC0415

    chosen = endpoint(choice, settings.config, settings.environment)
    client = await stack.enter_async_context(HttpClient())
    return HttpProvider(chosen, wire_for(chosen.wire), client)


async def _local_choice(settings: Settings) -> Choice | None:
    """A model server on this machine, or where the settings say that one is."""
    from talaria.providers import local  # noqa: PLC0415

    listening = await local.open_ports(local_servers(settings.config, settings.environment))
    if not listening:
        return None
    from talaria.net.client import HttpClient  # noqa: PLC0415

    async with HttpClient() as client:
        found = await local.first_model(listening, client)
    return Choice(found.provider, found.model) if found else None
