"""`talaria gateway`: the agent in every chat, started, stopped and looked at."""

import asyncio
import os
import time
from pathlib import Path

import click

from talaria.cli import context, exits
from talaria.cli.command_output import json_option, print_json
from talaria.cli.gateway import daemon, gateway_view
from talaria.cli.gateway import log as gateway_log
from talaria.cli.notices import complain, say, show
from talaria.config import paths
from talaria.config.secrets import read_env
from talaria.core.errors import BadInput, OperatorError, StoreUnavailable
from talaria.core.fs import replace_file
from talaria.core.ids import OutboxId
from talaria.gateway.claims import find_holder, gateway_file
from talaria.gateway.gateway_status import GatewayStatus, count_due_and_failed, read_status
from talaria.gateway.replies import EXPIRES_AFTER_S
from talaria.platforms.loader import EVERYWHERE, manifests
from talaria.providers.catalog import catalog
from talaria.store.base import Store
from talaria.store.chat_ports import OutboxState

MOST_SHOWN = 1000
_LEFT: tuple[OutboxState, ...] = ("pending", "started", "failed", "expired")

command = click.Group("gateway", help="Talk to the agent in chats: Telegram, Discord, Slack, Matrix, webhooks.")


@command.command("run", help="Run it here, until Ctrl-C.")
@click.pass_context
def run(ctx: click.Context) -> None:
    from talaria.cli.gateway.serving import serve  # noqa: PLC0415  (loads all that a gateway needs)

    asyncio.run(serve(context.home(ctx)))


@command.command("start", help="Run it in the background.")
@click.pass_context
def start(ctx: click.Context) -> None:
    home = context.home(ctx)
    if (pid := find_holder(gateway_file(home))) is not None:
        raise BadInput(f"A gateway runs on {home} already (process {pid}).")
    _tell(daemon.start(home, ctx.find_root().obj))


@command.command("stop", help="End it, when the turns that run have ended.")
@click.pass_context
def stop(ctx: click.Context) -> None:
    say("The gateway has ended." if daemon.stop(context.home(ctx)) else "No gateway runs here.")


@command.command("restart", help="End it, and run it in the background.")
@click.pass_context
def restart(ctx: click.Context) -> None:
    home = context.home(ctx)
    daemon.stop(home)
    _tell(daemon.start(home, ctx.find_root().obj))


def _tell(status: GatewayStatus) -> None:
    for line in gateway_view.status_lines(status):
        say(line)
    for complaint in status.complaints(time.time()):
        complain(complaint)


@command.command("status", help="Whether it runs, and whether all is well: then the exit code is 0.")
@json_option
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> int:
    home = context.home(ctx)
    mail, troubles = gateway_view.MailCounts(), list(gateway_view.disk_troubles(home)) if home.exists() else []
    if paths.database_file(home).exists():
        try:
            mail = context.with_store(home, _mail)
        except StoreUnavailable as fault:
            troubles.append(str(fault))
    seen = gateway_view.overview(find_holder(gateway_file(home)), read_status(home), mail, troubles)
    if as_json:
        print_json(seen)
    else:
        show(*gateway_view.overview_lines(seen))
    return exits.DONE if seen.is_healthy else exits.BAD_INPUT


async def _mail(store: Store) -> gateway_view.MailCounts:
    return gateway_view.MailCounts(len(await store.inbox.list_sessions()), *await count_due_and_failed(store.outbox))


@command.command("platforms", help="Every platform: whether it is set up, and what it needs.")
@json_option
@click.pass_context
def platforms(ctx: click.Context, as_json: bool) -> None:
    settings = context.settings(ctx)
    rows = list(gateway_view.platform_rows(settings, read_status(settings.home)))
    if as_json:
        print_json(rows)
        return
    for row in rows:
        show(*gateway_view.platform_lines(row))


