"""`talaria tools`: which tools there are, by toolset, and which of them the model may use."""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from textwrap import shorten

import click

from talaria.cli import surroundings
from talaria.cli.json_output import print_json, told
from talaria.cli.safe import printable
from talaria.cli.tool_view import Group, looked
from talaria.config import edit
from talaria.model.errors import BadInput
from talaria.tools.toolsets import ALL, Switches, builtin_toolset

ABOUT_CHARS = 100


@click.group("tools", help="List tools, and choose which of them the model may use.", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_tools)


@command.command("list", help="Every tool by toolset, and whether it is on.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def list_tools(ctx: click.Context, as_json: bool = False) -> None:
    with told(as_json=as_json):
        view = looked(surroundings.settings(ctx))
    shown = [group for group in view.groups.values() if group.tools or group.problem]
    if as_json:
        print_json({"toolsets": shown, "notices": view.notices})
        return
    for group in shown:
        click.echo(printable(f"{group.name}{f'  ! {group.problem}' if group.problem else ''}"))
        for tool in group.tools:
            about = shorten(tool.description.partition("\n\n")[0], ABOUT_CHARS, placeholder=" …")
            problem = f"  ! {tool.problem}" if tool.problem else ""
            click.echo(printable(f"  {'on' if tool.is_on else 'off':<3}  {tool.name}  {about}{problem}"))
    for notice in view.notices:
        click.echo(printable(f"! {notice}"), err=True)


@command.command("enable", help="Let the model use tools, or whole toolsets; `all` is everything.")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.pass_context
def enable(ctx: click.Context, names: tuple[str, ...]) -> None:
    _turn(ctx, names, on=True)


@command.command("disable", help="Keep tools, or whole toolsets, from the model; `all` is everything.")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.pass_context
def disable(ctx: click.Context, names: tuple[str, ...]) -> None:
    _turn(ctx, names, on=False)


def _turn(ctx: click.Context, names: tuple[str, ...], *, on: bool) -> None:
    settings = surroundings.settings(ctx)
    groups, before = looked(settings).groups, settings.config.tools
    after: Switches = before
    for name in names:
        after = _turned(after, name, groups, on=on)
    for setting, given in (("disabled", after.disabled), ("enabled", after.enabled)):
        if given != getattr(before, setting):
            edit.set_value(settings.home, f"tools.{setting}", json.dumps(given, ensure_ascii=False))
    for name in names:
        problem = groups[name].problem if on and name in groups else ""
        click.echo(printable(f"{'Enabled' if on else 'Disabled'} {name}.{f' ! {problem}' if problem else ''}"))


def _turned(switches: Switches, name: str, groups: Mapping[str, Group], *, on: bool) -> Switches:
    """A name that a toolset and a tool share means the toolset."""
    toolsets = {tool.name: group.name for group in groups.values() for tool in group.tools}
    if name == ALL:
        return switches.turned(ALL, on=on, within=(*switches.disabled, *switches.enabled))
    if name in groups:
        return switches.turned(name, on=on, within=[tool.name for tool in groups[name].tools])
    toolset = toolsets.get(name) or builtin_toolset(name)
    if toolset:
        return switches.turned(name, toolset, on=on)
    if name in (*switches.disabled, *switches.enabled):  # of what is gone
        return switches.turned(name, on=on)
    near = get_close_matches(name, [*groups, *toolsets], 1)
    hint = f"did you mean {near[0]!r}?" if near else "`talaria tools list` shows what there is."
    raise BadInput(f"There is no tool or toolset {name!r}; {hint}")
