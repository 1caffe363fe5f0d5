"""What the loaded plugins bring, once it is settled who gets which name. Built-ins keep theirs, and so does whoever
came first; the loser is told of in its plugin's problems."""

import json
from collections.abc import Awaitable, Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from talaria.context.engine import ContextEngine
from talaria.foreign import Broke, contained, fitting, returned, within
from talaria.model.clock import Clock
from talaria.model.errors import OperatorError, UserFacing
from talaria.plugins.discovery import ENGINES
from talaria.plugins.host import Plugin, PluginHost
from talaria.plugins.registered import PluginCommand, PluginSkill, PluginTool
from talaria.runtime.chat import Chat, Outcome, Say
from talaria.runtime.commands import Command, Commands
from talaria.tools.base import Run, Tool
from talaria.tools.schema_tool import SchemaTool, as_result
from talaria.waiting import in_thread

COMMAND_S = 30.0
CHECK_S = 5.0


class CommandFailed(UserFacing):
    """A plugin's slash command did."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A plugin's tool, if it can be used here."""

    tool: Tool
    check: Callable[[], object] | None
    plugin: Plugin


@dataclass(slots=True)
class Contributions:
    tools: list[OfferedTool] = field(default_factory=list[OfferedTool])
    overrides: set[str] = field(default_factory=set[str])
    """Tools of ours that give way."""
    engines: dict[str, Plugin] = field(default_factory=dict[str, Plugin])
    memory: dict[str, Plugin] = field(default_factory=dict[str, Plugin])
    skills: dict[str, PluginSkill] = field(default_factory=dict[str, PluginSkill])


def gather(host: PluginHost, taken: AbstractSet[str], commands: Commands, clock: Clock) -> Contributions:
    """`taken` are the names of our own tools; `commands` get those of the plugins."""
    brought = Contributions()
    names = set(taken)
    for plugin in sorted(host.loaded, key=lambda plugin: plugin.found.source != "bundled"):
        for offered in plugin.registered.tools:
            _add_tool(offered, plugin, host, names, brought)
        for command in plugin.registered.commands:
            _add_command(command, plugin, commands, clock)
        brought.skills |= {skill.name: skill for skill in plugin.registered.skills}
        _add_single(plugin, brought)
    return brought


def _add_tool(offered: PluginTool, plugin: Plugin, host: PluginHost, names: set[str], brought: Contributions) -> None:
    name = offered.spec.name
    if name in names and offered.is_override and host.may_override(plugin):
        brought.overrides.add(name)
        brought.tools = [one for one in brought.tools if one.tool.spec.name != name]
    elif name in names:
        plugin.problems.append(f"its tool {name} is left out: another has that name")
        return
    names.add(name)
    brought.tools.append(OfferedTool(SchemaTool(offered.spec, _handler(offered)), offered.check, plugin))


def _handler(offered: PluginTool) -> Callable[[dict[str, Any], Run], Awaitable[str]]:
    async def handle(arguments: dict[str, Any], run: Run) -> str:
        facts = {"task_id": run.scope.session, "session_id": run.scope.session, "tool_call_id": run.call}
        try:
            return await in_thread(lambda: _contained(offered.handler, arguments, facts))
        except Broke as fault:
            return json.dumps({"error": f"{offered.spec.name} {fault}"})

    return handle


def _contained(handler: Callable[..., Any], arguments: dict[str, Any], facts: dict[str, Any]) -> str:
    return contained(lambda: as_result(returned(handler, arguments, **fitting(handler, facts))))


def _add_command(command: PluginCommand, plugin: Plugin, commands: Commands, clock: Clock) -> None:
    try:
        commands.add(
            Command(
                command.name,
                command.description or f"(of plugin {plugin.name})",
                "plugins",
                _runner(command, clock),
                args_hint=command.args_hint,
                owner=owner_of(plugin),
            )
        )
    except OperatorError as refusal:
        plugin.problems.append(str(refusal))


def owner_of(plugin: Plugin) -> str:
    """As the table of commands names it."""
    engine = plugin.registered.engine
    if engine is not None and plugin.found.category == ENGINES:
        return f"context-engine:{engine_name(engine)}"
    return f"plugin:{plugin.key}"


def _runner(command: PluginCommand, clock: Clock) -> Callable[[Chat, str], Awaitable[Outcome]]:
    async def run(chat: Chat, argument: str) -> Outcome:  # noqa: ARG001
        try:
            answer = await within(lambda: returned(command.handler, argument), COMMAND_S, clock)
        except Broke as fault:
            raise CommandFailed(f"/{command.name} {fault}.") from fault
        return Say(str(answer)) if answer else None

    return run


def _add_single(plugin: Plugin, brought: Contributions) -> None:
    """Of engines and memory providers one is chosen, by name."""
    if plugin.registered.engine is not None:
        _add_named(engine_name(plugin.registered.engine), "context engine", plugin, brought.engines)
    if plugin.registered.memory is not None:
        _add_named(plugin.registered.memory.name, "memory provider", plugin, brought.memory)


def _add_named(name: str, what: str, plugin: Plugin, table: dict[str, Plugin]) -> None:
    if name in table:
        plugin.problems.append(f"its {what} is left out: {table[name].key} has one called {name}")
    else:
        table[name] = plugin


def engine_name(engine: ContextEngine) -> str:
    try:
        return str(engine.name)
    except Exception:  # noqa: BLE001  (somebody's property)
        return "?"


async def usable(offered: Iterable[OfferedTool], clock: Clock) -> list[Tool]:
    """Those whose own check says so, now."""
    tools: list[Tool] = []
    for one in offered:
        check = one.check
        try:
            if check is None or await within(lambda check=check: returned(check), CHECK_S, clock):
                tools.append(one.tool)
        except Broke as fault:
            one.plugin.problems.append(f"the check of its tool {one.tool.spec.name} {fault}")
    return tools
