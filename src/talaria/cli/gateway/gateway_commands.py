"""`talaria gateway`: start, stop and inspect the gateway; its platforms and its outbox as rows and as lines."""

import asyncio
import os
import time
from collections.abc import Iterator, Mapping

import click
import msgspec

from talaria.app.gateway_app import load_wanted
from talaria.cli import context, exits
from talaria.cli.command_output import json_option, print_json
from talaria.cli.gateway import daemon
from talaria.cli.gateway import log as gateway_log
from talaria.cli.notices import complain, say, show
from talaria.cli.safe import brief
from talaria.config import paths
from talaria.config.secrets import read_env
from talaria.core.clock import SystemClock
from talaria.core.errors import BadInput, OperatorError, StoreUnavailable
from talaria.core.fs import replace_file
from talaria.core.ids import OutboxId
from talaria.core.text import show_time
from talaria.gateway.claims import find_holder, gateway_file
from talaria.gateway.envelope import read_body
from talaria.gateway.gateway_status import GatewayStatus, count_due_and_failed, read_status
from talaria.gateway.replies import EXPIRES_AFTER_S
from talaria.platforms.loader import EVERYWHERE, install_hint, manifests, missing_modules
from talaria.providers.catalog import catalog
from talaria.store.base import Store
from talaria.store.chat_ports import OutboxState

MOST_SHOWN = 1000
SHOWN_CHARS = 60
LEAST_FREE_BYTES = 64 << 10
"""With less than this on the disk nothing can be stored."""
_LEFT: tuple[OutboxState, ...] = ("pending", "started", "failed", "expired")


class MailCounts(msgspec.Struct, frozen=True):
    """What is in the store, whether or not a gateway is running."""

    waiting_sessions: int = 0
    """With unanswered messages."""
    outbox_due: int = 0
    outbox_failed: int = 0


class Overview(msgspec.Struct, frozen=True):
    is_running: bool
    is_healthy: bool
    complaints: tuple[str, ...]
    mail: MailCounts
    status: GatewayStatus | None = None
    pid: int | None = None


class PlatformRow(msgspec.Struct, frozen=True):
    name: str
    label: str
    state: str
    """`connected` and the like while a gateway is running; else `configured`, `broken` or `not set up`."""
    variables: tuple[str, ...]
    problem: str = ""
    install: str = ""
    """How to install the packages that are missing."""
    how_to: str = ""


class OutboxReply(msgspec.Struct, frozen=True):
    id: int
    at: float
    target: str
    state: str
    attempts: int
    error: str
    text: str


command = click.Group(
    "gateway",
    help="Start, stop and inspect the gateway, which answers on Telegram, Discord, Slack, Matrix and webhooks.",
)


@command.command("run", help="Run it in this terminal, until Ctrl-C.")
@click.pass_context
def run(ctx: click.Context) -> None:
    from talaria.cli.gateway.serving import serve  # noqa: PLC0415  (loads everything that a gateway needs)

    asyncio.run(serve(context.home(ctx)))


@command.command("start", help="Start it in the background.")
@click.pass_context
def start(ctx: click.Context) -> None:
    home = context.home(ctx)
    if (pid := find_holder(gateway_file(home))) is not None:
        raise BadInput(f"A gateway is already running on {home} (process {pid}).")
    _report_start(daemon.start(home, ctx.find_root().obj))


@command.command("stop", help="Stop it after the running turns have finished.")
@click.pass_context
def stop(ctx: click.Context) -> None:
    say("The gateway has stopped." if daemon.stop(context.home(ctx)) else "No gateway is running here.")


@command.command("restart", help="Stop it, and start it in the background again.")
@click.pass_context
def restart(ctx: click.Context) -> None:
    home = context.home(ctx)
    daemon.stop(home)
    _report_start(daemon.start(home, ctx.find_root().obj))


def _report_start(status: GatewayStatus) -> None:
    for line in _status_lines(status):
        say(line)
    for complaint in status.complaints(time.time()):
        complain(complaint)


