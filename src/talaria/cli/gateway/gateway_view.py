"""The gateway, its platforms and its outbox, as rows and as lines for people."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from talaria.app.gateway_app import load_wanted
from talaria.app.settings import Settings
from talaria.core.clock import SystemClock
from talaria.gateway.envelope import read_body
from talaria.gateway.gateway_status import GatewayStatus, Health
from talaria.platforms.loader import install_hint, manifests, missing_modules
from talaria.store.chat_ports import OutboxRow

SHOWN_CHARS = 60
LEAST_FREE_BYTES = 64 << 10
"""With less than that on the disk nothing can be kept."""


class MailCounts(msgspec.Struct, frozen=True):
    """What is in the store, whether or not a gateway runs."""

    waiting_sessions: int = 0
    """With messages that are not answered."""
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
    """`connected` and the like if a gateway runs; else `configured`, `broken` or `not set up`."""
    variables: tuple[str, ...]
    problem: str = ""
    install: str = ""
    """How to get the packages that are missing."""
    how_to: str = ""


class OutboxReply(msgspec.Struct, frozen=True):
    id: int
    at: float
    target: str
    state: str
    attempts: int
    error: str
    text: str


def overview(pid: int | None, status: GatewayStatus | None, mail: MailCounts, troubles: Sequence[str] = ()) -> Overview:
    """`troubles` are those that we have seen ourselves."""
    if pid is None:
        complaint = "No gateway runs here; `talaria gateway start` starts one."
        return Overview(False, False, (*troubles, complaint), mail)
    if status is None:
        return Overview(True, False, (*troubles, f"The gateway (process {pid}) has not come up yet."), mail, pid=pid)
    complaints = tuple(dict.fromkeys((*troubles, *status.complaints(time.time()))))
    return Overview(True, not complaints, complaints, mail, status, pid)


def disk_troubles(home: Path) -> Iterator[str]:
    """Before anybody has to find out by losing time."""
    try:
        free = os.statvfs(home)
    except OSError as fault:
        yield f"{home} cannot be looked at: {fault.strerror}."
        return
    if free.f_bavail * free.f_frsize < LEAST_FREE_BYTES:
        yield f"The disk of {home} is full: messages wait, and are answered once there is space."


def overview_lines(seen: Overview) -> Iterator[str]:
    if seen.status is not None:
        yield from status_lines(seen.status)
    mail = seen.mail
    yield f"  {mail.waiting_sessions} conversations have mail that waits"
    yield f"  {mail.outbox_due} replies are due, {mail.outbox_failed} have failed"
    yield from (f"! {complaint}" for complaint in seen.complaints)


def status_lines(status: GatewayStatus) -> Iterator[str]:
    yield f"The gateway runs: process {status.pid}, version {status.version}, since {_moment(status.since)}."
    yield from (f"  {_health(one)}" for one in status.platforms)
    yield f"  {status.running} turns run, {status.live} live sessions"


def _health(health: Health) -> str:
    account = f" as {health.account}" if health.account else ""
    heard = f"heard {_ago(health.heard_at)}" if health.heard_at else "nothing heard yet"
    message = f"last message {_ago(health.message_at)}" if health.message_at else "no message yet"
    failures = f", {health.failures} failures" if health.failures else ""
    return f"{health.name}: {health.state}{account}; {heard}, {message}{failures}"


def platform_rows(settings: Settings, status: GatewayStatus | None) -> Iterator[PlatformRow]:
    """Loads the code of those that are wanted."""
    found = load_wanted(settings, SystemClock())
    doors = {door.name for door in found.specs}
    connected: Mapping[str, str] = {one.name: one.state for one in status.platforms} if status else {}
    for name, manifest in manifests().items():
        problem = found.problems.get(name, "")
        state = "broken" if problem else connected.get(name, "configured") if name in doors else "not set up"
        install = install_hint(manifest) if missing_modules(manifest) else ""
        yield PlatformRow(name, manifest.label, state, tuple(manifest.environment), problem, install, manifest.how_to)
    for name in sorted(found.problems.keys() - manifests().keys()):
        if settings.config.wants_plugins:
            yield PlatformRow(name, "of a plugin", connected.get(name, "configured"), (), "")
        else:
            yield PlatformRow(name, name, "broken", (), found.problems[name])


def platform_lines(row: PlatformRow) -> Iterator[str]:
    yield f"{row.state:<11} {row.name:<9} {row.label}; reads {', '.join(row.variables) or 'no variables'}"
    if row.problem:
        yield f"{'':<11} ! {row.problem}"
    elif row.install:
        yield f"{'':<11} needs: {row.install}"
    if row.state == "not set up" and row.how_to:
        yield f"{'':<11} {row.how_to}"


def reply(row: OutboxRow) -> OutboxReply:
    parcel = read_body(row.body)
    text = parcel.text or parcel.file
    return OutboxReply(row.id, row.created_at, row.target, row.state, row.attempts, row.error, text)


def reply_line(one: OutboxReply) -> str:
    text = " ".join(one.text.split())
    shown = text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"
    error = f"  ({one.error})" if one.error else ""
    return f"{one.id:>5}  {_moment(one.at)}  {one.state:<8} {one.attempts} tries  {one.target}  {shown!r}{error}"


def _moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M}"


def _ago(at: float) -> str:
    seconds = max(0.0, time.time() - at)
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 7200 else f"{seconds / 3600:.0f} h ago"
