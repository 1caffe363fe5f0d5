"""`talaria approvals`: what a person has allowed for good, and taking it back."""

import asyncio
from datetime import datetime

import click

from talaria.cli import exits, surroundings
from talaria.cli.json_output import print_json
from talaria.cli.safe import visible
from talaria.compose import open_store
from talaria.model.errors import BadInput
from talaria.store.permissions import Grant

SHOWN_CHARS = 100


@click.group("approvals", help="List what was allowed beforehand, and take it back.")
def command() -> None:
    pass


@command.command("list", help="What is allowed without a question, until when.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> int:
    grants = asyncio.run(_grants(ctx))
    if as_json:
        print_json(grants)
    else:
        for grant in grants:
            click.echo(_line(grant))
        if not grants:
            click.echo("Nothing was allowed beforehand.", err=True)
    return exits.DONE


@command.command("revoke", help="Ask about it again from now on.")
@click.argument("ids", nargs=-1, required=True, metavar="ID…")
@click.pass_context
def revoke(ctx: click.Context, ids: tuple[str, ...]) -> int:
    for id in ids:
        grant = asyncio.run(_revoked(ctx, id))
        click.echo(f"Revoked {_line(grant)}")
    return exits.DONE


async def _grants(ctx: click.Context) -> list[Grant]:
    async with open_store(surroundings.home(ctx)) as store:
        return list(await store.grants.list())


async def _revoked(ctx: click.Context, begun: str) -> Grant:
    async with open_store(surroundings.home(ctx)) as store:
        fitting = [grant for grant in await store.grants.list() if grant.id.startswith(begun)]
        if len(fitting) != 1:
            raise BadInput(
                f"{begun!r} names {'none' if not fitting else 'several'} of them; see `talaria approvals list`."
            )
        await store.grants.revoke(fitting[0].id)
        return fitting[0]


def _line(grant: Grant) -> str:
    """Control signs in it are shown as escapes: a person decides on it."""
    until = f"until {datetime.fromtimestamp(grant.expires_at).astimezone():%Y-%m-%d}" if grant.expires_at else ""
    where = f"in session {grant.session}" if grant.session else f"in {visible(grant.cwd)} {until}"
    return f"{grant.id[:8]}  {grant.tool}({visible(' '.join(grant.what.split()))[:SHOWN_CHARS]})  {where}".rstrip()
