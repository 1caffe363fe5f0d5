"""`hermes_cli.plugins`, `hermes_cli.middleware`, `hermes_cli.commands`, `plugins.context_engine`, `providers`,
`tools.registry`: the plugins of the running application and what they registered, as code for Hermes sees them."""

import asyncio
import inspect
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from talaria.compat.hermes.bound import Bound, require_bound
from talaria.context.engine import ContextEngine
from talaria.plugins.api import PluginContext as PluginContext  # noqa: PLC0414  (passed on)
from talaria.plugins.contributions import is_bundled_engine, owner_of
from talaria.plugins.discovery import ENGINES
from talaria.plugins.discovery import PluginManifest as PluginManifest  # noqa: PLC0414  (passed on)
from talaria.plugins.loading import loading
from talaria.plugins.plugin_hooks import VALID_HOOKS as VALID_HOOKS  # noqa: PLC0414  (passed on)
from talaria.plugins.plugin_host import Plugin as LoadedPlugin
from talaria.plugins.registered import OMIT_TEMPERATURE as OMIT_TEMPERATURE  # noqa: PLC0414  (passed on)
from talaria.plugins.registered import PluginTool, ProviderProfile, engine_name
from talaria.plugins.services import dispatch
from talaria.runtime.commands import Category, Command, Surface, normalise

COMMAND_S = 30.0

log = logging.getLogger(__name__)


class PluginManager:
    """A view. `_hooks` is the table itself: what is appended to it is called. The rest is made when it is read."""

    def __init__(self, application: Bound) -> None:
        self._application = application
        self._hooks = application.host.hooks.callbacks

    @property
    def _plugins(self) -> dict[str, LoadedPlugin]:  # pyright: ignore[reportUnusedFunction]
        return self._application.host.plugins

    @property
    def _plugin_commands(self) -> dict[str, dict[str, Any]]:  # pyright: ignore[reportUnusedFunction]
        return _commands(self._application)

    @property
    def _context_engine(self) -> ContextEngine | None:  # pyright: ignore[reportUnusedFunction]
        return next((one.registered.engine for one in self._application.host.loaded if one.registered.engine), None)

    def invoke_hook(self, hook_name: str, **facts: Any) -> list[Any]:
        """The answers. It waits for them, so if that would block the event loop no callback is called."""
        if not self._hooks.get(hook_name):
            return []
        try:
            return self._application.bridge.run(lambda: self._application.host.hooks.invoke(hook_name, **facts))
        except RuntimeError as refusal:
            log.warning("hook %s is not fired: %s", hook_name, refusal)
            return []

    def has_hook(self, hook_name: str) -> bool:
        return bool(self._hooks.get(hook_name))

    def list_plugins(self) -> list[dict[str, Any]]:
        return [
            {
                "name": plugin.found.manifest.name,
                "key": plugin.key,
                "kind": plugin.found.manifest.kind,
                "version": plugin.found.manifest.version,
                "description": plugin.found.manifest.description,
                "source": plugin.found.source,
                "enabled": plugin.status == "loaded",
                "tools": len(plugin.registered.tools),
                "hooks": len(plugin.registered.hooks),
                "middleware": 0,
                "commands": len(plugin.registered.commands),
                "error": plugin.problems[0] if plugin.status == "failed" and plugin.problems else None,
            }
            for _, plugin in sorted(self._application.host.plugins.items())
        ]

    def discover_and_load(self, force: bool = False) -> None:
        """Does nothing: it was done when the application was opened."""


def get_plugin_manager() -> PluginManager:
    return PluginManager(require_bound())


def discover_plugins(force: bool = False) -> None:
    """Does nothing: it was done when the application was opened."""


def invoke_hook(hook_name: str, **facts: Any) -> list[Any]:
    """Like `PluginManager.invoke_hook`."""
    return get_plugin_manager().invoke_hook(hook_name, **facts)


def has_hook(hook_name: str) -> bool:
    return get_plugin_manager().has_hook(hook_name)


def invoke_middleware(kind: str, **facts: Any) -> list[Any]:  # noqa: ARG001
    """There is none here."""
    return []


def has_middleware(kind: str) -> bool:  # noqa: ARG001
    return False


def get_pre_tool_call_directive(
    tool_name: str, args: dict[str, Any] | None, **facts: Any
) -> tuple[str | None, str | None]:
    """`block` or `approve`, and the message, from the first plugin that objects or wants a person to decide."""
    for answer in invoke_hook("pre_tool_call", tool_name=tool_name, args=args or {}, **facts):
        if isinstance(answer, dict):
            directive = cast("dict[str, Any]", answer)
            if directive.get("action") in ("block", "approve"):
                return directive["action"], str(directive.get("message") or "")
    return None, None


