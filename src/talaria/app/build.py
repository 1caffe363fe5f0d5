"""The composition root: the only module that knows every part of the application."""

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from talaria.agent.budget import Cap, Limits
from talaria.app.connections import Connections, local_choice
from talaria.app.listed_servers import ListedServers, find_servers
from talaria.app.settings import Settings
from talaria.config import routes
from talaria.config.project_settings import read_project_settings
from talaria.config.schema import CapConfig
from talaria.config.secrets import find_secrets
from talaria.config.selection import DEMO, ModelChoice, choose, endpoint
from talaria.context.base import ContextKeeper
from talaria.context.compactor import BuiltinContextKeeper
from talaria.core.aio import in_thread
from talaria.core.clock import Clock, SystemClock
from talaria.core.entries import TurnOrigin
from talaria.core.errors import BadConfig, BadInput, TalariaError
from talaria.core.ids import OwnerId, SessionId, new_session_id
from talaria.providers.base import Route
from talaria.providers.demo import ENDPOINT as DEMO_ENDPOINT
from talaria.providers.upstream import Upstream
from talaria.runtime.auxiliary import Auxiliary, SessionSummariser
from talaria.runtime.builtin_commands import builtin_commands
from talaria.runtime.chat import Purpose
from talaria.runtime.commands import Commands
from talaria.runtime.process import ProcessLinks, ProcessServices
from talaria.runtime.session import LiveSession
from talaria.runtime.session_config import SessionConfig, TurnOptions
from talaria.runtime.session_services import SessionServices
from talaria.store.base import Session, Store
from talaria.store.sqlite.store import SqliteStore
from talaria.tools.base import Tool
from talaria.tools.gate import PolicyGate
from talaria.tools.person import Person
from talaria.tools.policy import Policy
from talaria.tools.protected import Protected
from talaria.tools.registry import Toolbox
from talaria.tools.sandbox_permissions import Permission
from talaria.tools.workspaces import SandboxState, read_sandbox_state

if TYPE_CHECKING:
    from talaria.app.builtin_tools import BuiltinTools
    from talaria.app.extensions import Extensions
    from talaria.platforms.base import Arrival
    from talaria.tools.mcp.servers import Servers


log = logging.getLogger(__name__)

OpenStore = Callable[[Path, Clock], AbstractAsyncContextManager[Store]]


def open_store(home: Path, clock: Clock | None = None) -> SqliteStore:
    """For commands that only read or edit stored conversations."""
    return SqliteStore(home, clock or SystemClock())


