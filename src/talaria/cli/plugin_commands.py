"""Commands that plugins add to `talaria`: known from the plugin's consent, loaded only when they are called."""

import argparse
import asyncio
import logging

import click

from talaria.cli import context, exits
from talaria.cli.notices import complain
from talaria.cli.plugin_view import opened
from talaria.core.errors import BadInput
from talaria.extensions import Extensions
from talaria.plugin_calls import Background, PluginError, as_text, contained, returned
from talaria.plugins.plugin import Plugin
from talaria.plugins.registered import PluginCli
from talaria.settings import Settings
from talaria.waiting import in_thread

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
        return asyncio.run(_run(name, arguments, context.settings(ctx)))

    return run


async def _run(name: str, arguments: tuple[str, ...], settings: Settings) -> int:
    async with opened(settings) as extensions:
        plugin, found = _found(name, extensions)
        try:
            return await in_thread(lambda: contained(lambda: _ended(found, arguments, plugin.background)))
        except PluginError as fault:
            log.warning("command %s of plugin %s %s", name, plugin.key, fault, exc_info=True)
            complain(f"The command {name} of plugin {plugin.key} {fault}.")
            return exits.BUG


def _found(name: str, extensions: Extensions) -> tuple[Plugin, PluginCli]:
    plugin = extensions.host.plugins.get(extensions.brought.cli.get(name, ""))
    found = None if plugin is None else next((one for one in plugin.registered.cli if one.name == name), None)
    if plugin is None or found is None:
        raise BadInput(f"No loaded plugin has the command {name} any more; `talaria plugins list` may tell why.")
    return plugin, found


def _ended(found: PluginCli, arguments: tuple[str, ...], background: Background) -> int:
    """The exit code."""
    try:
        code = returned(lambda: _called(found, arguments), background)
    except SystemExit as leaving:  # argparse and people's habits
        return _left(leaving.code)
    return code if isinstance(code, int) and not isinstance(code, bool) else exits.DONE


def _left(code: object) -> int:
    if code is None or isinstance(code, int):
        return code or exits.DONE
    complain(as_text(code))
    return exits.BUG


def _called(found: PluginCli, arguments: tuple[str, ...]) -> object:
    parser = argparse.ArgumentParser(prog=f"talaria {found.name}", description=found.help)
    found.setup(parser)
    parsed = parser.parse_args(arguments)
    handler = found.handler or getattr(parsed, "func", None)
    if handler is None:
        parser.print_help()
        return exits.BAD_INPUT
    return handler(parsed)
