"""`talaria approvals`: what a person has allowed for good, and taking it back."""

from datetime import datetime

import click

from talaria.cli.command_output import json_option, print_json
from talaria.cli.context import home, with_store
from talaria.cli.notices import say, show
from talaria.cli.safe import brief, visible
from talaria.core.errors import BadInput
from talaria.runtime.sandbox_report import describe_grant, place_of
from talaria.store.base import Store
from talaria.store.permission_ports import Grant
from talaria.tools.sandbox_permissions import SANDBOX

SHOWN_CHARS = 100


command = click.Group("approvals", help="List what was allowed beforehand, and take it back.")


@command.command("list", help="What is allowed without a question: where, and until when.")
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    grants = with_store(home(ctx), lambda store: store.grants.list())
    if as_json:
        print_json(grants)
        return
    show(*map(_line, grants))
    if not grants:
        say("Nothing was allowed beforehand.")


@command.command("revoke", help="Ask about it again; in running conversations from the next command on.")
@click.argument("ids", nargs=-1, required=True, metavar="ID…")
@click.pass_context
def revoke(ctx: click.Context, ids: tuple[str, ...]) -> None:
    async def work(store: Store) -> None:
        for id in ids:
            show(f"Revoked {_line(await _revoke(store, id))}")

    with_store(home(ctx), work)


async def _revoke(store: Store, begun: str) -> Grant:
    fitting = [grant for grant in await store.grants.list() if grant.id.startswith(begun)]
    if len(fitting) != 1:
        raise BadInput(f"{begun!r} names {'several' if fitting else 'none'} of them; see `talaria approvals list`.")
    await store.grants.revoke(fitting[0].id)
    return fitting[0]


def _line(grant: Grant) -> str:
    """Control signs in it are shown as escapes: a person decides on it."""
    if grant.tool == SANDBOX:
        return f"{grant.id[:8]}  sandbox: {visible(describe_grant(grant))}  {visible(_place(grant))}"
    until = f"until {datetime.fromtimestamp(grant.expires_at).astimezone():%Y-%m-%d}" if grant.expires_at else ""
    where = f"in session {grant.session}" if grant.session else f"in {visible(grant.cwd)} {until}"
    return f"{grant.id[:8]}  {grant.tool}({brief(visible(grant.what), SHOWN_CHARS)})  {where}".rstrip()


def _place(grant: Grant) -> str:
    return f"in session {grant.session}" if grant.session else place_of(grant)
