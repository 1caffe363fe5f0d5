"""`hermes_cli.plugins`: the plugins of the running application, as code for Hermes looks at them."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, cast

from talaria.compat.hermes.bound import Bound, require_bound
from talaria.context.engine import ContextEngine
from talaria.plugins.api import PluginContext as PluginContext  # noqa: PLC0414  (passed on)
from talaria.plugins.contributions import is_bundled_engine, owner_of
from talaria.plugins.discovery import PluginManifest as PluginManifest  # noqa: PLC0414  (passed on)
from talaria.plugins.plugin_hooks import VALID_HOOKS as VALID_HOOKS  # noqa: PLC0414  (passed on)
from talaria.plugins.plugin_host import Plugin as LoadedPlugin
from talaria.runtime.commands import Command, normalise

COMMAND_S = 30.0

log = logging.getLogger(__name__)


class PluginManager:
    """A view. `_hooks` is the table itself, so what is appended to it is called; the rest is made when it is read."""

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
        """What those who answer say. It waits, so where that would stop the event loop nobody is called."""
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
        return [_to_dict(plugin) for _, plugin in sorted(self._application.host.plugins.items())]

    def discover_and_load(self, force: bool = False) -> None:
        """Done when the application was opened, and once."""


def get_plugin_manager() -> PluginManager:
    return PluginManager(require_bound())


def discover_plugins(force: bool = False) -> None:
    """Done when the application was opened, and once."""


def invoke_hook(hook_name: str, **facts: Any) -> list[Any]:
    """As `PluginManager.invoke_hook`."""
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
    """Of the first plugin that wants to `block` the call, or a person to `approve` it: that word, and its message."""
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
    with ThreadPoolExecutor(1) as pool:  # the caller may have an event loop
        return pool.submit(copy_context().run, asyncio.run, _await_result(result)).result()


def get_plugin_auxiliary_tasks() -> list[dict[str, Any]]:
    tasks = [
        {"key": key, **task, "plugin": plugin.key}
        for plugin in require_bound().host.loaded
        for key, task in plugin.registered.tasks.items()
    ]
    return sorted(tasks, key=lambda task: task["key"])


def get_plugin_toolsets() -> list[tuple[str, str, str]]:
    """Name, name for people, and the tools in it."""
    names: dict[str, list[str]] = {}
    for plugin in require_bound().host.loaded:
        for tool in plugin.registered.tools:
            names.setdefault(tool.toolset or plugin.key, []).append(tool.spec.name)
    return [(key, key.replace("_", " ").title(), ", ".join(sorted(tools))) for key, tools in sorted(names.items())]


async def _await_result(result: Awaitable[Any]) -> Any:
    async with asyncio.timeout(COMMAND_S):
        return await result


def _commands(application: Bound) -> dict[str, dict[str, Any]]:
    """Those that got their name: another may have had it."""
    table: dict[str, dict[str, Any]] = {}
    for plugin in application.host.loaded:
        for command in plugin.registered.commands:
            name = normalise(command.name)
            found = application.commands.find(name, "terminal")
            if isinstance(found, Command) and found.name == name and found.owner == owner_of(plugin):
                entry = {"handler": command.handler, "description": command.description, "plugin": _label(plugin)}
                table.setdefault(name, {**entry, "args_hint": command.args_hint})
    return table


def _label(plugin: LoadedPlugin) -> str:
    return owner_of(plugin).removeprefix("plugin:") if is_bundled_engine(plugin) else plugin.key


def _to_dict(plugin: LoadedPlugin) -> dict[str, Any]:
    about, brought = plugin.found.manifest, plugin.registered
    return {
        "name": about.name,
        "key": plugin.key,
        "kind": about.kind,
        "version": about.version,
        "description": about.description,
        "source": plugin.found.source,
        "enabled": plugin.status == "loaded",
        "tools": len(brought.tools),
        "hooks": len(brought.hooks),
        "middleware": 0,
        "commands": len(brought.commands),
        "error": plugin.problems[0] if plugin.status == "failed" and plugin.problems else None,
    }
