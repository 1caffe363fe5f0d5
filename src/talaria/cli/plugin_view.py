"""Plugins as `talaria plugins` and `talaria doctor` show them, loaded as a conversation would load them.

Also the commands that plugins add to `talaria`: known from the plugin's consent, loaded only when called.
"""

import argparse
import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, TypeVar

import click
import msgspec

from talaria.app.build import builtin_names
from talaria.app.extensions import Extensions, open_extensions
from talaria.app.settings import Settings
from talaria.cli import context, exits
from talaria.cli.notices import complain
from talaria.core.aio import in_thread
from talaria.core.clock import SystemClock
from talaria.core.errors import BadInput
from talaria.core.plugin_calls import BackgroundLoop, PluginError, call_or_await, contain
from talaria.core.text import as_text
from talaria.plugins.discovery import ENGINES, FoundPlugin, discover, find_shared_names, own_names, places
from talaria.plugins.plugin_host import Choice, Plugin, engine_choices, memory_choices
from talaria.plugins.registered import PluginCli, engine_name, memory_name
from talaria.runtime.builtin_commands import builtin_commands

T = TypeVar("T")
Kind = Literal["engine", "memory"]


class PluginRow(msgspec.Struct, frozen=True):
    name: str
    version: str
    source: str
    status: str
    description: str
    problems: tuple[str, ...]


@asynccontextmanager
async def open_plugins(settings: Settings) -> AsyncGenerator[Extensions]:
    """Load plugins as a conversation would."""
    config, environment, clock, commands = settings.config, settings.environment, SystemClock(), builtin_commands()
    async with open_extensions(settings.home, config, environment, Path.cwd(), clock, commands) as extensions:
        extensions.settle(builtin_names())
        yield extensions


def inspect_plugins(settings: Settings, look: Callable[[Extensions], T]) -> T:
    async def run() -> T:
        async with open_plugins(settings) as extensions:
            return look(extensions)

    return asyncio.run(run())


def find_plugins(settings: Settings) -> dict[str, FoundPlugin]:
    config = settings.config.plugins
    return discover(places(settings.home, Path.cwd(), settings.environment, with_project=config.project))


def find_keys(name: str, names: Mapping[str, FoundPlugin]) -> list[str]:
    """The plugin with this key or, if there is none, all plugins that have this name."""
    return [name] if name in names else [key for key, one in names.items() if name in one.names]


def find_key(name: str, found: Mapping[str, FoundPlugin]) -> str:
    match find_keys(name, found):
        case [key]:
            return key
        case []:
            raise BadInput(f"There is no plugin {name!r}; known plugins: {', '.join(found) or 'none'}.")
        case several:
            raise BadInput(f"Several plugins are called {name}; choose one: {', '.join(several)}.")


def enabling_names(one: FoundPlugin, found: Mapping[str, FoundPlugin]) -> set[str]:
    """The names by which it may be enabled."""
    return set(own_names(one, find_shared_names(found)))


def find_plugin(extensions: Extensions, name: str) -> Plugin:
    plugins = extensions.host.plugins
    return plugins[find_key(name, {key: plugin.found for key, plugin in plugins.items()})]


def rows(extensions: Extensions) -> Iterator[PluginRow]:
    for plugin in extensions.host.plugins.values():
        about = plugin.found.manifest
        status, source = plugin.status, plugin.found.source
        yield PluginRow(plugin.key, about.version, source, status, about.description, tuple(plugin.problems))


def choices(extensions: Extensions) -> dict[Kind, list[Choice]]:
    return {"engine": engine_choices(extensions.host), "memory": memory_choices(extensions.host)}


def about(plugin: Plugin) -> Iterator[str]:
    manifest, brought = plugin.found.manifest, plugin.registered
    where = ", ".join(str(place) for place in plugin.found.places)
    yield f"{plugin.key} {manifest.version}  {manifest.description}"
    yield f"author: {manifest.author or 'unknown'} · kind: {manifest.kind} · {plugin.found.source}: {where}"
    yield f"status: {plugin.status}"
    yield from (f"problem: {problem}" for problem in plugin.problems)
    parts = {
        "tools": [tool.spec.name for tool in brought.tools],
        "hooks": [name for name, _ in brought.hooks],
        "slash commands": [f"/{one.name}" for one in brought.commands],
        "commands": [f"talaria {one.name}" for one in brought.cli],
        "skills": [skill.name for skill in brought.skills],
        "context engine": [engine_name(brought.engine)] if brought.engine else [],
        "memory provider": [memory_name(brought.memory)] if brought.memory else [],
        "needs": [*(need.name for need in manifest.requires_env), *manifest.packages],
    }
    yield from (f"{title}: {', '.join(items)}" for title, items in parts.items() if items)


def next_steps(plugin: Plugin) -> Iterator[str]:
    yield from (f"! {problem}" for problem in plugin.problems)
    brought = plugin.registered
    if brought.engine is not None or plugin.found.category == ENGINES:
        name = engine_name(brought.engine) or plugin.name
        yield f"To use its context engine: talaria plugins choose engine {name}"
    if brought.memory is not None or plugin.found.manifest.kind == "exclusive":
        name = memory_name(brought.memory) or plugin.name
        yield f"To use its memory: talaria plugins choose memory {name}"


log = logging.getLogger(__name__)


def command(name: str, help: str) -> click.Command:  # noqa: A002
    @click.command(
        name,
        help=help,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    @click.pass_context
    def run(ctx: click.Context, arguments: tuple[str, ...]) -> int:
        return asyncio.run(_find_and_run(name, arguments, context.settings(ctx)))

    return run


async def _find_and_run(name: str, arguments: tuple[str, ...], settings: Settings) -> int:
    async with open_plugins(settings) as extensions:
        plugin = extensions.host.plugins.get(extensions.brought.cli.get(name, ""))
        found = None if plugin is None else next((one for one in plugin.registered.cli if one.name == name), None)
        if plugin is None or found is None:
            raise BadInput(f"No loaded plugin has the command {name} any more; `talaria plugins list` may say why.")
        try:
            return await in_thread(lambda: contain(lambda: _run_command(found, arguments, plugin.background)))
        except PluginError as fault:
            log.warning("command %s of plugin %s %s", name, plugin.key, fault, exc_info=True)
            complain(f"The command {name} of plugin {plugin.key} {fault}.")
            return exits.BUG


def _run_command(found: PluginCli, arguments: tuple[str, ...], background: BackgroundLoop) -> int:
    """Returns the exit code."""

    def call_handler() -> object:
        parser = argparse.ArgumentParser(prog=f"talaria {found.name}", description=found.help)
        found.setup(parser)
        parsed = parser.parse_args(arguments)
        handler = found.handler or getattr(parsed, "func", None)
        if handler is None:
            parser.print_help()
            return exits.BAD_INPUT
        return handler(parsed)

    try:
        code = call_or_await(call_handler, background)
    except SystemExit as leaving:  # raised by argparse, and by many handlers
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or exits.DONE
        complain(as_text(leaving.code))
        return exits.BUG
    return code if isinstance(code, int) and not isinstance(code, bool) else exits.DONE
