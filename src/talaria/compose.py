"""The composition root: the only place that knows everybody."""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from talaria.agent.limits import Limits
from talaria.config import paths
from talaria.config.load import load
from talaria.config.schema import Config
from talaria.config.secrets import environment as read_environment
from talaria.config.selection import DEMO, Choice, choose, endpoint
from talaria.model.clock import Clock, SystemClock
from talaria.model.entries import TurnOrigin
from talaria.model.ids import OwnerId, SessionId, new_session_id
from talaria.providers.base import Provider
from talaria.providers.catalog import catalog
from talaria.providers.demo import DemoProvider
from talaria.runtime.session import LiveSession
from talaria.runtime.setup import Setup
from talaria.store.base import Session, Store
from talaria.store.sqlite.store import SqliteStore
from talaria.tools.approval import Gate, OpenGate
from talaria.tools.base import Tool
from talaria.tools.registry import Toolbox

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


@dataclass(frozen=True, slots=True)
class Application:
    settings: Settings
    store: Store
    owner: OwnerId
    provider: Provider
    toolbox: Toolbox
    clock: Clock

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
    open_store: OpenStore = SqliteStore,
) -> AsyncGenerator[Application]:
    """Everything wired together, open until the context ends. `model` is what the person asked for, if anything."""
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        provider = await _provider(settings, model, stack)
        store = await stack.enter_async_context(open_store(settings.home, clock))
        owner = await store.owners.join(kind)
        stack.push_async_callback(store.owners.leave, owner)
        yield Application(settings, store, owner, provider, Toolbox(_builtin() if tools is None else tools), clock)


def _builtin() -> Iterable[Tool]:
    from talaria.tools.builtin import BUILTIN  # noqa: PLC0415  (an embedding program may bring only its own)

    return BUILTIN


async def _provider(settings: Settings, wanted: str | None, stack: AsyncExitStack) -> Provider:
    choice = choose(settings.config, settings.environment, wanted) or await _local_choice()
    if choice.provider == DEMO:
        return DemoProvider()
    from talaria.net.client import HttpClient  # noqa: PLC0415  (100 ms that the demo does not pay)
    from talaria.providers.http import HttpProvider  # noqa: PLC0415
    from talaria.providers.wires import wire_for  # noqa: PLC0415

    chosen = endpoint(choice, settings.config, settings.environment)
    client = await stack.enter_async_context(HttpClient())
    return HttpProvider(chosen, wire_for(chosen.wire), client)


async def _local_choice() -> Choice:
    """A model server on this machine, else the demo."""
    from talaria.providers import local  # noqa: PLC0415

    listening = await local.open_ports(facts for facts in catalog().values() if facts.is_local)
    if not listening:
        return Choice(DEMO)
    from talaria.net.client import HttpClient  # noqa: PLC0415

    async with HttpClient() as client:
        found = await local.first_model(listening, client)
    return Choice(found.provider, found.model) if found else Choice(DEMO)
