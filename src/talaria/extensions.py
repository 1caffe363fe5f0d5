"""The plugins of one application: loaded, settled, and wired to what they may ask of it. Only imported where some are
wanted."""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from talaria.agent.hooks import Hooks, Tell
from talaria.compat.hermes.bound import Bound, bind, release
from talaria.compat.hermes.surroundings import Surroundings
from talaria.config import paths
from talaria.config.schema import BUILTIN_ENGINE, Config, ProviderConfig
from talaria.context.base import Keeper
from talaria.context.engine import ContextEngine
from talaria.context.host import EngineHost, Instance
from talaria.foreign import Broke, Lane, within
from talaria.memory.host import Instance as MemoryInstance
from talaria.memory.host import MemoryHost
from talaria.memory.provider import MemoryProvider
from talaria.model.clock import Clock
from talaria.model.secret import Secret
from talaria.plugins.bridge import Bridge
from talaria.plugins.contributions import Contributions, gather
from talaria.plugins.discovery import discover, places
from talaria.plugins.host import Plugin, PluginHost, Wanted
from talaria.plugins.instances import fresh
from talaria.plugins.models import ProviderProfile, overridden
from talaria.plugins.services import PluginServices
from talaria.plugins.session_hooks import SessionHooks
from talaria.providers.base import WireName
from talaria.runtime.commands import Commands
from talaria.waiting import in_thread

BUILD_S = 30.0
_WIRES: Mapping[str, WireName] = {
    "chat_completions": "openai_chat",
    "codex_responses": "openai_responses",
    "responses": "openai_responses",
    "anthropic_messages": "anthropic_messages",
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
    providers: dict[str, ProviderProfile] = field(default_factory=dict[str, ProviderProfile])
    brought: Contributions = field(default_factory=Contributions)
    shared: dict[str, Lane] = field(default_factory=dict[str, Lane])
    """Of engines that cannot be copied."""

    @property
    def notices(self) -> Sequence[str]:
        """What the person should know at the start."""
        return self.host.notices

    def problems(self) -> list[tuple[str, str]]:
        """Of which plugin (or of none), and what."""
        told = [(key, problem) for key, problem in self.host.problems()]
        return [*told, *(("", notice) for notice in self.notices)]

    def settle(self, taken: frozenset[str]) -> None:
        """Who gets which name; `taken` are those of our own tools."""
        self.brought = gather(self.host, taken, self.commands, self.clock)
        engine, memory = self.config.context.engine, self.config.memory.provider
        if engine != BUILTIN_ENGINE and engine not in self.brought.engines:
            self.host.notices.append(
                f"No loaded plugin has the context engine {engine!r} of config.yaml; Talaria's own is used. "
                "`talaria plugins list` shows what is there."
            )
        if memory and memory not in self.brought.memory:
            self.host.notices.append(f"No loaded plugin has the memory provider {memory!r} of config.yaml.")

    def keeper(self, builtin: Keeper, *, is_automatic: bool) -> Keeper | None:
        """With the engine that is chosen; None: that is the built-in one."""
        name = self.config.context.engine
        plugin = self.brought.engines.get(name)
        if plugin is None or name == BUILTIN_ENGINE:
            return None
        return EngineHost(name, lambda: self._engine(plugin), builtin, is_automatic=is_automatic)

    def hooks(self) -> Hooks:
        name = self.config.memory.provider or ""
        plugin = self.brought.memory.get(name)
        memory = None if plugin is None else self._memory_maker(name, plugin)
        return SessionHooks(self.host.hooks, self.brought, self.home, self.clock, memory)

    def _memory_maker(self, name: str, plugin: Plugin) -> Callable[[Tell], MemoryHost]:
        return lambda tell: MemoryHost(name, lambda: self._memory(plugin), tell)

    async def _engine(self, plugin: Plugin) -> Instance:
        registered = plugin.registered.engine
        if registered is None:
            raise Broke("has no engine any more")
        made = await within(
            lambda: fresh(ContextEngine, registered, lambda: self.host.again(plugin).engine), BUILD_S, self.clock
        )
        if made is not None:
            return Instance(made, Lane(self.clock))
        warning = f"Context engine {plugin.name} cannot be copied: all conversations of this process share one."
        log.warning("%s", warning)
        return Instance(registered, self.shared.setdefault(plugin.key, Lane(self.clock)), warning)

    async def _memory(self, plugin: Plugin) -> MemoryInstance:
        registered = plugin.registered.memory
        if registered is None:
            raise Broke("has no memory provider any more")
        made = await within(
            lambda: fresh(MemoryProvider, registered, lambda: self.host.again(plugin).memory), BUILD_S, self.clock
        )
        return MemoryInstance(made or registered, Lane(self.clock))

    def with_providers(self, config: Config, environment: Mapping[str, str]) -> Config:
        """The settings, with the providers that plugins describe; what the person says of one counts more."""
        for profile in self.providers.values():
            for name in overridden(profile):
                self.host.notices.append(f"Provider {profile.name} has its own {name}, which is not called here.")
        described = {name: _provider(profile, environment) for name, profile in self.providers.items()}
        return msgspec.structs.replace(config, providers={**described, **config.providers})


def _provider(profile: ProviderProfile, environment: Mapping[str, str]) -> ProviderConfig:
    key = next((environment[name] for name in profile.env_vars if environment.get(name)), "")
    return ProviderConfig(
        base_url=profile.base_url or None,
        api_key=Secret(key),
        wire=_WIRES.get(profile.api_mode),
        headers={name: Secret(value) for name, value in profile.default_headers.items()},
        default_model=next(iter(profile.fallback_models), None),
    )


@asynccontextmanager
async def open_extensions(
    home: Path, config: Config, environment: Mapping[str, str], cwd: Path, clock: Clock, commands: Commands
) -> AsyncGenerator[Extensions]:
    bridge = Bridge()
    services = PluginServices(bridge, config.plugins.entries, _profile(home))
    host = PluginHost(paths.consents_file(home), _wanted(config), services, clock)
    extensions = Extensions(config, host, services, commands, clock, home)
    bound = Bound(home, environment, host, bridge, services.ask, commands, extensions.providers)
    where = places(home, cwd, environment, with_project=config.plugins.project)
    found = {} if _is_safe_mode(environment) else await in_thread(lambda: discover(where))
    wanted = frozenset(config.plugins.enabled)
    surroundings = Surroundings(
        home, environment, [one for one in found.values() if {one.key, one.manifest.name} & wanted]
    )
    bridge.open()
    bind(bound)
    try:
        await extensions.host.load(found, before_hermes=surroundings.prepare)
        yield extensions
    finally:
        surroundings.restore()
        release(bound)
        bridge.close()


def _wanted(config: Config) -> Wanted:
    entries = config.plugins.entries.items()
    return Wanted(
        frozenset(config.plugins.enabled),
        frozenset(config.plugins.disabled),
        config.context.engine,
        config.memory.provider or "",
        frozenset(name for name, entry in entries if entry.get("allow_tool_override") is True),
    )


def _profile(home: Path) -> str:
    return home.name if home.parent.name == "profiles" else "default"


def _is_safe_mode(environment: Mapping[str, str]) -> bool:
    return any(environment.get(name, "") not in ("", "0") for name in ("TALARIA_SAFE_MODE", "HERMES_SAFE_MODE"))