@dataclass(frozen=True)
class Application:
    settings: Settings
    store: Store
    owner: OwnerId
    route: Route
    upstream: Upstream
    toolbox: Toolbox
    clock: Clock
    links: ProcessLinks
    protected: Protected
    is_stand_in: bool = False
    """The demo model answers, because no other was found or chosen."""
    left_out: tuple[str, ...] = ()
    """Why some settings, fallbacks and plugins cannot be used."""
    commands: Commands = field(default_factory=builtin_commands)
    """Slash commands, including those of plugins."""
    extensions: "Extensions | None" = None
    mcp: "Servers | None" = None
    builtin: "BuiltinTools | None" = None
    """None if an embedding program brings its own tools."""

    def session(
        self,
        row: Session | None = None,
        *,
        id: SessionId | None = None,
        cwd: Path,
        origin: TurnOrigin,
        person: Person | None = None,
        is_asking: bool = True,
        max_rounds: int | None = None,
        instructions: str = "",
        platform: str = "cli",
        conversation: str = "",
    ) -> LiveSession:
        """The conversation of `row`, or a new one (under `id`, if given).

        `person` is asked about what needs approval. Without one that is refused, unless `is_asking` is False.
        """
        config = self.session_config(
            cwd=Path(row.cwd) if row else cwd,
            origin=origin,
            platform=platform,
            conversation=conversation,
            instructions=instructions,
        )
        session = row.id if row else id or new_session_id(self.clock.now())
        options = self.turn_options(max_rounds)
        return self.live_session(session, row, config, person=person, options=options, is_asking=is_asking)

    @property
    def home(self) -> Path:
        return self.settings.home

    @property
    def model(self) -> str:
        return self.route.primary.label

    def sandbox_level(self) -> str:
        level = self.builtin.workspaces.sandbox.level if self.builtin else ""
        return f"{level} (no network)" if level == "landlock" else level

    def sandbox_state(self, session: SessionId, project: Path) -> SandboxState | None:
        if self.builtin is None:
            return None
        return read_sandbox_state(self.builtin.workspaces, self.home, session, project)

    async def close_again(self, permission: Permission) -> tuple[str, ...]:
        return await self.builtin.workspaces.revoke(permission) if self.builtin else ()

    async def check_handoff(self, platform: str) -> None:
        """Raises `BadInput` if a gateway with these settings could not move a conversation there."""
        given = self.settings.config.gateway.platforms.get(platform)
        variable = f"{platform.upper()}_HOME_CHANNEL"
        environment = {**(self.extensions.secrets if self.extensions else {}), **self.settings.environment}
        has_token = any(name.startswith(f"{platform.upper()}_") for name in environment)
        if not platform.isidentifier() or (given is None and not has_token):
            raise BadInput(f"{platform!r} is not set up here; to see the platforms: talaria gateway platforms")
        if (given or {}).get("enabled") is False:
            raise BadInput(f"{platform} is turned off: gateway.platforms.{platform}.enabled is false in config.yaml.")
        named = (given or {}).get("home_channel") or environment.get(variable)
        if not named and not await self.store.chats.home(platform):
            raise BadInput(f"{platform} has no home channel: send /sethome where it should be, or set {variable}.")

    def session_config(
        self,
        *,
        cwd: Path,
        origin: TurnOrigin,
        platform: str = "cli",
        conversation: str = "",
        person: str = "local",
        instructions: str = "",
    ) -> SessionConfig:
        return SessionConfig(
            route=self.route,
            cwd=cwd,
            home=self.settings.home,
            origin=origin,
            platform=platform,
            conversation=conversation,
            person=person,
            instructions=instructions,
            tools=tuple(self._tools().names),
            spill_limits=self.settings.config.terminal.limits.spill_limits,
            settings=self.settings.shape,
        )

    def turn_options(self, max_rounds: int | None = None) -> TurnOptions:
        config, limits = self.settings.config, self.limits
        if max_rounds:
            limits = msgspec.structs.replace(limits, max_rounds=max_rounds)
        return TurnOptions(limits, config.agent.api_max_retries, config.model.reasoning_effort)

    @cached_property
    def limits(self) -> Limits:
        agent, given = self.settings.config.agent, self.settings.config.limits
        return Limits(
            max_rounds=agent.max_turns,
            max_seconds=given.turn.seconds,
            max_wait_s=agent.max_wait_s,
            turn=_cap(given.turn),
            session=_cap(given.session),
            day=_cap(given.day),
            person=_cap(given.person),
        )

    def live_session(
        self,
        id: SessionId,
        row: Session | None,
        config: SessionConfig,
        *,
        person: Person | None = None,
        options: TurnOptions | None = None,
        is_asking: bool = True,
        leaves_mail: bool = True,
    ) -> LiveSession:
        approvals, compression = self.settings.config.approvals, self.settings.config.compression

        def has_created(path: Path) -> bool:  # the recorder is only loaded when needed
            recorder = self.builtin.recorder if self.builtin else None
            return recorder is not None and recorder.has_created(id, path)

        gate = PolicyGate(
            Policy(approvals, self.protected, has_created),
            self.store.approvals,
            self.store.grants,
            session=id,
            owner=self.owner,
            clock=self.clock,
            timeout_s=approvals.timeout_s,
            is_asking=is_asking and approvals.is_asking,
            observer=self.extensions.approvals(id, config) if self.extensions else None,
        )
        keeper: ContextKeeper = BuiltinContextKeeper(SessionSummariser(self.auxiliary("summary"), id, config.person))
        chosen = self.extensions.keeper(keeper, is_automatic=compression.enabled) if self.extensions else None
        services = SessionServices(
            id,
            config,
            self._tools(),
            gate,
            keeper=chosen or (keeper if compression.enabled else None),
            hooks=self.extensions.hooks() if self.extensions else None,
            person=person,
            resources=self.builtin,
            redactor=self.settings.redactor,
        )
        return LiveSession(
            row,
            services,
            ProcessServices(self.store, self.owner, self.upstream, self.clock, self.links),
            options=options or self.turn_options(),
            leaves_mail=leaves_mail,
        )

    def _tools(self) -> Toolbox:
        return self.toolbox.with_tools(self.mcp.tools()) if self.mcp else self.toolbox

    async def filter_arrival(self, arrival: "Arrival") -> "Arrival | None":
        return arrival if self.extensions is None else await self.extensions.filter_arrival(arrival)

    def auxiliary(self, purpose: Purpose) -> Auxiliary:
        """For small tasks beside a conversation. Raises `OperatorError` if the settings of its model are wrong."""
        return self.plugin_auxiliary(purpose, None)

    def plugin_auxiliary(self, purpose: str, chosen: str | None) -> Auxiliary:
        """For any purpose; `chosen` is the model that a plugin asks for."""
        config = self.settings.config
        given: str | None = getattr(config.auxiliary, purpose, None) or config.auxiliary.tasks.get(purpose)
        named = chosen or given or config.auxiliary.default
        return Auxiliary(
            purpose,
            routes.auxiliary(named, self.route, config, self.settings.environment),
            self.upstream,
            self.store.spending,
            self.owner,
            self.clock,
            self.limits,
            config.agent.api_max_retries,
            self.settings.redactor,
        )


