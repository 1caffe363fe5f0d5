"""`talaria approvals`: list and revoke what was allowed beforehand."""

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


command = click.Group("approvals", help="List and revoke standing approvals.")


@command.command("list", help="List what is allowed without asking: where, and until when.")
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    grants = with_store(home(ctx), lambda store: store.grants.list())
    if as_json:
        print_json(grants)
        return
    show(*map(_format_grant, grants))
    if not grants:
        say("There are no standing approvals.")


@command.command("revoke", help="Revoke approvals: you are asked again, also in running conversations.")
@click.argument("ids", nargs=-1, required=True, metavar="ID…")
@click.pass_context
def revoke(ctx: click.Context, ids: tuple[str, ...]) -> None:
    async def work(store: Store) -> None:
        for id in ids:
            found = [grant for grant in await store.grants.list() if grant.id.startswith(id)]
            if len(found) != 1:
                which = "Several approvals start" if found else "No approval starts"
                raise BadInput(f"{which} with {id!r}; see `talaria approvals list`.")
            await store.grants.revoke(found[0].id)
            show(f"Revoked {_format_grant(found[0])}")

    with_store(home(ctx), work)


def _format_grant(grant: Grant) -> str:
    """Shows control characters as escapes, because people decide about this."""
    if grant.tool == SANDBOX:
        place = f"in session {grant.session}" if grant.session else place_of(grant)
        return f"{grant.id[:8]}  sandbox: {visible(describe_grant(grant))}  {visible(place)}"
    until = f"until {datetime.fromtimestamp(grant.expires_at).astimezone():%Y-%m-%d}" if grant.expires_at else ""
    where = f"in session {grant.session}" if grant.session else f"in {visible(grant.cwd)} {until}"
    return f"{grant.id[:8]}  {grant.tool}({brief(visible(grant.what), SHOWN_CHARS)})  {where}".rstrip()
