"""`talaria api`: the gateway with the HTTP API alone; and its tokens."""

import asyncio
import math
import time

import click

from talaria.api.api_tokens import DEFAULT_SCOPES, SCOPES, check_name, digest_of, make_token
from talaria.cli.command_output import json_option, print_json
from talaria.cli.context import home, with_store
from talaria.cli.durations import parse_duration
from talaria.cli.notices import say, show
from talaria.core.errors import BadInput
from talaria.core.text import show_time
from talaria.runtime.accounts import dollars
from talaria.store.api_ports import ApiToken, Scope

COUNT = click.IntRange(1, 10**12)


@click.group("api", help="Serve the HTTP API without chats, and manage its tokens.", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        run_api(ctx)


def run_api(ctx: click.Context) -> None:
    # Loads everything that a gateway needs.
    from talaria.app.gateway_app import require_api_modules  # noqa: PLC0415
    from talaria.cli.gateway.serving import serve  # noqa: PLC0415

    require_api_modules()

    asyncio.run(serve(home(ctx), is_api_only=True))


token = click.Group("token", help="Create, list and revoke tokens.")
command.add_command(token)

_SCOPES_HELP = "\n".join(f"  {name:<9} {about}" for name, about in SCOPES.items())


@token.command("create", help=f"Create a token, and print it: it is not shown again.\n\n\b\nScopes:\n{_SCOPES_HELP}")
@click.argument("new_name", metavar="NAME")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice([*SCOPES]),
    multiple=True,
    default=DEFAULT_SCOPES,
    show_default=True,
    help="What it allows; once for each.",
)
@click.option("--expires", "lifetime", metavar="DURATION", help="Valid for this long: 30d, 12h, 8w; otherwise forever.")
@click.option("--tokens-per-day", type=COUNT, metavar="N", help="What models may read and write for it.")
@click.option("--usd-per-day", type=float, metavar="X", help="What models may cost for it.")
@click.option("--requests-per-minute", type=COUNT, metavar="N", help="How often it may ask.")
@click.pass_context
def create(
    ctx: click.Context,
    new_name: str,
    scopes: tuple[Scope, ...],
    lifetime: str | None,
    tokens_per_day: int | None,
    usd_per_day: float | None,
    requests_per_minute: int | None,
) -> None:
    check_name(new_name)
    now, secret = time.time(), make_token()
    seconds = None if lifetime is None else parse_duration(lifetime, "a duration")
    if seconds == 0:
        raise BadInput(f"A token that expires after {lifetime} is of no use; give at least 1h.")
    if usd_per_day is not None and not (usd_per_day > 0 and math.isfinite(usd_per_day)):
        raise BadInput(f"--usd-per-day is {usd_per_day:g}; it must be an amount above 0.")
    new = ApiToken(
        name=new_name,
        digest=digest_of(secret),
        scopes=tuple(scope for scope in SCOPES if scope in scopes),
        created_at=now,
        expires_at=None if seconds is None else now + seconds,
        tokens_per_day=tokens_per_day,
        usd_per_day=usd_per_day,
        requests_per_minute=requests_per_minute,
    )
    if not with_store(home(ctx), lambda store: store.api_tokens.add(new)):
        raise BadInput(f"There is already a token {new_name!r}; choose another name, or revoke that one first.")
    show(secret)
    say(f"This token is not shown again. Whoever has it is {new.person} here: keep it like a password.")


@token.command("list", help="List tokens: what they allow, until when, and their caps.")
@json_option
@click.pass_context
def list_tokens(ctx: click.Context, as_json: bool) -> None:
    known, now = with_store(home(ctx), lambda store: store.api_tokens.list()), time.time()
    if as_json:
        print_json([_document(one, now) for one in known])
        return
    for one in known:
        ends = "expires" if one.is_valid(now) else "expired"
        until = "never expires" if one.expires_at is None else f"{ends} {show_time(one.expires_at)}"
        parts = [one.name, ", ".join(one.scopes), f"created {show_time(one.created_at)}", until, *_list_caps(one)]
        show("  ".join(parts))
    if not known:
        say("There are no tokens yet; `talaria api token create NAME` creates one.")


@token.command("revoke", help="Revoke a token: it is refused from now on. Its conversations stay.")
@click.argument("name")
@click.pass_context
def revoke(ctx: click.Context, name: str) -> None:
    if not with_store(home(ctx), lambda store: store.api_tokens.revoke(name)):
        raise BadInput(f"There is no token {name!r}; see `talaria api token list`.")
    say(f"Revoked {name}. Its conversations stay; `talaria forget api:{name}` deletes them.")


def _document(one: ApiToken, now: float) -> dict[str, object]:
    """Without the digest."""
    return {
        "name": one.name,
        "person": one.person,
        "scopes": one.scopes,
        "created_at": one.created_at,
        "expires_at": one.expires_at,
        "is_expired": not one.is_valid(now),
        "tokens_per_day": one.tokens_per_day,
        "usd_per_day": one.usd_per_day,
        "requests_per_minute": one.requests_per_minute,
    }


def _list_caps(one: ApiToken) -> list[str]:
    caps = {
        "tokens a day": one.tokens_per_day and f"{one.tokens_per_day:,}",
        "a day": one.usd_per_day and dollars(one.usd_per_day),
        "requests a minute": one.requests_per_minute and f"{one.requests_per_minute:,}",
    }
    return [f"{value} {unit}" for unit, value in caps.items() if value]