def _cap(config: CapConfig) -> Cap:
    return Cap(config.tokens, config.cost_usd)


@asynccontextmanager
async def open_application(
    settings: Settings,
    *,
    model: str | None = None,
    tools: Iterable[Tool] | None = None,
    kind: str = "terminal",
    program: str = "talaria",
    clock: Clock | None = None,
    open_store: OpenStore = open_store,
) -> AsyncGenerator[Application]:
    """Everything wired together, open until the context ends. `model` is the one the person asked for, if any;
    `program` is what they type to start Talaria."""
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        commands = builtin_commands()
        extensions = None
        if settings.config.wants_plugins:
            from talaria.app.extensions import open_extensions  # noqa: PLC0415  (only loaded if plugins are wanted)

            extensions = await stack.enter_async_context(
                open_extensions(settings.home, settings.config, settings.environment, Path.cwd(), clock, commands)
            )
            config = extensions.with_providers(settings.config, settings.environment)
            settings = replace(settings, config=config)
            settings.redactor.learn(find_secrets(extensions.secrets, config))
        choice = choose(settings.config, settings.environment, model)
        choice = choice or await local_choice(settings.config, settings.environment, clock)
        planned = _plan_route(choice or ModelChoice(DEMO), settings)
        connections = await stack.enter_async_context(Connections(settings.home, clock, program))
        upstream = Upstream(connections.provider, clock)
        upstream.provider(planned.route.primary)  # otherwise the first turn would wait for this to load
        store = await stack.enter_async_context(open_store(settings.home, clock))
        owner = await store.owners.join(kind)
        stack.push_async_callback(_leave, store, owner)
        links = await stack.enter_async_context(ProcessLinks(store, owner, settings.home / "run"))
        servers, config = ListedServers(), settings.config
        if tools is None:
            servers = await in_thread(lambda: find_servers(config.all_mcp_servers, settings.home, settings.environment))
        protected = await in_thread(lambda: _find_protected(settings, servers))
        builtin = None
        if tools is None:
            builtin = _open_builtin(settings, store, clock, protected, servers)
            stack.push_async_callback(builtin.aclose)
        own = builtin.tools if builtin else tuple(tools or ())
        toolbox, brought = Toolbox(own, settings.config.tools), ()
        if extensions is not None:
            extensions.settle(frozenset(toolbox.names))
            toolbox = toolbox.without(extensions.brought.overrides)
            brought = tuple(one.tool for one in extensions.brought.tools)
        settings.redactor.learn(find_secrets({}, servers.entries))
        mcp = await servers.open(settings.home, settings.config, clock, settings.environment, stack)
        app = Application(
            settings,
            store,
            owner,
            planned.route,
            upstream,
            toolbox,
            clock,
            links,
            protected,
            is_stand_in=choice is None,
            left_out=(
                *(problem.sentence for problem in settings.problems),
                *planned.left_out,
                *(extensions.notices if extensions else ()),
                *servers.notices,
                *(mcp.notices if mcp else ()),
                *settings.config.tools.find_unknown_names((*own, *brought)),
            ),
            commands=commands,
            extensions=extensions,
            mcp=mcp,
            builtin=builtin,
        )
        if extensions is not None:
            extensions.services.auxiliary = app.plugin_auxiliary
        yield app


