"""What the loaded plugins bring, once it is settled who gets which name. Built-ins keep theirs, and so does whoever
came first; the loser is told of in its plugin's problems. Bundled plugins come first, except for the slash commands of
bundled engines: those come last, so that they take no command from a plugin of the person."""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from talaria.context.engine import HostedEngine
from talaria.core.aio import in_thread
from talaria.core.clock import Clock
from talaria.core.errors import OperatorError, UserFacing
from talaria.core.plugin_calls import PluginError, as_text, call_or_await, contain, run_within, select_keywords
from talaria.plugins.discovery import ENGINES
from talaria.plugins.plugin_host import Plugin, PluginHost
from talaria.plugins.registered import (
    OWN_PLATFORMS,
    PlatformEntry,
    PluginCommand,
    PluginSkill,
    PluginTool,
    Problems,
    engine_name,
    memory_name,
)
from talaria.runtime.chat import Chat
from talaria.runtime.commands import Command, Commands, Outcome, Say, normalise
from talaria.runtime.commands import Run as RunCommand
from talaria.tools.base import Run, Tool
from talaria.tools.function import SchemaTool, encode_result

OWN_COMMANDS = (
    *("chat", "model", "sessions", "rollback", "usage", "config", "import", "tools", "approvals", "plugins", "mcp"),
    *("gateway", "pairing", "doctor", "setup", "send", "backup", "restore", "forget", "profiles", "completion"),
)
"""Of `talaria`; a test holds them against the real ones."""
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
    problems: Problems


@dataclass(frozen=True, slots=True)
class OfferedPlatform:
    entry: PlatformEntry
    plugin: Plugin
    problems: Problems


@dataclass(slots=True)
class Contributions:
    tools: list[OfferedTool] = field(default_factory=list[OfferedTool])
    overrides: set[str] = field(default_factory=set[str])
    """Tools of ours that give way."""
    engines: dict[str, Plugin] = field(default_factory=dict[str, Plugin])
    memory: dict[str, Plugin] = field(default_factory=dict[str, Plugin])
    platforms: dict[str, OfferedPlatform] = field(default_factory=dict[str, OfferedPlatform])
    skills: dict[str, PluginSkill] = field(default_factory=dict[str, PluginSkill])
    cli: dict[str, str] = field(default_factory=dict[str, str])
    """Whose each command of `talaria` is; ours are nobody's to take."""
    tasks: dict[str, str] = field(default_factory=dict[str, str])
    """Whose each kind of small model call is."""


def gather(
    host: PluginHost,
    taken: AbstractSet[str],
    commands: Commands,
    clock: Clock,
    has_chosen_engine: Callable[[Plugin], bool],
) -> Contributions:
    """`taken` are the names of our own tools; `commands` get those of the plugins."""
    brought = Contributions(cli=dict.fromkeys(OWN_COMMANDS, "Talaria"))
    names = set(taken)
    bundled_first = sorted(host.loaded, key=lambda plugin: plugin.found.source != "bundled")
    for plugin in bundled_first:
        for offered in plugin.registered.tools:
            _add_tool(offered, plugin, host, names, brought)
        for entry in plugin.registered.platforms:
            _add_platform(entry, plugin, host, brought.platforms)
        for one in plugin.registered.cli:
            _add_unique(one.name, "command talaria", plugin, brought.cli)
        for key in plugin.registered.tasks:
            _add_unique(key, "auxiliary task", plugin, brought.tasks)
        brought.skills |= {skill.name: skill for skill in plugin.registered.skills}
        _add_single(plugin, brought)
    for plugin in sorted(bundled_first, key=is_bundled_engine):
        for command in plugin.registered.commands:
            _add_command(command, plugin, commands, _runner(command, plugin, clock, has_chosen_engine))
    return brought


def is_bundled_engine(plugin: Plugin) -> bool:
    return plugin.found.category == ENGINES and plugin.found.source == "bundled"


def _add_tool(offered: PluginTool, plugin: Plugin, host: PluginHost, names: set[str], brought: Contributions) -> None:
    name = offered.spec.name
    if name in names and offered.is_override and host.may_override(plugin):
        brought.overrides.add(name)
        brought.tools = [one for one in brought.tools if one.tool.spec.name != name]
    elif name in names:
        plugin.problems.append(f"its tool {name} is left out: another has that name")
        return
    names.add(name)
    toolset = as_text(offered.toolset or plugin.key)
    tool = SchemaTool(offered.spec, _handler(offered, plugin, host.faults), toolset=toolset)
    brought.tools.append(OfferedTool(tool, offered.check, plugin, host.faults))


