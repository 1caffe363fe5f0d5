"""The plugins of one application: loaded, settled, and wired to what they may ask of it. Only imported where some are
wanted."""

import logging
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from talaria.agent.hooks import Hooks, Tell
from talaria.compat.hermes import finder
from talaria.compat.hermes.bound import Bound, bind, release
from talaria.config import paths
from talaria.config.schema import BUILTIN_ENGINE, Config, ProviderConfig
from talaria.context.base import Keeper
from talaria.context.engine import ContextEngine
from talaria.context.host import EngineHost, Instance
from talaria.foreign import Broke, Lane, within
from talaria.memory.host import Instance as MemoryInstance
from talaria.memory.host import MemoryHost
from talaria.memory.provider import MemoryProvider
from talaria.model import dialect
from talaria.model.clock import Clock
from talaria.model.ids import SessionId
from talaria.model.secret import Secret
from talaria.model.usage import NO_USAGE
from talaria.plugins.bridge import Bridge
from talaria.plugins.contributions import Contributions, gather
from talaria.plugins.discovery import Found, discover, places
from talaria.plugins.dispatching import dispatch
from talaria.plugins.host import Plugin, PluginHost, Wanted
from talaria.plugins.instances import fresh
from talaria.plugins.llm import Answer, PluginLlm, Question
from talaria.plugins.models import ProviderProfile, overridden
from talaria.plugins.session_hooks import SessionHooks
from talaria.providers.base import WireName
from talaria.runtime import current
from talaria.runtime.auxiliary import Auxiliary
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


class Inject(Protocol):
    def __call__(self, content: str, role: str) -> bool: ...


@dataclass(slots=True)
class PluginServices:
    """What plugins may ask for; the application stands behind it once it is open."""

    config: Config
    bridge: Bridge
    profile_name: str = "default"
    auxiliary: Callable[[str, str | None], Auxiliary] | None = None
    """For a purpose, and with a model that the plugin has chosen; there once the application is open."""
    inject_into: Inject | None = None
    """The terminal's chat, while there is one."""

    def llm(self, plugin: str) -> PluginLlm:
        return PluginLlm(plugin, self.bridge, self.ask, may_choose=self._allows(plugin, "allow_model_override"))

    async def ask(self, question: Question) -> Answer:
        serving = current.serving.get()
        if self.auxiliary is None:
            raise RuntimeError("Talaria has no model open yet: ask when a conversation runs.")
        system, messages = dialect.question(question.messages)
        said = await self.auxiliary(question.purpose, question.model or None).ask(
            messages,
            system=system,
            session=serving.session if serving else SessionId("plugins"),
            person=serving.person if serving else "local",
            max_output=question.max_tokens,
            seconds=question.seconds,
        )
        _, _, where = said.origin.rpartition(" ")
        return Answer(said.text, model=where, tokens=said.usage or NO_USAGE)

    def dispatch(self, tool: str, arguments: dict[str, Any]) -> str:
        return dispatch(self.bridge, tool, arguments)

    def inject(self, content: str, role: str) -> bool:
        return self.inject_into is not None and self.inject_into(content, role)

    def setting(self, plugin: str, key: str, default: Any) -> Any:
        value: Any = self.config.plugins.entries.get(plugin, {})
        for name in key.split("."):
            if not isinstance(value, dict) or name not in value:
                return default
            value = value[name]  # pyright: ignore[reportUnknownVariableType]
        return value  # pyright: ignore[reportUnknownVariableType]

    def _allows(self, plugin: str, what: str) -> bool:
        return self.setting(plugin, f"llm.{what}", default=False) is True


@dataclass(slots=True)
class Extensions:
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
        engine, memory = self.services.config.context.engine, self.services.config.memory.provider
        if engine != BUILTIN_ENGINE and engine not in self.brought.engines:
            self.host.notices.append(
                f"No loaded plugin has the context engine {engine!r} of config.yaml; Talaria's own is used. "
                "`talaria plugins list` shows what is there."
            )
        if memory and memory not in self.brought.memory:
            self.host.notices.append(f"No loaded plugin has the memory provider {memory!r} of config.yaml.")

    def keeper(self, builtin: Keeper, *, is_automatic: bool) -> Keeper | None:
        """With the engine that is chosen; None: that is the built-in one."""
        name = self.services.config.context.engine
        plugin = self.brought.engines.get(name)
        if plugin is None or name == BUILTIN_ENGINE:
            return None
        return EngineHost(name, lambda: self._engine(plugin), builtin, is_automatic=is_automatic)

    def hooks(self) -> Hooks:
        name = self.services.config.memory.provider or ""
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
    services = PluginServices(config, bridge, _profile(home))
    extensions = Extensions(
        PluginHost(paths.consents_file(home), _wanted(config), services, clock), services, commands, clock, home
    )

    bound = Bound(home, environment, extensions.host, bridge, services.ask, commands, extensions.providers)
    where = places(home, cwd, environment, with_project=config.plugins.project)
    found = {} if _is_safe_mode(environment) else await in_thread(lambda: discover(where))
    wanted = frozenset(config.plugins.enabled)
    surroundings = _Surroundings(
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


class _Surroundings:
    """What plugins for Hermes expect around them: its names, its home, and of `.env` what they declare to need."""

    def __init__(self, home: Path, environment: Mapping[str, str], found: Sequence[Found]) -> None:
        self._home = home
        self._environment = environment
        self._found = found
        self._added: list[str] = []
        self._is_prepared = False

    def prepare(self) -> None:
        self._is_prepared = True
        finder.install()
        self._add("HERMES_HOME", str(self._home))
        for one in self._found:
            for need in (*one.manifest.requires_env, *one.manifest.optional_env):
                self._add(need.name, self._environment.get(need.name, ""))

    def _add(self, name: str, value: str) -> None:
        if value and name not in os.environ:
            os.environ[name] = value
            self._added.append(name)

    def restore(self) -> None:
        for name in self._added:
            os.environ.pop(name, None)
        if self._is_prepared:
            finder.remove()
