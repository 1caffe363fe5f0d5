"""`talaria pairing`: letting people in who wrote to the agent, and sending them away again."""

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

command = click.Group("pairing", help="Let people in who wrote to the agent, and send them away again.")


@command.command("list", help="Who waits to be let in, and who was.")
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    requests, members = with_store(home(ctx), _all)
    if as_json:
        waiting = [
            {"platform": one.platform, "user": one.user, "name": one.name, "expires_at": one.expires_at}
            for one in requests
        ]
        print_json({"requests": waiting, "members": members})
        return
    for one in requests:
        minutes = max(0.0, one.expires_at - time.time()) / 60
        click.echo(f"waits    {_who(one.platform, one.user, one.name)}  (the code holds for {minutes:.0f} min)")
    for one in members:
        click.echo(f"let in   {_who(one.platform, one.user, one.name)}  since {_day(one.since)}")
    if not requests and not members:
        say("Nobody waits, and nobody was let in by a code.")


async def _all(store: Store) -> tuple[Sequence[PairingRequest], Sequence[Member]]:
    return await store.access.requests(), await store.access.members()


@command.command("approve", help="Let in whoever was told this code.")
@click.argument("platform")
@click.argument("code")
@click.pass_context
def approve(ctx: click.Context, platform: str, code: str) -> None:
    platform = platform.lower()
    match with_store(home(ctx), lambda store: Pairing(store.access, SystemClock()).approve(platform, code)):
        case Member(_, user, name):
            say(f"Let in: {_who(platform, user, name)}.")
        case Locked(until):
            when = f"{datetime.fromtimestamp(until).astimezone():%H:%M:%S}"
            raise OperatorError(f"Too many wrong codes: none is looked at before {when}.")
        case None:
            raise BadInput(
                f"Nobody on {platform} waits with this code. Codes hold for {CODE_EXPIRES_AFTER_S / 60:.0f} minutes; "
                "a new message to the agent gets a new one."
            )


@command.command("revoke", help="Send somebody away who was let in by a code.")
@click.argument("platform")
@click.argument("user")
@click.pass_context
def revoke(ctx: click.Context, platform: str, user: str) -> None:
    if not with_store(home(ctx), lambda store: store.access.revoke(platform.lower(), user)):
        raise BadInput(f"{user} was not let in by a code on {platform}; see `talaria pairing list`.")
    say(f"Sent away: {_who(platform.lower(), user, '')}.")


def _who(platform: str, user: str, name: str) -> str:
    """Their name is their own choice: what is hidden in it is shown."""
    called = f" ({visible(' '.join(name.split()))})" if name else ""
    return f"{platform} {visible(user)}{called}"


def _day(at: float) -> str:
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d}"
