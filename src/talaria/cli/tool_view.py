"""Tools as `talaria tools` sees them: those that a conversation would begin with now, and why others are missing.

Plugins are loaded as a conversation would load them; MCP servers are not started: what they offered last is known.
"""

import asyncio
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import msgspec

from talaria.compose import builtin_tools
from talaria.core.clock import Clock, SystemClock
from talaria.settings import Settings
from talaria.store.memory import MemoryStore
from talaria.tools.base import Tool
from talaria.tools.mcp import project_servers
from talaria.tools.mcp.server_connection import ServerConnection
from talaria.tools.mcp.server_tools import tools_of
from talaria.tools.registry import Toolbox
from talaria.tools.toolsets import BUILTIN, toolset_of

_NEEDED = {"browser": "playwright"}
"""Toolsets that need an extra of their name, and a package that it brings."""


class ListedTool(msgspec.Struct, frozen=True):
    name: str
    description: str
    is_on: bool
    problem: str = ""
    """Why it cannot be used here."""


class Group(msgspec.Struct, frozen=True):
    name: str
    tools: tuple[ListedTool, ...] = ()
    problem: str = ""


class ToolList(msgspec.Struct, frozen=True):
    groups: Mapping[str, Group]
    """Toolsets by name; some may have no tools here."""
    notices: tuple[str, ...] = ()


def looked(settings: Settings) -> ToolList:
    return asyncio.run(_look(settings, SystemClock()))


async def _look(settings: Settings, clock: Clock) -> ToolList:
    ours = Toolbox(builtin_tools(MemoryStore(clock), settings, clock))
    offered, overrides, unusable = await _of_plugins(settings, clock)
    served, unknown = await _of_servers(settings, clock)
    toolbox = ours.without(overrides).joined(served).joined(offered)
    tools = [toolbox.find(name) for name in toolbox.names]
    switches, problems = settings.config.tools, {**dict(_missing_extras()), **unknown}
    groups = {name: Group(name, (), problems.get(name, "")) for name in (*BUILTIN, *problems)}
    for tool in tools:
        spec, group = tool.spec, groups.get(toolset_of(tool)) or Group(toolset_of(tool))
        listed = ListedTool(spec.name, spec.description, switches.admit(tool), unusable.get(spec.name, ""))
        groups[group.name] = msgspec.structs.replace(group, tools=(*group.tools, listed))
    return ToolList(groups, tuple(switches.strangers(tools)))


def _missing_extras() -> Iterator[tuple[str, str]]:
    for toolset, package in _NEEDED.items():
        if find_spec(package) is None:
            install = f"{sys.executable} -m pip install 'talaria-agent[{toolset}]'"
            yield toolset, f"needs a package that is not installed; run: {install}"


async def _of_plugins(settings: Settings, clock: Clock) -> tuple[list[Tool], set[str], dict[str, str]]:
    """Their tools, those of ours that give way to them, and why some cannot be used now."""
    if not settings.config.wants_plugins:
        return [], set(), {}
    from talaria.cli.plugin_view import opened  # noqa: PLC0415  (who has no plugins does not pay for them)
    from talaria.plugins.contributions import usable  # noqa: PLC0415
    from talaria.plugins.skills import skill_tool  # noqa: PLC0415

    async with opened(settings) as extensions:
        brought = extensions.brought
        there = {tool.spec.name for tool in await usable(brought.tools, clock)}
        unusable = {
            one.tool.spec.name: f"plugin {one.plugin.key} says that it cannot be used now"
            for one in brought.tools
            if one.tool.spec.name not in there
        }
        skills = [skill_tool(brought.skills)] if brought.skills else []
        return [*(one.tool for one in brought.tools), *skills], brought.overrides, unusable


async def _of_servers(settings: Settings, clock: Clock) -> tuple[tuple[Tool, ...], dict[str, str]]:
    """What they offered last; and of which toolsets nothing is known."""
    entries = project_servers.choose(
        settings.config.all_mcp_servers, Path.cwd(), settings.home, settings.environment
    ).entries
    connections = [
        ServerConnection(name, entry, settings.home, clock, settings.environment, None)
        for name, entry in entries.items()
        if entry.enabled
    ]
    for one in connections:
        await one.recall()
    unknown = [one.name for one in connections if one.listing is None or not one.listing.is_known]
    return tools_of(connections), {
        f"mcp:{name}": f"its tools are not known yet; talaria mcp test {name} asks for them" for name in unknown
    }
