"""`talaria pairing`: approve people who wrote to the agent, and remove them again."""

import time
from collections.abc import Sequence
from datetime import datetime

import click

from talaria.cli.command_output import json_option, print_json
from talaria.cli.context import home, with_store
from talaria.cli.notices import say
from talaria.cli.safe import visible
from talaria.core.clock import SystemClock
from talaria.core.errors import BadInput, OperatorError
from talaria.gateway.authorization import CODE_EXPIRES_AFTER_S, Pairing
from talaria.store.base import Store
from talaria.store.permission_ports import Locked, Member, PairingRequest

command = click.Group("pairing", help="Approve people who wrote to the agent, and remove them again.")


@command.command("list", help="List who is waiting for approval, and who was approved.")
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    async def read(store: Store) -> tuple[Sequence[PairingRequest], Sequence[Member]]:
        return await store.access.requests(), await store.access.members()

    requests, members = with_store(home(ctx), read)
    if as_json:
        waiting = [
            {"platform": one.platform, "user": one.user, "name": one.name, "expires_at": one.expires_at}
            for one in requests
        ]
        print_json({"requests": waiting, "members": members})
        return
    for one in requests:
        minutes = max(0.0, one.expires_at - time.time()) / 60
        click.echo(f"waiting   {_who(one.platform, one.user, one.name)}  (the code is valid for {minutes:.0f} min)")
    for one in members:
        since = f"{datetime.fromtimestamp(one.since).astimezone():%Y-%m-%d}"
        click.echo(f"approved  {_who(one.platform, one.user, one.name)}  since {since}")
    if not requests and not members:
        say("Nobody is waiting, and nobody was approved.")


@command.command("approve", help="Approve the person who was given this code.")
@click.argument("platform")
@click.argument("code")
@click.pass_context
def approve(ctx: click.Context, platform: str, code: str) -> None:
    platform = platform.lower()
    match with_store(home(ctx), lambda store: Pairing(store.access, SystemClock()).approve(platform, code)):
        case Member(_, user, name):
            say(f"Approved: {_who(platform, user, name)}.")
        case Locked(until):
            when = f"{datetime.fromtimestamp(until).astimezone():%H:%M:%S}"
            raise OperatorError(f"Too many wrong codes: try again after {when}.")
        case None:
            raise BadInput(
                f"Nobody on {platform} is waiting with this code. Codes are valid for {CODE_EXPIRES_AFTER_S / 60:.0f} "
                "minutes; a new message to the agent gets a new one."
            )


@command.command("revoke", help="Remove a person who was approved by a code.")
@click.argument("platform")
@click.argument("user")
@click.pass_context
def revoke(ctx: click.Context, platform: str, user: str) -> None:
    if not with_store(home(ctx), lambda store: store.access.revoke(platform.lower(), user)):
        raise BadInput(f"{user} was not approved by a code on {platform}; see `talaria pairing list`.")
    say(f"Removed: {_who(platform.lower(), user, '')}.")


def _who(platform: str, user: str, name: str) -> str:
    """People choose their names: invisible characters in them are shown."""
    called = f" ({visible(' '.join(name.split()))})" if name else ""
    return f"{platform} {visible(user)}{called}"
