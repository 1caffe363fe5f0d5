"""The plugins of one application: loaded, given their names, and connected to the services they may use.

Only imported if plugins are wanted.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from talaria.agent.hooks import Hooks
from talaria.compat.hermes.bound import Bound, bind, release
from talaria.compat.hermes.finder import PluginEnvironment
from talaria.compat.hermes.moving_in import move_in
from talaria.compat.hermes.platforms.incoming_events import HOOK, apply_answers, to_event
from talaria.compat.hermes.platforms.plugin_platforms import PluginPlatform, plugin_platforms
from talaria.compat.hermes.plugin_home import PluginHome, merge
from talaria.config import paths
from talaria.config.schema import BUILTIN_ENGINE, Config, ProviderConfig
from talaria.config.secrets import is_safe_mode
from talaria.context.base import ContextKeeper
from talaria.context.engine import HostedEngine
from talaria.context.engine_host import EngineHost
from talaria.core.aio import in_thread
from talaria.core.clock import Clock
from talaria.core.ids import SessionId
from talaria.core.plugin_calls import HostedPlugin, PluginError, SerialExecutor, contain, run_within
from talaria.core.secret import decode_secret
from talaria.memory.base import MemoryProvider
from talaria.memory.memory_host import MemoryHost
from talaria.platforms.base import Arrival
from talaria.plugins import loading
from talaria.plugins.api import is_engine, is_memory
from talaria.plugins.bridge import Bridge
from talaria.plugins.contributions import Contributions, find_by_name, gather
from talaria.plugins.discovery import Single, discover, places
from talaria.plugins.loading import commands_of, make_fresh
from talaria.plugins.plugin_host import Plugin, PluginHost, WantedPlugins
from talaria.plugins.registered import WIRES, ProviderProfile, Registered, find_overridden
from talaria.plugins.services import PluginServices, look_up
from talaria.plugins.session_hooks import ApprovalHooks, MakeMemory, SessionHooks
from talaria.providers.catalog import catalog
from talaria.runtime.commands import Commands
from talaria.runtime.session_config import SessionConfig
from talaria.tools.base import ApprovalObserver

T = TypeVar("T")

BUILD_S = 30.0
SAFE_MODE = "this is safe mode"
_LACKING: Mapping[Single, str] = {
    "engine": "No loaded plugin has the context engine {!r} of config.yaml; Talaria's own is used.",
    "memory": "No loaded plugin has the memory provider {!r} of config.yaml.",
}

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Extensions:
    config: Config
    host: PluginHost
    services: PluginServices
    commands: Commands
    clock: Clock
    home: Path
    """The plugins' home."""
    environment: Mapping[str, str]
    """Our environment, and what plugins keep in their .env; ours takes precedence."""
    secrets: Mapping[str, str]
    """What plugins keep in their .env."""
    providers: dict[str, ProviderProfile] = field(default_factory=dict[str, ProviderProfile])
    brought: Contributions = field(default_factory=Contributions)
    shared: dict[str, SerialExecutor] = field(default_factory=dict[str, SerialExecutor])
    """Executors of engines that cannot be copied, by plugin."""

    @property
    def notices(self) -> Sequence[str]:
        return self.host.notices

    def problems(self) -> list[tuple[str, str]]:
        """The plugin's name (empty if it concerns none) and the problem."""
        return [*self.host.problems(), *(("", notice) for notice in self.notices)]

    def settle(self, taken: frozenset[str]) -> None:
        """Decide which plugin gets which name; `taken` are the names of our own tools."""

        def has_chosen_engine(plugin: Plugin) -> bool:
            return self._find_chosen("engine")[1] is plugin

        self.brought = gather(self.host, taken, self.commands, self.clock, has_chosen_engine)
        for kind, sentence in _LACKING.items():
            name, plugin = self._find_chosen(kind)
            if name and plugin is None:
                self.host.notices.append(f"{sentence.format(name)} {self._hint(name)}")

    def _find_chosen(self, kind: Single) -> tuple[str, Plugin | None]:
        """The name in the settings, empty if it is built in, and the plugin that has it."""
        if kind == "engine":
            name, table = self.config.context.engine, self.brought.engines
            name = "" if name == BUILTIN_ENGINE else name
        else:
            name, table = self.config.memory.provider or "", self.brought.memory
        return name, find_by_name(name, table) if name else None

    def missing(self, kind: Single) -> str:
        """Why the chosen one cannot be used; empty if it can."""
        name, loaded = self._find_chosen(kind)
        if not name or loaded:
            return ""
        plugin = next((one for one in self.host.plugins.values() if name in one.names), None)
        if plugin is not None and plugin.problems:
            return f"plugin {plugin.key} {plugin.problems[0]}."
        return self._hint(name)

    def _hint(self, name: str) -> str:
        found = next((one for one in self.host.plugins.values() if name in one.names), None)
        if found is not None and found.status == "available":
            return f"It is installed, but not enabled: talaria plugins enable {found.key}"
        return "`talaria plugins list` shows what is installed."

    def keeper(self, builtin: ContextKeeper, *, is_automatic: bool) -> ContextKeeper | None:
        """Uses the chosen engine; None if that is the built-in one."""
        name, plugin = self._find_chosen("engine")
        if plugin is None:
            return None
        build = partial(self._build_engine, plugin)
        return EngineHost(name, build, builtin, self.clock, self.home, is_automatic=is_automatic)

    async def platforms(self) -> Mapping[str, PluginPlatform]:
        """Asks each platform of a plugin whether it can be used here."""
        return await plugin_platforms(self.brought.platforms, self.environment, self.clock)

    async def filter_arrival(self, arrival: Arrival) -> Arrival | None:
        """As `Host.filter_arrival`. A callback that fails or hangs is reported and otherwise ignored."""
        if not self.host.hooks.callbacks.get(HOOK):
            return arrival
        try:
            event = to_event(arrival)
        except ValueError:
            log.warning("plugins do not know the platform %s, so they are not asked", arrival.where.platform)
            return arrival
        answers = await self.host.hooks.invoke(HOOK, event=event, gateway=None, session_store=None)
        return apply_answers(arrival, answers)

    def approvals(self, session: SessionId, config: SessionConfig) -> ApprovalObserver:
        return ApprovalHooks(self.host.hooks, session, config.conversation or session, config.platform)

    def hooks(self) -> Hooks:
        make_memory: MakeMemory | None = None
        name, plugin = self._find_chosen("memory")
        if plugin is not None:

            async def build() -> HostedPlugin[MemoryProvider]:
                return (await self._host_part(plugin, is_memory, lambda registered: registered.memory))[0]

            make_memory = partial(MemoryHost, name, build)
        return SessionHooks(self.host.hooks, self.brought, self.home, self.clock, make_memory)

    async def _build_engine(self, plugin: Plugin) -> HostedEngine:
        engine, run = await self._host_part(plugin, is_engine, lambda registered: registered.engine)
        if await engine.call("is_available", seconds=BUILD_S) is False:
            raise PluginError("says that it is not available")
        commands = await run_within(lambda: commands_of(engine.instance, plugin.registered, run), BUILD_S, self.clock)
        return HostedEngine(engine.instance, engine.executor, engine.is_shared, commands)

    async def _host_part(
        self, plugin: Plugin, is_one: Callable[[object], bool], part: Callable[[Registered], T | None]
    ) -> tuple[HostedPlugin[T], Registered]:
        """An instance for one live session or, if the plugin cannot make another, the registered one, which is
        shared. Also returns what was registered together with it."""
        registered = part(plugin.registered)
        if registered is None:
            raise PluginError("is no longer registered")
        runs = [plugin.registered]

        def register_again() -> T | None:
            runs.append(self.host.register_again(plugin))
            return part(runs[-1])

        made = await run_within(lambda: make_fresh(is_one, registered, register_again), BUILD_S, self.clock)
        if made is not None:
            run = next((one for one in runs if part(one) is made), plugin.registered)
            return HostedPlugin(made, SerialExecutor(self.clock)), run
        executor = self.shared.setdefault(plugin.key, SerialExecutor(self.clock))
        return HostedPlugin(registered, executor, is_shared=True), plugin.registered

    def with_providers(self, config: Config, environment: Mapping[str, str]) -> Config:
        """The settings, with the providers that plugins describe; the person's own settings take precedence."""
        described: dict[str, ProviderConfig] = {}
        known = {**self.secrets, **environment}
        for name, profile in self.providers.items():
            try:
                provider, aliases = contain(lambda profile=profile: _read_profile(profile, known))
            except PluginError as fault:
                self.host.notices.append(f"The model provider {name!r} of a plugin is left out: reading it {fault}.")
                continue
            described[name] = provider
            for alias in aliases - catalog().keys():
                described.setdefault(alias, provider)
            for method in find_overridden(profile):
                self.host.notices.append(f"Provider {name} has its own {method}, which is not called here.")
        return msgspec.structs.replace(config, providers={**described, **config.providers})


