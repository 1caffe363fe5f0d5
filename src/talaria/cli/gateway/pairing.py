"""`talaria pairing`: letting people in who wrote to the agent, and sending them away again."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeVar

import click

from talaria.cli import surroundings
from talaria.cli.json_output import print_json, told
from talaria.cli.notices import say
from talaria.cli.safe import visible
from talaria.compose import open_store
from talaria.gateway.pairing import LIVES_S, Pairing
from talaria.model.clock import SystemClock
from talaria.model.errors import BadInput, OperatorError
from talaria.store.access import Locked, Member
from talaria.store.base import Store

T = TypeVar("T")


@click.group("pairing", help="Let people in who wrote to the agent, and send them away again.")
def command() -> None:
    pass


def _with_store(ctx: click.Context, work: Callable[[Store], Awaitable[T]]) -> T:
    async def run() -> T:
        async with open_store(surroundings.home(ctx)) as store:
            return await work(store)

    return asyncio.run(run())


@command.command("list", help="Who waits to be let in, and who was.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    with told(as_json=as_json):
        requests = _with_store(ctx, lambda store: store.access.requests())
        members = _with_store(ctx, lambda store: store.access.members())
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


@command.command("approve", help="Let in whoever was told this code.")
@click.argument("platform")
@click.argument("code")
@click.pass_context
def approve(ctx: click.Context, platform: str, code: str) -> None:
    platform = platform.lower()
    match _with_store(ctx, lambda store: Pairing(store.access, SystemClock()).approve(platform, code)):
        case Member(_, user, name):
            say(f"Let in: {_who(platform, user, name)}.")
        case Locked(until):
            when = f"{datetime.fromtimestamp(until).astimezone():%H:%M:%S}"
            raise OperatorError(f"Too many wrong codes: none is looked at before {when}.")
        case None:
            raise BadInput(
                f"Nobody on {platform} waits with this code. Codes hold for {LIVES_S / 60:.0f} minutes; a new message "
                "to the agent gets a new one."
            )


@command.command("revoke", help="Send somebody away who was let in by a code.")
@click.argument("platform")
@click.argument("user")
@click.pass_context
def revoke(ctx: click.Context, platform: str, user: str) -> None:
    if not _with_store(ctx, lambda store: store.access.revoke(platform.lower(), user)):
        raise BadInput(f"{user} was not let in by a code on {platform}; see `talaria pairing list`.")
    say(f"Sent away: {_who(platform.lower(), user, '')}.")


def _who(platform: str, user: str, name: str) -> str:
    """Their name is their own choice: what is hidden in it is shown."""
    called = f" ({visible(' '.join(name.split()))})" if name else ""
    return f"{platform} {visible(user)}{called}"


def _day(at: float) -> str:
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d}"
