"""`talaria config`: show and change settings."""

import os
import signal
from pathlib import Path
from typing import Any, cast

import click
import msgspec

from talaria.api.api_settings import check_api_settings, read_api_settings
from talaria.app.settings import Settings, read_settings_leniently
from talaria.cli import context, exits
from talaria.cli.command_output import print_json
from talaria.cli.context import BUBBLEWRAP
from talaria.cli.notices import say
from talaria.config import paths, selection
from talaria.config.edit import set_project_value, set_value, unset_value
from talaria.config.load import read_yaml
from talaria.config.project_settings import check_key, find_gone_projects, project_file, read_project_settings
from talaria.core.errors import BadConfig, BadInput
from talaria.core.secret import Secret
from talaria.gateway.claims import find_holder, gateway_file

command = click.Group("config", help="Show and change settings.")


of_project = click.option(
    "--project",
    is_flag=True,
    help="Only for the project in the working directory. Stored in Talaria's home, where no command can change it.",
)


@command.command("path", help="Print the path of config.yaml.")
@of_project
@click.pass_context
def path(ctx: click.Context, *, project: bool) -> None:
    home = context.home(ctx)
    click.echo(project_file(home, Path.cwd()) if project else paths.config_file(home))


@command.command("get", help="Print one setting, or all of them. Secrets are masked.")
@click.argument("key", required=False)
@of_project
@click.pass_context
def get(ctx: click.Context, key: str | None, *, project: bool) -> None:
    settings = context.lenient_settings(ctx)
    if project:
        home, here = settings.home, Path.cwd()
        terminal = read_project_settings(home, settings.environment, settings.config.terminal, here)
        if key is not None:
            check_key(key)
            print_json(getattr(terminal, key.removeprefix("terminal.")))
            return
        print_json(read_yaml(project_file(home, here)))
        for root in find_gone_projects(home):
            old, new = project_file(home, root), project_file(home, here)
            move = f"mkdir -p {new.parent} && cp {old} {new}"
            say(f"There are settings for {root}, which no longer exists. If it moved here: {move}")
        return
    names = key.split(".") if key else []
    if names and (wrong := next((one for one in settings.problems if one.key and one.is_about(names)), None)):
        raise BadConfig(f"{key} cannot be shown: {wrong.sentence}")

    def mask(value: object) -> object:
        if isinstance(value, Secret):
            return "•••" if value else ""
        raise NotImplementedError

    value: Any = msgspec.to_builtins(settings.config, enc_hook=mask)
    for name in names:
        if not isinstance(value, dict) or name not in value:
            raise BadInput(f"There is no setting {key!r}; `talaria config get` shows them all.")
        value = cast("Any", value[name])
    if isinstance(value, str):
        click.echo(value)
    else:
        print_json(value)


@command.command("set", help="Change a setting in config.yaml. A NAME in capitals goes to .env.")
@click.argument("key")
@click.argument("value")
@of_project
@click.pass_context
def set_(ctx: click.Context, key: str, value: str, *, project: bool) -> None:
    if project:
        file = set_project_value(context.home(ctx), Path.cwd(), key, value)
        say(f"Set {key} for {Path.cwd()} in {file}. It applies to conversations that you start there from now on.")
        settings = context.lenient_settings(ctx)
        if key in ("terminal.read", "terminal.write"):
            terminal = read_project_settings(settings.home, settings.environment, settings.config.terminal, Path.cwd())
            for name in terminal.read if key == "terminal.read" else terminal.write:
                if not Path(name).expanduser().exists():
                    say(f"{name} does not exist; commands will see it once it does.")
        _warn_if_no_network(settings, key)
        return
    before = read_settings_leniently(context.home(ctx)).problems
    file = set_value(context.home(ctx), key, value)
    say(f"Set {key} in {file}.")
    still_wrong = {problem.sentence for problem in context.lenient_settings(ctx).problems}
    for problem in before:
        if problem.sentence not in still_wrong:
            say(f"That fixed: {problem.sentence}")
    _warn_if_no_network(context.lenient_settings(ctx), key)
    _reload_gateway(context.home(ctx))


@command.command("unset", help="Remove a setting from config.yaml, so that its default applies.")
@click.argument("key")
@of_project
@click.pass_context
def unset(ctx: click.Context, key: str, *, project: bool) -> None:
    home = context.home(ctx)
    file = unset_value(home, key, Path.cwd() if project else None)
    say(f"Removed {key} from {file}.")
    if not project:
        _reload_gateway(home)


def _warn_if_no_network(settings: Settings, key: str) -> None:
    if key not in ("terminal.network", "terminal.ports"):
        return
    from talaria.tools.sandbox.chooser import SandboxChooser  # noqa: PLC0415  (it tries the sandbox out)

    if SandboxChooser(settings.config.terminal).sandbox.level == "landlock":
        say(f"Commands cannot run with {key} here: level landlock has no network. {BUBBLEWRAP.capitalize()}.")


def _reload_gateway(home: Path) -> None:
    """A running gateway applies the new settings at once."""
    pid = find_holder(gateway_file(home))
    if pid is None:
        return
    try:
        os.kill(pid, signal.SIGHUP)
    except OSError as fault:
        say(f"The gateway (process {pid}) could not be notified: {fault.strerror}. Restart it.")
    else:
        say(f"The gateway (process {pid}) was notified.")


@command.command("check", help="Check config.yaml and .env.")
@click.pass_context
def check(ctx: click.Context) -> int:
    settings = context.lenient_settings(ctx)
    if settings.problems:
        return exits.BAD_INPUT
    selection.check(settings.config, settings.environment)
    check_api_settings(read_api_settings(settings.config.api, settings.environment))
    read_project_settings(settings.home, settings.environment, settings.config.terminal, Path.cwd())
    say("The settings are valid.")
    return exits.DONE
