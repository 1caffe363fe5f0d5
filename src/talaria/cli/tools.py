"""`talaria tools`: which tools there are, by toolset, and which of them the model may use."""

import json
from collections.abc import Mapping
from difflib import get_close_matches

import click

from talaria.cli import context
from talaria.cli.arguments import ListingGroup
from talaria.cli.command_name import runnable
from talaria.cli.json_output import json_option, print_json
from talaria.cli.notices import say, show
from talaria.cli.safe import brief
from talaria.cli.tool_view import Group, looked
from talaria.config import edit
from talaria.core.errors import BadInput
from talaria.tools.toolsets import ALL, Switches, builtin_toolset

ABOUT_CHARS = 100


command = ListingGroup("tools", help="List tools, and choose which of them the model may use.")


@command.command("list", help="Every tool by toolset, and whether it is on.")
@json_option
@click.pass_context
def list_tools(ctx: click.Context, as_json: bool) -> None:
    view = looked(context.settings(ctx))
    shown = [group for group in view.groups.values() if group.tools or group.problem]
    if as_json:
        print_json({"toolsets": shown, "notices": view.notices})
        return
    for group in shown:
        show(runnable(f"{group.name}{_told(group.problem)}"))
        for tool in group.tools:
            about = brief(tool.description.partition("\n\n")[0], ABOUT_CHARS)
            show(runnable(f"  {'on' if tool.is_on else 'off':<3}  {tool.name}  {about}{_told(tool.problem)}"))
    for notice in view.notices:
        say(f"! {notice}")


def _told(problem: str) -> str:
    return f"  ! {problem}" if problem else ""


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
    settings = context.settings(ctx)
    groups, before = looked(settings).groups, settings.config.tools
    after: Switches = before
    for name in names:
        after = _turned(after, name, groups, on=on)
    for setting, given in (("disabled", after.disabled), ("enabled", after.enabled)):
        if given != getattr(before, setting):
            edit.set_value(settings.home, f"tools.{setting}", json.dumps(given, ensure_ascii=False))
    for name in names:
        problem = groups[name].problem if on and name in groups else ""
        show(runnable(f"{'Enabled' if on else 'Disabled'} {name}.{_told(problem)}"))


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