@command.group("outbox", help="Replies that wait, and those that could not be delivered.", invoke_without_command=True)
@click.option("--all", "is_all", is_flag=True, help="Also those that were sent.")
@json_option
@click.pass_context
def outbox(ctx: click.Context, is_all: bool, as_json: bool) -> None:
    if ctx.invoked_subcommand is not None:
        return
    states: tuple[OutboxState, ...] = (*_LEFT, "sent") if is_all else _LEFT
    found = context.with_store(context.home(ctx), lambda store: store.outbox.list(states, MOST_SHOWN))
    rows = [gateway_view.reply(row) for row in found]
    if as_json:
        print_json(rows)
        return
    show(*(gateway_view.reply_line(row) for row in rows))
    if not rows:
        say("Nothing waits, and nothing has failed.")


@outbox.command("retry", help="Try again to deliver a reply that has failed.")
@click.argument("id", type=int)
@click.pass_context
def retry(ctx: click.Context, id: int) -> None:
    until = time.time() + EXPIRES_AFTER_S
    if not context.with_store(context.home(ctx), lambda store: store.outbox.retry(OutboxId(id), until)):
        raise BadInput(f"{id} is no reply that has failed; see `talaria gateway outbox`.")
    say(f"Reply {id} is due again.")


@command.command("logs", help="Print the end of its log.")
@click.option("-n", "count", type=click.IntRange(min=0), default=50, show_default=True, help="So many lines.")
@click.option("-f", "--follow", "is_followed", is_flag=True, help="Go on with what is written from now on.")
@click.pass_context
def logs(ctx: click.Context, count: int, is_followed: bool) -> None:
    home = context.home(ctx)
    if not gateway_log.file(home).exists():
        raise BadInput(f"There is no log yet at {gateway_log.file(home)}.")
    for line in gateway_log.lines(home, count, is_followed=is_followed):
        show(line)


@command.command("install", help="Have systemd start it with your login, and again whenever it ends.")
@click.option("--print", "is_printed", is_flag=True, help="Only print the unit.")
@click.pass_context
def install(ctx: click.Context, is_printed: bool) -> None:
    home, profile = context.home(ctx).absolute(), ctx.find_root().obj
    variables = {**daemon.environment(), "PATH": os.environ.get("PATH", os.defpath)}
    unit = daemon.unit(home, daemon.command_line(profile), variables, daemon.drain_s(home))
    if is_printed:
        click.echo(unit, nl=False)
        return
    file, name = daemon.unit_file(home), daemon.unit_name(home)
    _write(file, unit)
    say(f"Wrote {file}.")
    if not daemon.is_at_hand():
        say(f"Nobody answers `systemctl --user` here. Where it does: systemctl --user enable --now {name}")
        return
    daemon.order("daemon-reload")
    daemon.order("enable", "--now", name)
    say(f"{name} runs. So that it does without a login, too: loginctl enable-linger")
    for variable in _only_here(home):
        complain(f"{variable} is set in this shell only: `talaria config set {variable} …` keeps it for the service.")


@command.command("uninstall", help="Undo `install`.")
@click.pass_context
def uninstall(ctx: click.Context) -> None:
    home = context.home(ctx).absolute()
    file = daemon.unit_file(home)
    if not file.exists():
        raise BadInput(f"There is no {file}.")
    if daemon.is_at_hand():
        daemon.order("disable", "--now", daemon.unit_name(home))
    file.unlink()
    if daemon.is_at_hand():
        daemon.order("daemon-reload")
    say(f"Removed {file}.")


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, text.encode(), mode=0o600)
    except OSError as fault:
        raise OperatorError(f"Cannot write {file}: {fault.strerror}.") from fault


def _only_here(home: Path) -> list[str]:
    """Variables of platforms and providers that a service would not see."""
    named = {*EVERYWHERE, *(name for one in manifests().values() for name in one.environment)}
    named |= {key for facts in catalog().values() for key in facts.keys}
    return sorted(named & os.environ.keys() - read_env(paths.secrets_file(home)).keys())
