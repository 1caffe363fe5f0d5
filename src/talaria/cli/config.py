"""`talaria config`: read and change settings."""

import os
import signal
from pathlib import Path
from typing import Any, cast

import click
import msgspec

from talaria.cli import exits, surroundings
from talaria.cli.json_output import print_json
from talaria.cli.notices import say
from talaria.config import paths, selection
from talaria.config.edit import set_value
from talaria.config.schema import Config
from talaria.gateway.claims import gateway_file, holder
from talaria.model.errors import BadConfig, BadInput
from talaria.model.secret import Secret
from talaria.settings import read_settings_leniently

command = click.Group("config", help="Read and change settings.")


@command.command("path", help="Where config.yaml is.")
@click.pass_context
def path(ctx: click.Context) -> None:
    click.echo(paths.config_file(surroundings.home(ctx)))


@command.command("get", help="Print one setting, or all; secrets are masked.")
@click.argument("key", required=False)
@click.pass_context
def get(ctx: click.Context, key: str | None) -> None:
    settings = surroundings.lenient_settings(ctx)
    names = key.split(".") if key else []
    if names and (wrong := next((one for one in settings.problems if one.key and one.is_about(names)), None)):
        raise BadConfig(f"{key} cannot be told: {wrong.sentence}")
    value: Any = _plain(settings.config)
    for name in names:
        if not isinstance(value, dict) or name not in value:
            raise BadInput(f"There is no setting {key!r}; `talaria config get` shows them all.")
        value = cast("Any", value[name])
    if isinstance(value, str):
        click.echo(value)
    else:
        print_json(value)


@command.command("set", help="Change one setting in config.yaml; a NAME in capitals goes to .env.")
@click.argument("key")
@click.argument("value")
@click.pass_context
def set_(ctx: click.Context, key: str, value: str) -> None:
    before = read_settings_leniently(surroundings.home(ctx)).problems
    file = set_value(surroundings.home(ctx), key, value)
    say(f"Set {key} in {file}.")
    still_wrong = {problem.sentence for problem in surroundings.lenient_settings(ctx).problems}
    for problem in before:
        if problem.sentence not in still_wrong:
            say(f"That put right: {problem.sentence}")
    _tell_gateway(surroundings.home(ctx))


def _tell_gateway(home: Path) -> None:
    """One that runs takes the settings up at once."""
    pid = holder(gateway_file(home))
    if pid is None:
        return
    try:
        os.kill(pid, signal.SIGHUP)
    except OSError as fault:
        say(f"The gateway (process {pid}) could not be told: {fault.strerror}. Restart it.")
    else:
        say(f"The gateway (process {pid}) was told.")


@command.command("check", help="Check config.yaml and .env.")
@click.pass_context
def check(ctx: click.Context) -> int:
    settings = surroundings.lenient_settings(ctx)
    if settings.problems:
        return exits.BAD_INPUT
    selection.check(settings.config, settings.environment)
    say("The settings are in order.")
    return exits.DONE


def _plain(config: Config) -> dict[str, object]:
    def mask(value: object) -> object:
        if isinstance(value, Secret):
            return "•••" if value else ""
        raise NotImplementedError

    return msgspec.to_builtins(config, enc_hook=mask)