def reconfigure(app: Application, settings: Settings) -> Application:
    """The same application with new settings. Plugins, MCP servers and sandboxes keep the old ones until a restart."""
    if app.extensions is not None:
        settings = replace(settings, config=app.extensions.with_providers(settings.config, settings.environment))
    choice = choose(settings.config, settings.environment, None)
    planned = app.route if choice is None else _plan_route(choice, settings).route
    own = app.builtin.tools if app.builtin else app.toolbox.tools
    toolbox = Toolbox(own, settings.config.tools)
    if app.extensions is not None:
        toolbox = toolbox.without(app.extensions.brought.overrides)
    return replace(app, settings=settings, route=planned, toolbox=toolbox, is_stand_in=choice is None)


def with_model(app: Application, name: str) -> Application:
    """The same application with another primary model. Raises `BadConfig`, `MissingCredential`."""
    choice = choose(app.settings.config, app.settings.environment, name) or ModelChoice(DEMO)
    return replace(app, route=_plan_route(choice, app.settings).route, is_stand_in=False)


def _find_protected(settings: Settings, servers: ListedServers) -> Protected:
    people = Path(settings.config.gateway.workspace).expanduser().resolve()
    terminal = settings.config.terminal
    with suppress(BadConfig):  # reported when a command runs
        terminal = read_project_settings(settings.home, settings.environment, terminal, Path.cwd())
    shared = [Path(given).expanduser().resolve() for given in (*terminal.read, *terminal.write)]
    return Protected(Path.home().resolve(), settings.home.resolve(), people, servers.programs, shared)


def _open_builtin(
    settings: Settings, store: Store, clock: Clock, protected: Protected, servers: ListedServers
) -> "BuiltinTools":
    from talaria.app.builtin_tools import BuiltinTools  # noqa: PLC0415  (an embedding program may bring its own tools)

    return BuiltinTools(
        settings.home, settings.config, settings.environment, store, clock, protected, programs=servers.programs
    )


def builtin_tools(store: Store, settings: Settings, clock: Clock) -> Sequence[Tool]:
    """The tools that every conversation has from the start; nothing is started for them."""
    return _open_builtin(settings, store, clock, _find_protected(settings, ListedServers()), ListedServers()).tools


def builtin_names() -> frozenset[str]:
    """The names of those tools."""
    from talaria.app.builtin_tools import names  # noqa: PLC0415

    return frozenset(names())


async def _leave(store: Store, owner: OwnerId) -> None:
    """Only tidying up: a lock held by the kernel says which owners are alive, so a failure here does no harm."""
    try:
        await store.owners.leave(owner)
    except TalariaError as fault:
        log.warning("owner %s not signed off: %s", owner, fault)


def _plan_route(choice: ModelChoice, settings: Settings) -> routes.Planned:
    if choice.provider == DEMO:
        return routes.Planned(Route(DEMO_ENDPOINT))
    primary = endpoint(choice, settings.config, settings.environment)
    return routes.plan(primary, settings.config, settings.environment)
