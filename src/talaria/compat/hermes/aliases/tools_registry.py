"""`tools.registry`: what handlers answer with, and the tools of plugins."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from talaria.compat.hermes.bound import require_bound
from talaria.plugins.loading import loading
from talaria.plugins.registered import PluginTool
from talaria.plugins.services import dispatch


def tool_error(message: object, **extra: Any) -> str:
    return _json({"error": str(message), **extra})


def tool_result(data: Any = None, **fields: Any) -> str:
    return _json(fields if data is None else data)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


class ToolRegistry:
    """Plugins register here, too; only theirs are listed."""

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
            raise RuntimeError(f"Tool {name} comes too late: tools are registered while their plugin is loaded.")
        ctx.register_tool(name, toolset, schema, handler, check_fn, description=description, override=override)

    def dispatch(self, name: str, args: dict[str, Any] | None = None, **_: Any) -> str:
        """As a plugin's `ctx.dispatch_tool`."""
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
    """Of equal names the first."""
    offered = [tool for plugin in require_bound().host.loaded for tool in plugin.registered.tools]
    return {tool.spec.name: tool for tool in reversed(offered)}