def get_plugin_context_engine() -> ContextEngine | None:
    return get_plugin_manager()._context_engine  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def get_plugin_commands() -> dict[str, dict[str, Any]]:
    return _commands(require_bound())


def get_plugin_command_handler(name: str) -> Callable[[str], Any] | None:
    entry = get_plugin_commands().get(normalise(name))
    return entry["handler"] if entry else None


def resolve_plugin_command_result(result: Any) -> Any:
    """What a handler returned; awaited if it is async. Raises `TimeoutError`."""
    if not inspect.isawaitable(result):
        return result

    async def wait() -> Any:
        async with asyncio.timeout(COMMAND_S):
            return await result

    with ThreadPoolExecutor(1) as pool:  # the caller may have an event loop
        return pool.submit(copy_context().run, asyncio.run, wait()).result()


def get_plugin_auxiliary_tasks() -> list[dict[str, Any]]:
    tasks = [
        {"key": key, **task, "plugin": plugin.key}
        for plugin in require_bound().host.loaded
        for key, task in plugin.registered.tasks.items()
    ]
    return sorted(tasks, key=lambda task: task["key"])


def get_plugin_toolsets() -> list[tuple[str, str, str]]:
    """Name, display name, and the tools in it."""
    names: dict[str, list[str]] = {}
    for plugin in require_bound().host.loaded:
        for tool in plugin.registered.tools:
            names.setdefault(tool.toolset or plugin.key, []).append(tool.spec.name)
    return [(key, key.replace("_", " ").title(), ", ".join(sorted(tools))) for key, tools in sorted(names.items())]


def _commands(application: Bound) -> dict[str, dict[str, Any]]:
    """Those that got their name: it may have been taken."""
    table: dict[str, dict[str, Any]] = {}
    for plugin in application.host.loaded:
        owner = owner_of(plugin)
        label = owner.removeprefix("plugin:") if is_bundled_engine(plugin) else plugin.key
        for command in plugin.registered.commands:
            name = normalise(command.name)
            found = application.commands.find(name, "terminal")
            if isinstance(found, Command) and found.name == name and found.owner == owner:
                entry = {"handler": command.handler, "description": command.description, "plugin": label}
                table.setdefault(name, {**entry, "args_hint": command.args_hint})
    return table


# Middleware: only its names. Nothing is registered, so everything passes unchanged.

TOOL_REQUEST_MIDDLEWARE = "tool_request"
TOOL_EXECUTION_MIDDLEWARE = "tool_execution"
LLM_REQUEST_MIDDLEWARE = "llm_request"
LLM_EXECUTION_MIDDLEWARE = "llm_execution"
VALID_MIDDLEWARE = {
    TOOL_REQUEST_MIDDLEWARE,
    TOOL_EXECUTION_MIDDLEWARE,
    LLM_REQUEST_MIDDLEWARE,
    LLM_EXECUTION_MIDDLEWARE,
}


@dataclass
class RequestMiddlewareResult:
    payload: Any
    original_payload: Any
    changed: bool = False
    trace: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


def apply_llm_request_middleware(request: dict[str, Any], **_: Any) -> RequestMiddlewareResult:
    return RequestMiddlewareResult(request, request)


def apply_tool_request_middleware(tool_name: str, args: dict[str, Any], **_: Any) -> RequestMiddlewareResult:  # noqa: ARG001
    return RequestMiddlewareResult(args, args)


def run_llm_execution_middleware(request: dict[str, Any], next_call: Callable[[dict[str, Any]], Any], **_: Any) -> Any:
    return next_call(request)


def run_tool_execution_middleware(
    tool_name: str,  # noqa: ARG001
    args: dict[str, Any],
    next_call: Callable[[dict[str, Any]], Any],
    **_: Any,
) -> Any:
    return next_call(args)


# Slash commands, under the names and categories of Hermes.

_CATEGORIES: dict[Category, str] = {
    "conversation": "Session",
    "model": "Configuration",
    "plugins": "Tools & Skills",
    "info": "Info",
    "leave": "Exit",
}


@dataclass(frozen=True)
class CommandDef:
    name: str
    description: str
    category: str
    aliases: tuple[str, ...] = ()
    args_hint: str = ""
    subcommands: tuple[str, ...] = ()
    cli_only: bool = False
    gateway_only: bool = False
    gateway_config_gate: str | None = None


def is_gateway_known_command(name: str | None) -> bool:
    """Whether chats have a command of exactly this name."""
    return _find_command(name, "platform") is not None


def resolve_command(name: str | None) -> CommandDef | None:
    return _find_command(name, "terminal") or _find_command(name, "platform")


def _find_command(name: str | None, surface: Surface) -> CommandDef | None:
    found = require_bound().commands.find(name or "", surface)
    return _to_command_def(found) if isinstance(found, Command) and normalise(name or "") in found.words else None