def _add_platform(
    entry: PlatformEntry, plugin: Plugin, host: PluginHost, platforms: dict[str, OfferedPlatform]
) -> None:
    """Of two of the same plugin the last one counts."""
    known = platforms.get(entry.name)
    owner = known.plugin.key if known is not None else "Talaria" if entry.name in OWN_PLATFORMS else plugin.key
    if owner != plugin.key and not host.may_override(plugin):
        plugin.problems.append(f"its platform {entry.name} is left out: {owner} has one of that name")
        return
    platforms[entry.name] = OfferedPlatform(entry, plugin, host.faults)


def _add_unique(name: str, what: str, plugin: Plugin, table: dict[str, str]) -> None:
    owner = table.setdefault(name, plugin.key)
    if owner != plugin.key:
        plugin.problems.append(f"its {what} {name} is left out: {owner} has it")


def _handler(
    offered: PluginTool, plugin: Plugin, problems: Problems
) -> Callable[[dict[str, Any], Run], Awaitable[str]]:
    def work(arguments: dict[str, Any], facts: dict[str, Any]) -> str:
        given = select_keywords(offered.handler, facts)
        return encode_result(call_or_await(lambda: offered.handler(arguments, **given), plugin.background))

    async def handle(arguments: dict[str, Any], run: Run) -> str:
        facts = {"task_id": run.scope.session, "session_id": run.scope.session, "tool_call_id": run.call}
        try:
            return await in_thread(lambda: contain(lambda: work(arguments, facts)))
        except PluginError as fault:
            problems.add(plugin.key, f"its tool {offered.spec.name}", fault)
            return json.dumps({"error": f"{offered.spec.name} {fault}"})

    return handle


def _add_command(command: PluginCommand, plugin: Plugin, commands: Commands, run: RunCommand) -> None:
    try:
        commands.add(
            Command(
                command.name,
                command.description or f"(of plugin {plugin.name})",
                "plugins",
                run,
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


def _runner(
    command: PluginCommand, plugin: Plugin, clock: Clock, has_chosen_engine: Callable[[Plugin], bool]
) -> RunCommand:
    """A command of the engine that is chosen runs with the engine of the conversation in use, between its other calls;
    any other one runs as it was registered."""
    name = normalise(command.name)

    def work(handler: Callable[[str], Any], argument: str) -> str:
        answer = call_or_await(lambda: handler(argument), plugin.background)
        return "" if answer is None else as_text(answer)

    async def run(chat: Chat, argument: str) -> Outcome:
        engine = await _engine_for(name, chat) if has_chosen_engine(plugin) else None
        try:
            if engine is None:
                answer = await run_within(lambda: work(command.handler, argument), COMMAND_S, clock)
            else:
                handler = engine.commands[name]
                answer = await engine.executor.call(lambda: work(handler, argument), COMMAND_S)
        except PluginError as fault:
            raise CommandFailed(f"/{name} {fault}.") from fault
        return Say(answer) if answer else None

    return run


async def _engine_for(command: str, chat: Chat) -> HostedEngine | None:
    try:
        return await chat.engine()
    except PluginError as fault:
        raise CommandFailed(f"/{command} needs the context engine, which {fault}.") from fault


def _add_single(plugin: Plugin, brought: Contributions) -> None:
    """Of engines and memory providers one is chosen, by name."""
    if plugin.registered.engine is not None:
        _add_named(engine_name(plugin.registered.engine), "context engine", plugin, brought.engines)
    if plugin.registered.memory is not None:
        _add_named(memory_name(plugin.registered.memory), "memory provider", plugin, brought.memory)


def _add_named(name: str, what: str, plugin: Plugin, table: dict[str, Plugin]) -> None:
    if name in table:
        plugin.problems.append(f"its {what} is left out: {table[name].key} has one called {name}")
    else:
        table[name] = plugin


def find_by_name(name: str, table: Mapping[str, Plugin]) -> Plugin | None:
    """By the name of what it brings, or else by one of its own."""
    return table.get(name) or next((plugin for plugin in table.values() if name in plugin.names), None)


async def usable(offered: Iterable[OfferedTool], clock: Clock) -> list[Tool]:
    """Those whose own check says so, now."""
    tools: list[Tool] = []
    for one in offered:
        try:
            if one.check is None or await run_within(partial(_passes, one.check, one.plugin), CHECK_S, clock):
                tools.append(one.tool)
        except PluginError as fault:
            one.problems.add(one.plugin.key, f"the check of its tool {one.tool.spec.name}", fault)
    return tools


def _passes(check: Callable[[], object], plugin: Plugin) -> bool:
    return bool(call_or_await(check, plugin.background))
