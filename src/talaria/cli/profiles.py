"""`talaria profiles`: homes beside the usual one, each with settings, keys and conversations of its own."""

import shutil
import sys
from pathlib import Path

import click

from talaria.cli import surroundings
from talaria.cli.json_output import print_json, told
from talaria.cli.notices import say
from talaria.config import paths
from talaria.files import replace_file
from talaria.model.errors import BadInput, OperatorError
from talaria.model.ids import OwnerId
from talaria.store.sqlite.presence import Presence

_CLONED = ("config.yaml", ".env", "SOUL.md")

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("profiles", help="List, make and delete profiles; `talaria -p NAME` uses one.")
def command() -> None:
    pass


@command.command("list", help="The usual home, called default, and those that were made.")
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    with told(as_json=as_json):
        used = surroundings.home(ctx)
    homes = {name: paths.home(name) for name in ("default", *surroundings.profiles())}
    if as_json:
        print_json([{"name": name, "home": str(home), "is_used": home == used} for name, home in homes.items()])
        return
    for name, home in homes.items():
        click.echo(f"{'*' if home == used else ' '} {name:<16} {home}")


@command.command("create", help="Make a profile.")
@click.argument("name")
@click.option("--clone", "is_clone", is_flag=True, help="With the settings and keys of the profile in use.")
@click.pass_context
def create(ctx: click.Context, name: str, is_clone: bool) -> None:
    home, model = paths.home(name), surroundings.home(ctx)
    try:
        home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.mkdir(mode=0o700)
        for file in _CLONED if is_clone else ():
            _copy(model / file, home / file)
    except FileExistsError as fault:
        raise BadInput(f"The profile {name!r} is there already.") from fault
    except OSError as fault:
        raise OperatorError(f"Cannot make {home}: {fault.strerror}.") from fault
    say(f"Made {home}; use it with `talaria -p {name}`.")


def _copy(file: Path, to: Path) -> None:
    if file.exists():
        replace_file(to, file.read_bytes(), mode=0o600)


@command.command("delete", help="Delete a profile for good, with its conversations.")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def delete(name: str, yes: bool) -> None:
    home = surroundings.home_of(name)
    if home == paths.home():
        raise BadInput(f"The usual home is no profile; it is at {home}.")
    if _is_in_use(home):
        raise BadInput(f"The profile {name!r} is in use: end its gateway and its chats first.")
    if not yes and not _may_delete(name, home):
        say("Nothing was deleted.")
        return
    try:
        shutil.rmtree(home)
    except OSError as fault:
        raise OperatorError(f"Cannot delete {home}: {fault.strerror or fault}.") from fault
    say(f"Deleted {home}.")


def _is_in_use(home: Path) -> bool:
    folder = home / "run"
    presence = Presence(folder)
    return any(presence.is_alive(OwnerId(lock.stem)) for lock in folder.glob("*.lock"))


def _may_delete(name: str, home: Path) -> bool:
    if sys.stdin is None or not sys.stdin.isatty():
        raise BadInput(f"There is nobody to ask whether {name} may be deleted: add --yes.")
    return click.confirm(f"Delete the profile {name} ({home}) for good?", err=True)
