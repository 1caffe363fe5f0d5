"""`tools.registry`: what handlers answer with, and the tools of plugins."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from talaria.compat.hermes.bound import bound
from talaria.model.errors import ModelCorrectable
from talaria.model.ids import new_call_id
from talaria.model.messages import ToolCall
from talaria.plugins.loading import loading
from talaria.plugins.registered import PluginTool
from talaria.runtime.current import serving
from talaria.tools.executor import Executor

__all__ = ["ToolRegistry", "registry", "tool_error", "tool_result"]


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
        """Run a tool of the conversation that is being served, past its gate. What goes wrong is in the answer."""
        current = serving.get()
        if current is None:
            return tool_error("There is no conversation here whose tools could be used.")
        call = ToolCall(new_call_id(), name, _json(args or {}))
        try:
            return bound().bridge.run(lambda: _run(current.tools, call))
        except ModelCorrectable as refusal:
            return tool_error(refusal)

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


async def _run(executor: Executor, call: ToolCall) -> str:
    prepared = executor.prepare(call)
    await executor.admit(prepared)
    result = await executor.run(prepared)
    return tool_error(result.text) if result.is_error else result.text


def _tools() -> dict[str, PluginTool]:
    """Of equal names the first."""
    offered = [tool for plugin in bound().host.loaded for tool in plugin.registered.tools]
    return {tool.spec.name: tool for tool in reversed(offered)}
