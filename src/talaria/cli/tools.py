"""`talaria tools`: list the tools a conversation would start with now, and choose which ones the model may use.

Plugins are loaded as a conversation would load them. MCP servers are not started; what they last offered is known.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

import click
import msgspec

from talaria.app.build import builtin_tools
from talaria.app.settings import Settings
from talaria.cli import context
from talaria.cli.command_name import runnable
from talaria.cli.command_output import json_option, print_json
from talaria.cli.command_tree import ListingGroup
from talaria.cli.notices import say, show
from talaria.cli.safe import brief
from talaria.config import edit
from talaria.core.clock import Clock, SystemClock
from talaria.core.errors import BadInput
from talaria.store.memory import MemoryStore
from talaria.tools.base import Tool
from talaria.tools.mcp import project_servers
from talaria.tools.mcp.server_connection import ServerConnection
from talaria.tools.mcp.servers import tools_of
from talaria.tools.registry import ALL, BUILTIN_TOOLSETS, Toolbox, ToolSwitches, builtin_toolset, toolset_of

_NEEDED = {"browser": "playwright"}
"""Toolsets that need an optional dependency of the same name, and a package in it."""


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


async def collect_tools(settings: Settings) -> ToolList:
    clock = SystemClock()
    ours = Toolbox(builtin_tools(MemoryStore(clock), settings, clock))
    offered, overrides, unusable = await _load_plugin_tools(settings, clock)
    served, unknown = await _recall_server_tools(settings, clock)
    toolbox = ours.without(overrides).with_tools(served).with_tools(offered)
    tools = [toolbox.find(name) for name in toolbox.names]
    switches, problems = settings.config.tools, dict[str, str]()
    for toolset, package in _NEEDED.items():
        if find_spec(package) is None:
            install = f"{sys.executable} -m pip install 'talaria-agent[{toolset}]'"
            problems[toolset] = f"needs a package that is not installed; run: {install}"
    problems |= unknown
    groups = {name: Group(name, (), problems.get(name, "")) for name in (*BUILTIN_TOOLSETS, *problems)}
    for tool in tools:
        spec, group = tool.spec, groups.get(toolset_of(tool)) or Group(toolset_of(tool))
        listed = ListedTool(spec.name, spec.description, switches.admit(tool), unusable.get(spec.name, ""))
        groups[group.name] = msgspec.structs.replace(group, tools=(*group.tools, listed))
    return ToolList(groups, tuple(switches.find_unknown_names(tools)))


async def _load_plugin_tools(settings: Settings, clock: Clock) -> tuple[list[Tool], set[str], dict[str, str]]:
    """The tools of plugins, the built-in ones they replace, and why some cannot be used now."""
    if not settings.config.wants_plugins:
        return [], set(), {}
    from talaria.cli.plugin_view import open_plugins  # noqa: PLC0415  (only loaded if plugins are wanted)
    from talaria.plugins.contributions import select_usable  # noqa: PLC0415
    from talaria.plugins.session_hooks import skill_tool  # noqa: PLC0415

    async with open_plugins(settings) as extensions:
        brought = extensions.brought
        usable_names = {tool.spec.name for tool in await select_usable(brought.tools, clock)}
        unusable = {
            one.tool.spec.name: f"plugin {one.plugin.key} says that it cannot be used now"
            for one in brought.tools
            if one.tool.spec.name not in usable_names
        }
        skills = [skill_tool(brought.skills)] if brought.skills else []
        return [*(one.tool for one in brought.tools), *skills], brought.overrides, unusable


async def _recall_server_tools(settings: Settings, clock: Clock) -> tuple[tuple[Tool, ...], dict[str, str]]:
    """The tools that MCP servers last offered, and a problem for each server whose tools are unknown."""
    entries = project_servers.choose(
        settings.config.all_mcp_servers, Path.cwd(), settings.home, settings.environment
    ).entries
    connections = [
        ServerConnection(name, entry, settings.home, clock, settings.environment, None)
        for name, entry in entries.items()
        if entry.enabled
    ]
    for one in connections:
        await one.load_listing()
    unknown = [one.name for one in connections if one.listing is None or not one.listing.is_known]
    return tools_of(connections), {
        f"mcp:{name}": f"its tools are not known yet; to ask for them: talaria mcp test {name}" for name in unknown
    }


ABOUT_CHARS = 100


command = ListingGroup("tools", help="List tools, and choose which ones the model may use.")


@command.command("list", help="List all tools by toolset, and whether they are on.")
@json_option
@click.pass_context
def list_tools(ctx: click.Context, as_json: bool) -> None:
    found = asyncio.run(collect_tools(context.settings(ctx)))
    shown = [group for group in found.groups.values() if group.tools or group.problem]
    if as_json:
        print_json({"toolsets": shown, "notices": found.notices})
        return
    for group in shown:
        show(runnable(f"{group.name}{_format_problem(group.problem)}"))
        for tool in group.tools:
            about = brief(tool.description.partition("\n\n")[0], ABOUT_CHARS)
            show(runnable(f"  {'on' if tool.is_on else 'off':<3}  {tool.name}  {about}{_format_problem(tool.problem)}"))
    for notice in found.notices:
        say(f"! {notice}")


def _format_problem(problem: str) -> str:
    return f"  ! {problem}" if problem else ""


@command.command("enable", help="Let the model use tools, or whole toolsets. `all` means everything.")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.pass_context
def enable(ctx: click.Context, names: tuple[str, ...]) -> None:
    _switch_all(ctx, names, on=True)


@command.command("disable", help="Keep the model from using tools or toolsets. `all` means everything.")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.pass_context
def disable(ctx: click.Context, names: tuple[str, ...]) -> None:
    _switch_all(ctx, names, on=False)


def _switch_all(ctx: click.Context, names: tuple[str, ...], *, on: bool) -> None:
    settings = context.settings(ctx)
    groups, before = asyncio.run(collect_tools(settings)).groups, settings.config.tools
    after: ToolSwitches = before
    for name in names:
        after = _switch(after, name, groups, on=on)
    for setting, given in (("disabled", after.disabled), ("enabled", after.enabled)):
        if given != getattr(before, setting):
            edit.set_value(settings.home, f"tools.{setting}", json.dumps(given, ensure_ascii=False))
    for name in names:
        problem = groups[name].problem if on and name in groups else ""
        show(runnable(f"{'Enabled' if on else 'Disabled'} {name}.{_format_problem(problem)}"))


def _switch(switches: ToolSwitches, name: str, groups: Mapping[str, Group], *, on: bool) -> ToolSwitches:
    """If a toolset and a tool have the same name, it means the toolset."""
    toolsets = {tool.name: group.name for group in groups.values() for tool in group.tools}
    if name == ALL:
        return switches.switch(ALL, on=on, within=(*switches.disabled, *switches.enabled))
    if name in groups:
        return switches.switch(name, on=on, within=[tool.name for tool in groups[name].tools])
    toolset = toolsets.get(name) or builtin_toolset(name)
    if toolset:
        return switches.switch(name, toolset, on=on)
    if name in (*switches.disabled, *switches.enabled):  # it no longer exists
        return switches.switch(name, on=on)
    near = get_close_matches(name, [*groups, *toolsets], 1)
    hint = f"did you mean {near[0]!r}?" if near else "`talaria tools list` lists them all."
    raise BadInput(f"There is no tool or toolset {name!r}; {hint}")
