"""What one plugin has registered. `contributions.py` decides later whether it gets the names that it wants."""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from talaria.context.engine import ContextEngine
from talaria.core.messages import ToolSpec
from talaria.core.plugin_calls import PluginError, contain
from talaria.core.text import as_text
from talaria.memory.base import MemoryProvider
from talaria.providers.base import WireName

MAX_PROBLEMS = 200


class Problems:
    """What goes wrong in plugins while they run: each kind of fault once, up to a limit."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str] = {}
        self._new: list[str] = []

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """The plugin, and the problem."""
        return ((plugin, problem) for (plugin, _), problem in self._known.items())

    def add(self, plugin: str, what: str, fault: PluginError) -> None:
        """`what` failed. Of faults that differ only in their message the first is kept."""
        kind = (plugin, f"{what} {str(fault).partition(':')[0]}")
        if kind not in self._known and len(self._known) < MAX_PROBLEMS:
            self._known[kind] = f"{what} {fault}"
            self._new.append(f"Plugin {plugin}: {what} {fault}.")

    def take_new(self) -> list[str]:
        """For the person; each is returned once."""
        new, self._new = self._new, []
        return new


WIRES: Mapping[str, WireName] = {
    "chat_completions": "openai_chat",
    "codex_responses": "openai_responses",
    "responses": "openai_responses",
    "anthropic_messages": "anthropic_messages",
}
"""By Hermes' names."""
OMIT_TEMPERATURE: Any = object()
COMPUTED = ("prepare_messages", "build_extra_body", "build_api_kwargs_extras", "get_max_tokens", "fetch_models")


class ProviderProfile:
    """A model provider that a plugin describes, with keywords or as a subclass. Methods for single requests are not
    called."""

    name: str = ""
    api_mode: str = "chat_completions"
    aliases: tuple[str, ...] = ()
    display_name: str = ""
    description: str = ""
    signup_url: str = ""
    env_vars: tuple[str, ...] = ()
    base_url: str = ""
    models_url: str = ""
    auth_type: str = "api_key"
    supports_health_check: bool = True
    supports_vision: bool = False
    supports_vision_tool_messages: bool = True
    fallback_models: tuple[str, ...] = ()
    hostname: str = ""
    default_headers: dict[str, str] = {}  # noqa: RUF012  (replaced, never changed)
    fixed_temperature: Any = None
    default_max_tokens: int | None = None
    default_aux_model: str = ""

    def __init__(self, **fields: Any) -> None:
        for name, value in fields.items():
            setattr(self, name, value)


def find_overridden(profile: ProviderProfile) -> Iterator[str]:
    """Methods of its own that are not called here."""
    return (name for name in COMPUTED if getattr(type(profile), name, None) is not getattr(ProviderProfile, name, None))


OWN_PLATFORMS = frozenset({"telegram", "discord", "slack", "matrix", "webhook"})
"""Plugins replace these only if the person allows it."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_ENTRY_TEXTS = ("install_hint", "allowed_users_env", "allow_all_env", "emoji", "platform_hint", "cron_deliver_env_var")
_ENTRY_FUNCTIONS = (
    *("validate_config", "is_connected", "setup_fn", "env_enablement_fn", "apply_yaml_config_fn"),
    "standalone_sender_fn",
)


@dataclass(frozen=True, slots=True)
class PlatformEntry:
    """A chat service that a plugin can connect to. Plugins for Hermes pass these names; any other keyword is a
    `TypeError`."""

    name: str
    label: str
    adapter_factory: Callable[[Any], Any]
    check_fn: Callable[[], object]
    """Whether what it needs is installed."""
    validate_config: Callable[[Any], object] | None = None
    is_connected: Callable[[Any], object] | None = None
    required_env: list[str] = field(default_factory=list[str])
    install_hint: str = ""
    setup_fn: Callable[[], object] | None = None
    source: str = "plugin"
    plugin_name: str = ""
    allowed_users_env: str = ""
    allow_all_env: str = ""
    max_message_length: int = 0
    pii_safe: bool = False
    emoji: str = ""
    allow_update_command: bool = True
    platform_hint: str = ""
    env_enablement_fn: Callable[[], Mapping[str, Any] | None] | None = None
    """Settings from the environment; None: it does not set this platform up."""
    apply_yaml_config_fn: Callable[[dict[str, Any], dict[str, Any]], Mapping[str, Any] | None] | None = None
    """Settings under the adapter's names, made from all settings and its own section."""
    cron_deliver_env_var: str = ""
    """The variable with the home channel."""
    standalone_sender_fn: Callable[..., Awaitable[Any]] | None = None


def find_flaw(entry: PlatformEntry) -> str:
    """Why it cannot be used; empty if it can."""
    if not isinstance(entry.name, str) or not _NAME.fullmatch(entry.name):  # pyright: ignore[reportUnnecessaryIsInstance]
        return f"{as_text(entry.name)!r} cannot be the name of a platform"
    if not callable(entry.adapter_factory) or not callable(entry.check_fn):
        return f"platform {entry.name} has no adapter_factory, or no check_fn"
    for name in _ENTRY_FUNCTIONS:
        if getattr(entry, name) is not None and not callable(getattr(entry, name)):
            return f"{name} of platform {entry.name} is not callable"
    for name in ("label", *_ENTRY_TEXTS):
        if not isinstance(getattr(entry, name), str):
            return f"{name} of platform {entry.name} is not text"
    if not isinstance(entry.max_message_length, int) or entry.max_message_length < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        return f"max_message_length of platform {entry.name} is not a length"
    return ""


@dataclass(frozen=True, slots=True)
class PluginTool:
    spec: ToolSpec
    handler: Callable[..., Any]
    toolset: str = ""
    check: Callable[[], object] | None = None
    """Whether it can be used here at all."""
    is_override: bool = False
    """It wants to replace an existing tool."""


@dataclass(frozen=True, slots=True)
class PluginCommand:
    name: str
    handler: Callable[[str], Any]
    description: str = ""
    args_hint: str = ""


@dataclass(frozen=True, slots=True)
class PluginCli:
    """A command of `talaria` itself; `setup` is given an argparse parser."""

    name: str
    help: str
    setup: Callable[[Any], object]
    handler: Callable[[Any], object] | None = None


@dataclass(frozen=True, slots=True)
class PluginSkill:
    name: str
    """`plugin:name`."""
    path: Path
    description: str = ""


@dataclass(slots=True)
class Registered:
    tools: list[PluginTool] = field(default_factory=list[PluginTool])
    hooks: list[tuple[str, Callable[..., Any]]] = field(default_factory=list[tuple[str, Callable[..., Any]]])
    commands: list[PluginCommand] = field(default_factory=list[PluginCommand])
    cli: list[PluginCli] = field(default_factory=list[PluginCli])
    skills: list[PluginSkill] = field(default_factory=list[PluginSkill])
    platforms: list[PlatformEntry] = field(default_factory=list[PlatformEntry])
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Its own kinds of small model calls."""
    engine: ContextEngine | None = None
    memory: MemoryProvider | None = None
    problems: list[str] = field(default_factory=list[str])
    """What was refused."""


def engine_name(engine: ContextEngine | None) -> str:
    """The name by which it is chosen; empty if there is none."""
    return "" if engine is None else _own_name(engine)


def memory_name(memory: MemoryProvider | None) -> str:
    return "" if memory is None else _own_name(memory)


def _own_name(part: ContextEngine | MemoryProvider) -> str:
    try:
        return contain(lambda: as_text(part.name))
    except PluginError:  # a property of the plugin that raises
        return "?"