def _status_lines(status: GatewayStatus) -> Iterator[str]:
    yield f"The gateway is running: process {status.pid}, version {status.version}, since {show_time(status.since)}."
    for health in status.platforms:
        account = f" as {health.account}" if health.account else ""
        heard = f"heard {_ago(health.heard_at)}" if health.heard_at else "nothing heard yet"
        message = f"last message {_ago(health.message_at)}" if health.message_at else "no message yet"
        failures = f", {health.failures} failures" if health.failures else ""
        yield f"  {health.name}: {health.state}{account}; {heard}, {message}{failures}"
    yield f"  {status.running} running turns, {status.live} live sessions"


def _ago(at: float) -> str:
    seconds = max(0.0, time.time() - at)
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 7200 else f"{seconds / 3600:.0f} h ago"


@command.command("status", help="Show whether it is running and healthy. If so, the exit code is 0.")
@json_option
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> int:
    home = context.home(ctx)
    mail = MailCounts()
    complaints: list[str] = []
    if home.exists():
        try:
            free = os.statvfs(home)
            if free.f_bavail * free.f_frsize < LEAST_FREE_BYTES:
                complaints.append(f"The disk of {home} is full: messages are answered once there is space.")
        except OSError as fault:
            complaints.append(f"{home} cannot be examined: {fault.strerror}.")
    if paths.database_file(home).exists():

        async def count(store: Store) -> MailCounts:
            return MailCounts(len(await store.inbox.list_sessions()), *await count_due_and_failed(store.outbox))

        try:
            mail = context.with_store(home, count)
        except StoreUnavailable as fault:
            complaints.append(str(fault))
    pid, status = find_holder(gateway_file(home)), read_status(home)
    if pid is None:
        status = None
        complaints.append("No gateway is running here; `talaria gateway start` starts one.")
    elif status is None:
        complaints.append(f"The gateway (process {pid}) has not come up yet.")
    else:
        complaints += status.complaints(time.time())
    complaints = list(dict.fromkeys(complaints))
    if as_json:
        print_json(Overview(pid is not None, not complaints, tuple(complaints), mail, status, pid))
    else:
        if status is not None:
            show(*_status_lines(status))
        show(f"  {mail.waiting_sessions} conversations with unanswered messages")
        show(f"  {mail.outbox_due} replies waiting to be sent, {mail.outbox_failed} failed")
        show(*(f"! {complaint}" for complaint in complaints))
    return exits.BAD_INPUT if complaints else exits.DONE


@command.command("platforms", help="List every platform, whether it is set up, and what it needs.")
@json_option
@click.pass_context
def platforms(ctx: click.Context, as_json: bool) -> None:
    settings = context.settings(ctx)
    status, found = read_status(settings.home), load_wanted(settings, SystemClock())
    wanted = {spec.name for spec in found.specs}
    connected: Mapping[str, str] = {one.name: one.state for one in status.platforms} if status else {}
    rows: list[PlatformRow] = []
    for name, manifest in manifests().items():
        problem = found.problems.get(name, "")
        state = "broken" if problem else connected.get(name, "configured") if name in wanted else "not set up"
        install = install_hint(manifest) if missing_modules(manifest) else ""
        variables = tuple(manifest.environment)
        rows.append(PlatformRow(name, manifest.label, state, variables, problem, install, manifest.how_to))
    for name in sorted(found.problems.keys() - manifests().keys()):
        if settings.config.wants_plugins:
            rows.append(PlatformRow(name, "from a plugin", connected.get(name, "configured"), ()))
        else:
            rows.append(PlatformRow(name, name, "broken", (), found.problems[name]))
    if as_json:
        print_json(rows)
        return
    for row in rows:
        show(f"{row.state:<11} {row.name:<9} {row.label}; reads {', '.join(row.variables) or 'no variables'}")
        if row.problem:
            show(f"{'':<11} ! {row.problem}")
        elif row.install:
            show(f"{'':<11} needs: {row.install}")
        if row.state == "not set up" and row.how_to:
            show(f"{'':<11} {row.how_to}")