def _read_profile(profile: ProviderProfile, environment: Mapping[str, str]) -> tuple[ProviderConfig, frozenset[str]]:
    """The provider, checked as if the person had written it, and its names. Raises whatever its fields raise."""
    key = next((environment[name] for name in profile.env_vars if environment.get(name)), "")
    given = {
        "base_url": profile.base_url or None,
        "api_key": key,
        "wire": WIRES.get(profile.api_mode),
        "headers": dict(profile.default_headers),
        "default_model": next(iter(profile.fallback_models), None),
    }
    names = msgspec.convert((profile.name, *profile.aliases), tuple[str, ...])
    return msgspec.convert(given, ProviderConfig, dec_hook=decode_secret), frozenset(names)


@asynccontextmanager
async def open_extensions(
    home: Path, config: Config, environment: Mapping[str, str], cwd: Path, clock: Clock, commands: Commands
) -> AsyncGenerator[Extensions]:
    """`home`, `config` and `environment` are ours, not the plugins'."""
    where = places(home, cwd, environment, with_project=config.plugins.project)
    found = await in_thread(lambda: discover(where))
    plugin_home = PluginHome(home)
    obstacle = SAFE_MODE if is_safe_mode(environment) else ""
    notices: list[str] = []
    if found and not obstacle:
        obstacle = await in_thread(lambda: _prepare_home(plugin_home, home, environment, notices))
    secrets = await in_thread(plugin_home.secrets)
    known = {**secrets, **environment}
    entries = config.plugins.entries

    def read_entries() -> object:
        theirs = look_up(plugin_home.own_settings(known), "plugins", "entries", default={})
        return merge(entries, theirs)

    hermes_home = _find_hermes_home(plugin_home, environment)
    bridge = Bridge()
    profile = home.name if home.parent.name == "profiles" else "default"
    services = PluginServices(bridge, entries, read_entries, profile)
    wanted = WantedPlugins(
        frozenset(config.plugins.enabled),
        frozenset(config.plugins.disabled),
        config.context.engine,
        config.memory.provider or "",
        frozenset(name for name, entry in entries.items() if entry.get("allow_tool_override") is True),
    )
    host = PluginHost(paths.consents_file(home), wanted, services, clock)
    host.notices.extend(notices)
    extensions = Extensions(config, host, services, commands, clock, hermes_home, known, secrets)
    bound = Bound(home, environment, host, bridge, services.ask, commands, extensions.providers)
    plugin_environment = PluginEnvironment(hermes_home, environment, secrets)
    bridge.open()
    bind(bound)
    try:
        with loading.keep_bytecode_in(home / "cache" / "bytecode"):
            await host.load(found, before_hermes=plugin_environment.prepare, obstacle=obstacle)
            yield extensions
    finally:
        plugin_environment.restore()
        release(bound)
        host.close()
        bridge.close()


def _prepare_home(plugin_home: PluginHome, home: Path, environment: Mapping[str, str], notices: list[str]) -> str:
    """Set up the plugins' home as they expect it. Returns why they must not be loaded now; empty if they may."""
    moving = move_in(home)
    notices.extend(moving.notices)
    if not moving.obstacle:
        try:
            plugin_home.prepare(environment)
        except OSError as fault:
            notices.append(f"The home of plugins, {plugin_home.path}, cannot be used: {fault.strerror or fault}.")
    return moving.obstacle


def _find_hermes_home(plugin_home: PluginHome, environment: Mapping[str, str]) -> Path:
    """What `get_hermes_home` returns to plugins."""
    return Path(environment.get("HERMES_HOME", "").strip() or plugin_home.path).expanduser()
