"""What the loaded plugins contribute, and which of them gets a name that several want. Built-ins keep their names, and
of two plugins the first does; the other has a problem. Bundled plugins come first, except for the slash commands of
bundled engines: those come last, so that they take no command from the person's plugins."""

import json
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from talaria.context.engine import HostedEngine
from talaria.core.aio import in_thread
from talaria.core.clock import Clock
from talaria.core.errors import OperatorError, UserFacing
from talaria.core.plugin_calls import PluginError, call_or_await, contain, run_within, select_keywords
from talaria.core.text import as_text
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
    *("chat", "model", "attach", "sessions", "rollback", "usage", "config", "import", "tools", "approvals", "plugins"),
    *("mcp", "gateway", "pairing", "doctor", "setup", "send", "backup", "restore", "forget", "profiles", "completion"),
    "api",
)
"""Of `talaria`; a test compares them with the real ones."""
COMMAND_S = 30.0
CHECK_S = 5.0


class CommandFailed(UserFacing):
    """A plugin's slash command failed."""


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
    """Our own tools that are replaced."""
    engines: dict[str, Plugin] = field(default_factory=dict[str, Plugin])
    memory: dict[str, Plugin] = field(default_factory=dict[str, Plugin])
    platforms: dict[str, OfferedPlatform] = field(default_factory=dict[str, OfferedPlatform])
    skills: dict[str, PluginSkill] = field(default_factory=dict[str, PluginSkill])
    cli: dict[str, str] = field(default_factory=dict[str, str])
    """The owner of each command of `talaria`; ours cannot be replaced."""
    tasks: dict[str, str] = field(default_factory=dict[str, str])
    """The owner of each kind of small model call."""


def gather(
    host: PluginHost,
    taken: AbstractSet[str],
    commands: Commands,
    clock: Clock,
    has_chosen_engine: Callable[[Plugin], bool],
) -> Contributions:
    """`taken` are the names of our own tools. Adds the slash commands of plugins to `commands`."""
    brought = Contributions(cli=dict.fromkeys(OWN_COMMANDS, "Talaria"))
    names = set(taken)
    bundled_first = sorted(host.loaded, key=lambda plugin: plugin.found.source != "bundled")
    for plugin in bundled_first:
        for offered in plugin.registered.tools:
            _add_tool(offered, plugin, host, names, brought)
        for entry in plugin.registered.platforms:  # of two of the same plugin the last one is used
            known = brought.platforms.get(entry.name)
            owner = known.plugin.key if known else "Talaria" if entry.name in OWN_PLATFORMS else plugin.key
            if owner == plugin.key or host.may_override(plugin):
                brought.platforms[entry.name] = OfferedPlatform(entry, plugin, host.faults)
            else:
                plugin.problems.append(f"its platform {entry.name} is left out: {owner} has one of that name")
        for one in plugin.registered.cli:
            _add_unique(one.name, "command talaria", plugin, brought.cli)
        for key in plugin.registered.tasks:
            _add_unique(key, "auxiliary task", plugin, brought.tasks)
        brought.skills |= {skill.name: skill for skill in plugin.registered.skills}
        if plugin.registered.engine is not None:
            _add_named(engine_name(plugin.registered.engine), "context engine", plugin, brought.engines)
        if plugin.registered.memory is not None:
            _add_named(memory_name(plugin.registered.memory), "memory provider", plugin, brought.memory)
    for plugin in sorted(bundled_first, key=is_bundled_engine):
        for command in plugin.registered.commands:
            run = _make_runner(command, plugin, clock, has_chosen_engine)
            about, owner = command.description or f"(of plugin {plugin.name})", owner_of(plugin)
            added = Command(command.name, about, "plugins", run, args_hint=command.args_hint, owner=owner)
            try:
                commands.add(added)
            except OperatorError as refusal:
                plugin.problems.append(str(refusal))
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

    def work(arguments: dict[str, Any], facts: dict[str, Any]) -> str:
        given = select_keywords(offered.handler, facts)
        return encode_result(call_or_await(lambda: offered.handler(arguments, **given), plugin.background))

    async def handle(arguments: dict[str, Any], run: Run) -> str:
        facts = {"task_id": run.scope.session, "session_id": run.scope.session, "tool_call_id": run.call}
        try:
            return await in_thread(lambda: contain(lambda: work(arguments, facts)))
        except PluginError as fault:
            host.faults.add(plugin.key, f"its tool {name}", fault)
            return json.dumps({"error": f"{name} {fault}"})

    tool = SchemaTool(offered.spec, handle, toolset=as_text(offered.toolset or plugin.key))
    brought.tools.append(OfferedTool(tool, offered.check, plugin, host.faults))


def _add_unique(name: str, what: str, plugin: Plugin, table: dict[str, str]) -> None:
    owner = table.setdefault(name, plugin.key)
    if owner != plugin.key:
        plugin.problems.append(f"its {what} {name} is left out: {owner} has it")


def owner_of(plugin: Plugin) -> str:
    """The owner that the table of commands has for it."""
    engine = plugin.registered.engine
    if engine is not None and plugin.found.category == ENGINES:
        return f"context-engine:{engine_name(engine)}"
    return f"plugin:{plugin.key}"


def _make_runner(
    command: PluginCommand, plugin: Plugin, clock: Clock, has_chosen_engine: Callable[[Plugin], bool]
) -> RunCommand:
    """A command of the chosen engine runs with the engine of the current conversation, between its other calls; any
    other command runs as it was registered."""
    name = normalise(command.name)

    def work(handler: Callable[[str], Any], argument: str) -> str:
        answer = call_or_await(lambda: handler(argument), plugin.background)
        return "" if answer is None else as_text(answer)

    async def run(chat: Chat, argument: str) -> Outcome:
        engine: HostedEngine | None = None
        if has_chosen_engine(plugin):
            try:
                engine = await chat.engine()
            except PluginError as fault:
                raise CommandFailed(f"/{name} needs the context engine, which {fault}.") from fault
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


def _add_named(name: str, what: str, plugin: Plugin, table: dict[str, Plugin]) -> None:
    if name in table:
        plugin.problems.append(f"its {what} is left out: {table[name].key} has one called {name}")
    else:
        table[name] = plugin


def find_by_name(name: str, table: Mapping[str, Plugin]) -> Plugin | None:
    """By the name of what it contributes, or else by one of its own."""
    return table.get(name) or next((plugin for plugin in table.values() if name in plugin.names), None)


async def select_usable(offered: Iterable[OfferedTool], clock: Clock) -> list[Tool]:
    """Those that can be used now, by their own checks."""

    def passes(check: Callable[[], object], plugin: Plugin) -> bool:
        return bool(call_or_await(check, plugin.background))

    tools: list[Tool] = []
    for one in offered:
        try:
            if one.check is None or await run_within(partial(passes, one.check, one.plugin), CHECK_S, clock):
                tools.append(one.tool)
        except PluginError as fault:
            one.problems.add(one.plugin.key, f"the check of its tool {one.tool.spec.name}", fault)
    return tools
