"""`talaria profiles`: additional homes, each with its own settings, keys and conversations."""

import shutil

import click

from talaria.cli import context
from talaria.cli.command_output import confirm, json_option, print_json, yes_option
from talaria.cli.notices import say, show
from talaria.config import paths
from talaria.core.errors import BadInput, OperatorError
from talaria.core.fs import replace_file
from talaria.gateway.claims import find_holder, gateway_file
from talaria.store.sqlite.presence import Presence

_CLONED = ("config.yaml", ".env", "SOUL.md")

command = click.Group("profiles", help="List, create and delete profiles; `talaria -p NAME` uses one.")


@command.command("list", help="List all profiles; the usual home is called default.")
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    used = context.home(ctx)
    homes = {name: paths.home(name) for name in ("default", *context.profiles())}
    if as_json:
        print_json([{"name": name, "home": str(home), "is_used": home == used} for name, home in homes.items()])
        return
    show(*(f"{'*' if home == used else ' '} {name:<16} {home}" for name, home in homes.items()))


@command.command("create", help="Create a profile.")
@click.argument("name")
@click.option("--clone", "is_clone", is_flag=True, help="Copy the settings and keys of the profile in use.")
@click.pass_context
def create(ctx: click.Context, name: str, is_clone: bool) -> None:
    home, model = paths.home(name), context.home(ctx)
    try:
        home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.mkdir(mode=0o700)
        for file in _CLONED if is_clone else ():
            if (model / file).exists():
                replace_file(home / file, (model / file).read_bytes(), mode=0o600)
    except FileExistsError as fault:
        raise BadInput(f"There is already a profile {name!r}.") from fault
    except OSError as fault:
        raise OperatorError(f"Cannot create {home}: {fault.strerror}.") from fault
    say(f"Created {home}; use it with `talaria -p {name}`.")


@command.command("delete", help="Delete a profile for good, with its conversations.")
@click.argument("name")
@yes_option
def delete(name: str, yes: bool) -> None:
    home = context.home_of(name)
    if home == paths.home():
        raise BadInput(f"The usual home, {home}, is not a profile, so it cannot be deleted.")
    if Presence(home / "run").list_living() or find_holder(gateway_file(home)):
        raise BadInput(f"The profile {name!r} is in use: stop its gateway and close its chats first.")
    if not yes and not confirm(f"Delete the profile {name} ({home}) for good?", f"to delete {name}"):
        say("Nothing was deleted.")
        return
    try:
        shutil.rmtree(home)
    except OSError as fault:
        raise OperatorError(f"Cannot delete {home}: {fault.strerror or fault}.") from fault
    say(f"Deleted {home}.")
