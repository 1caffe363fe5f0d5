"""Commands that plugins add to `talaria`: known from the plugin's consent, loaded only when they are called."""

import argparse
import asyncio
from pathlib import Path

import click

from talaria.cli import exits, surroundings
from talaria.compose import Settings, builtin_names
from talaria.extensions import Extensions, open_extensions
from talaria.model.clock import SystemClock
from talaria.model.errors import BadInput
from talaria.plugins.registered import PluginCli
from talaria.runtime.builtin_commands import BUILTIN
from talaria.runtime.commands import Commands
from talaria.waiting import in_thread


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
        return asyncio.run(_run(name, arguments, surroundings.settings(ctx)))

    return run


async def _run(name: str, arguments: tuple[str, ...], settings: Settings) -> int:
    async with open_extensions(
        settings.home, settings.config, settings.environment, Path.cwd(), SystemClock(), Commands(BUILTIN)
    ) as extensions:
        extensions.settle(builtin_names())
        found = _found(name, extensions)
        try:
            returned = await in_thread(lambda: _called(found, arguments))
        except SystemExit as leaving:  # argparse and people's habits
            return leaving.code if isinstance(leaving.code, int) else exits.BAD_INPUT if leaving.code else exits.DONE
        return returned if isinstance(returned, int) else exits.DONE


def _found(name: str, extensions: Extensions) -> PluginCli:
    for plugin in extensions.host.loaded:
        for one in plugin.registered.cli:
            if one.name == name:
                return one
    raise BadInput(f"No loaded plugin has the command {name} any more; `talaria plugins list` may tell why.")


def _called(found: PluginCli, arguments: tuple[str, ...]) -> object:
    parser = argparse.ArgumentParser(prog=f"talaria {found.name}", description=found.help)
    found.setup(parser)
    parsed = parser.parse_args(arguments)
    handler = found.handler or getattr(parsed, "func", None)
    if handler is None:
        parser.print_help()
        return exits.BAD_INPUT
    return handler(parsed)