@command.group("outbox", help="List replies that are waiting or could not be delivered.", invoke_without_command=True)
@click.option("--all", "is_all", is_flag=True, help="Also list those that were sent.")
@json_option
@click.pass_context
def outbox(ctx: click.Context, is_all: bool, as_json: bool) -> None:
    if ctx.invoked_subcommand is not None:
        return
    states: tuple[OutboxState, ...] = (*_LEFT, "sent") if is_all else _LEFT
    rows: list[OutboxReply] = []
    for row in context.with_store(context.home(ctx), lambda store: store.outbox.list(states, MOST_SHOWN)):
        body = read_body(row.body)
        text = body.text or body.file
        rows.append(OutboxReply(row.id, row.created_at, row.target, row.state, row.attempts, row.error, text))
    if as_json:
        print_json(rows)
        return
    for row in rows:
        text, error = brief(row.text, SHOWN_CHARS), f"  ({row.error})" if row.error else ""
        show(f"{row.id:>5}  {show_time(row.at)}  {row.state:<8} {row.attempts} tries  {row.target}  {text!r}{error}")
    if not rows:
        say("Nothing is waiting, and nothing has failed.")


@outbox.command("retry", help="Try again to deliver a reply that failed.")
@click.argument("id", type=int)
@click.pass_context
def retry(ctx: click.Context, id: int) -> None:
    until = time.time() + EXPIRES_AFTER_S
    if not context.with_store(context.home(ctx), lambda store: store.outbox.retry(OutboxId(id), until)):
        raise BadInput(f"There is no failed reply {id}; see `talaria gateway outbox`.")
    say(f"Reply {id} will be sent again.")


@command.command("logs", help="Print the end of its log.")
@click.option("-n", "count", type=click.IntRange(min=0), default=50, show_default=True, help="How many lines.")
@click.option("-f", "--follow", "is_followed", is_flag=True, help="Keep printing new lines.")
@click.pass_context
def logs(ctx: click.Context, count: int, is_followed: bool) -> None:
    home = context.home(ctx)
    if not gateway_log.file(home).exists():
        raise BadInput(f"There is no log yet at {gateway_log.file(home)}.")
    for line in gateway_log.lines(home, count, is_followed=is_followed):
        show(line)


@command.command("install", help="Make it a systemd user service, which starts at login and restarts if it ends.")
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
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, unit.encode(), mode=0o600)
    except OSError as fault:
        raise OperatorError(f"Cannot write {file}: {fault.strerror}.") from fault
    say(f"Wrote {file}.")
    if not daemon.has_systemd():
        say(f"`systemctl --user` does not work here. Where it does, run: systemctl --user enable --now {name}")
        return
    daemon.systemctl("daemon-reload")
    daemon.systemctl("enable", "--now", name)
    say(f"{name} is running. To keep it running while you are logged out: loginctl enable-linger")
    known = {*EVERYWHERE, *(variable for one in manifests().values() for variable in one.environment)}
    known |= {key for facts in catalog().values() for key in facts.keys}
    for variable in sorted(known & os.environ.keys() - read_env(paths.secrets_file(home)).keys()):
        complain(f"{variable} is set only in this shell; `talaria config set {variable} …` stores it for the service.")


@command.command("uninstall", help="Undo `install`.")
@click.pass_context
def uninstall(ctx: click.Context) -> None:
    home = context.home(ctx).absolute()
    file = daemon.unit_file(home)
    if not file.exists():
        raise BadInput(f"{file} does not exist.")
    if daemon.has_systemd():
        daemon.systemctl("disable", "--now", daemon.unit_name(home))
    file.unlink()
    if daemon.has_systemd():
        daemon.systemctl("daemon-reload")
    say(f"Removed {file}.")