def _to_command_def(command: Command) -> CommandDef:
    return CommandDef(
        command.name,
        command.description,
        _CATEGORIES[command.category],
        command.aliases,
        command.args_hint,
        cli_only=command.cli_only,
        gateway_only=command.gateway_only,
    )


class CommandRegistry(Sequence[CommandDef]):
    """All commands that there are when it is read."""

    def __getitem__(self, index: Any) -> Any:
        now: Any = self._now()
        return now[index]

    def __len__(self) -> int:
        return len(self._now())

    def _now(self) -> list[CommandDef]:
        commands = require_bound().commands
        found = dict.fromkeys((*commands.visible("terminal"), *commands.visible("platform")))
        return [_to_command_def(command) for command in found]


class KnownCommands(AbstractSet[str]):
    """All names of commands in chats that there are when it is read."""

    def __contains__(self, word: object) -> bool:
        return word in self._now()

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def _now(self) -> frozenset[str]:
        return frozenset(word for command in require_bound().commands.visible("platform") for word in command.words)


COMMAND_REGISTRY = CommandRegistry()
GATEWAY_KNOWN_COMMANDS = KnownCommands()


# Context engines and model providers.


def discover_context_engines() -> list[tuple[str, str, bool]]:
    """Name, description, and whether it can be used. One that is not loaded is called by the name of its folder."""
    plugins = require_bound().host.plugins.values()
    known = [one for one in plugins if one.registered.engine or one.found.category == ENGINES]
    return sorted(
        (
            engine_name(one.registered.engine) or one.key.rpartition("/")[2],
            one.found.manifest.description,
            one.status != "failed",
        )
        for one in known
    )


def load_context_engine(name: str) -> ContextEngine | None:
    """The registered one, of which sessions get copies; None unless its plugin is loaded."""
    engines = [plugin.registered.engine for plugin in require_bound().host.loaded if plugin.registered.engine]
    return next((engine for engine in engines if engine_name(engine) == name), None)


def register_provider(profile: ProviderProfile) -> None:
    """Replaces an earlier one of the same name."""
    require_bound().providers[profile.name] = profile


def get_provider_profile(name: str) -> ProviderProfile | None:
    """By name or alias; only those that plugins have registered."""
    known = require_bound().providers
    return known.get(name) or next((one for one in known.values() if name in one.aliases), None)


def list_providers() -> list[ProviderProfile]:
    return list(require_bound().providers.values())


# Tools, and what their handlers answer with.


def tool_error(message: object, **extra: Any) -> str:
    return _json({"error": str(message), **extra})


def tool_result(data: Any = None, **fields: Any) -> str:
    return _json(fields if data is None else data)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


class ToolRegistry:
    """Plugins register tools here, too; only theirs are listed."""

    def register(
        self,
        name: str,
        toolset: str = "",
        schema: Mapping[str, Any] | None = None,
        handler: Callable[..., Any] | None = None,
        check_fn: Callable[[], object] | None = None,
        *,
        description: str = "",
        override: bool = False,
        **_: Any,
    ) -> None:
        """For the plugin that is being loaded. Raises `RuntimeError` if none is."""
        ctx = loading.get()
        if ctx is None:
            raise RuntimeError(f"Tool {name} comes too late: register tools while the plugin is loaded.")
        ctx.register_tool(name, toolset, schema, handler, check_fn, description=description, override=override)

    def dispatch(self, name: str, args: dict[str, Any] | None = None, **_: Any) -> str:
        """Like a plugin's `ctx.dispatch_tool`."""
        return dispatch(require_bound().bridge, name, dict(args or {}))

    def get_all_tool_names(self) -> list[str]:
        return sorted(_tools())

    def get_entry(self, name: str) -> PluginTool | None:
        return _tools().get(name)

    def get_schema(self, name: str) -> dict[str, Any] | None:
        tool = _tools().get(name)
        if tool is None:
            return None
        parameters = msgspec.json.decode(tool.spec.parameters)
        return {"name": name, "description": tool.spec.description, "parameters": parameters}

    def get_toolset_for_tool(self, name: str) -> str | None:
        tool = _tools().get(name)
        return tool.toolset if tool else None

    def get_tool_to_toolset_map(self) -> dict[str, str]:
        return {name: tool.toolset for name, tool in _tools().items()}

    def get_registered_toolset_names(self) -> list[str]:
        return sorted({tool.toolset for tool in _tools().values()})

    def get_tool_names_for_toolset(self, toolset: str) -> list[str]:
        return sorted(name for name, tool in _tools().items() if tool.toolset == toolset)


registry = ToolRegistry()


def _tools() -> dict[str, PluginTool]:
    """The first of each name."""
    offered = [tool for plugin in require_bound().host.loaded for tool in plugin.registered.tools]
    return {tool.spec.name: tool for tool in reversed(offered)}
