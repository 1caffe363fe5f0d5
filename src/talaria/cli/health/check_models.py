"""What `talaria doctor` finds out about models: which providers have a key, whether the default and its fallbacks
answer, and whether their clock and ours agree.

What `talaria doctor` finds out about the gateway; nothing where no platform is set up.
"""

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from talaria.app.build import Application, open_application
from talaria.app.gateway_app import load_wanted
from talaria.app.settings import Settings
from talaria.cli import model_status
from talaria.cli.health.checks import Finding
from talaria.config.selection import DEMO
from talaria.core.clock import SystemClock
from talaria.core.errors import (
    Disconnected,
    KeyRejected,
    MissingCredential,
    StoreDamaged,
    StoreTooNew,
    StoreUnavailable,
    TalariaError,
)
from talaria.gateway.claims import find_holder, gateway_file
from talaria.gateway.gateway_state import PlatformSpec
from talaria.gateway.gateway_status import read_status
from talaria.net.client import HttpClient
from talaria.platforms.loader import manifests
from talaria.providers.base import Endpoint
from talaria.providers.http_provider import LOOKING

SKEW_S = 60.0
SANE_YEARS = range(2025, 2100)


async def check_models(settings: Settings) -> list[Finding]:
    keys = await _keys(settings)
    try:
        return [keys, *await _route(settings)]
    except (StoreDamaged, StoreTooNew, StoreUnavailable):
        return [keys]  # the rest is told as a matter of the store
    except TalariaError as error:
        return [keys, Finding("model", "fail", str(error), _remedy(error))]


async def _keys(settings: Settings) -> Finding:
    """Who has some, and how many; nothing of the keys themselves."""
    told = [f"{row.name} ({row.keys})" for row in await model_status.providers(settings, is_live=False) if row.keys]
    told += [f"{name} (by command)" for name, own in settings.config.providers.items() if own.key_command]
    return Finding("keys", "ok", ", ".join(told) or "none")


async def _route(settings: Settings) -> list[Finding]:
    async with open_application(settings) as app:
        primary, *others = app.route.endpoints
        answers = await asyncio.gather(*(_answer(endpoint, app) for endpoint in (primary, *others)))
        told = await _fetch_date(primary) if primary.provider != DEMO and answers[0] is None else None
    return [
        _primary(app, answers[0]),
        *(_fallback(endpoint, error) for endpoint, error in zip(others, answers[1:], strict=True)),
        *_report_left_out(app),
        clock(app.clock.now(), told, urlsplit(primary.base_url).netloc),
    ]


async def _answer(endpoint: Endpoint, app: Application) -> TalariaError | None:
    """What goes wrong, if something does."""
    try:
        await app.upstream.provider(endpoint).models(await app.upstream.keys(endpoint).take(endpoint.model))
    except TalariaError as error:
        return error
    return None


def _primary(app: Application, error: TalariaError | None) -> Finding:
    primary = app.route.primary
    if error is not None:
        return Finding("model", "fail", str(error), _remedy(error))
    if app.is_stand_in:
        remedy = "`talaria setup` chooses a model"
        return Finding("model", "warn", "demo: no API key and no local model server found", remedy)
    if primary.provider == DEMO:
        return Finding("model", "ok", "demo, a scripted stand-in, as you asked for")
    return Finding("model", "ok", f"{primary.label} answers at {primary.base_url}")


def _fallback(endpoint: Endpoint, error: TalariaError | None) -> Finding:
    if error is not None:
        return Finding("fallback", "warn", str(error), _remedy(error))
    return Finding("fallback", "ok", f"{endpoint.label} answers at {endpoint.base_url}")


def _report_left_out(app: Application) -> Iterator[Finding]:
    for sentence in app.left_out:
        yield Finding("left out", "warn", sentence, "set what it names, or take it out of config.yaml")


def _remedy(error: TalariaError) -> str:
    match error:
        case MissingCredential():
            return "`talaria setup` asks for the key, or for another model"
        case KeyRejected():
            return "`talaria setup` takes another key"
        case Disconnected(kind="not_listening"):
            return "start it, or choose another: `talaria setup`"
        case Disconnected():
            return "see whether it runs and base_url is right, or choose another: `talaria setup`"
        case _:
            return "`talaria model try` tells more, `talaria setup` chooses another"


async def _fetch_date(endpoint: Endpoint) -> str | None:
    """The date on its answer; no key goes there for that."""
    try:
        async with (
            HttpClient(SystemClock()) as client,
            client.get(f"{endpoint.base_url}/models", headers={}, timeouts=LOOKING) as response,
        ):
            return response.headers.get("Date")
    except TalariaError:
        return None


def clock(now: float, told: str | None, place: str) -> Finding:
    """`told` is what an answer from `place` was dated."""
    there = _seconds(told)
    if there is None:
        year = datetime.fromtimestamp(now, UTC).year
        is_right, text = year in SANE_YEARS, f"the year is {year}"
    else:
        off_s = now - there
        is_right = abs(off_s) <= SKEW_S
        text = f"as at {place}" if is_right else f"{abs(off_s):,.0f} s {'ahead of' if off_s > 0 else 'behind'} {place}"
    if is_right:
        return Finding("clock", "ok", text)
    return Finding("clock", "warn", text, "set it; a time service keeps it right")


def _seconds(told: str | None) -> float | None:
    try:
        return None if told is None else parsedate_to_datetime(told).timestamp()
    except ValueError:
        return None


OF_A_PLUGIN = "not one of ours: a plugin may bring it"


def check_platforms(settings: Settings) -> Iterator[Finding]:
    found = load_wanted(settings, SystemClock())
    if not found.doors and not found.problems:
        return
    yield _process(settings)
    may_be_theirs = settings.config.wants_plugins
    for name, problem in found.problems.items():
        if may_be_theirs and name not in manifests():
            yield Finding(f"platform {name}", "warn", OF_A_PLUGIN, "`talaria gateway status` says how it is")
        else:
            remedy = "set it right in config.yaml or .env; `talaria gateway platforms` says what it needs"
            yield Finding(f"platform {name}", "fail", problem, remedy)
    yield from (_platform(door, settings) for door in found.doors)


def _process(settings: Settings) -> Finding:
    if (pid := find_holder(gateway_file(settings.home))) is None:
        return Finding("gateway", "warn", "platforms are set up, and it does not run", "`talaria gateway start`")
    status = read_status(settings.home)
    complaints = status.complaints(time.time()) if status else ["It has not come up yet."]
    if complaints:
        return Finding("gateway", "warn", " ".join(complaints), "`talaria gateway status` and `logs` tell more")
    return Finding("gateway", "ok", f"runs as process {pid}")


def _platform(door: PlatformSpec, settings: Settings) -> Finding:
    subject, given = f"platform {door.name}", door.settings
    if given.allow_all_users:
        text = "allow_all_users is on: anybody who finds the bot commands the agent"
        return Finding(subject, "warn", text, "take it out, and set its allowed_users")
    people, has_pairing = len({*given.allowed_users, *given.admin_users}), settings.config.gateway.pairing
    if not people and not has_pairing:
        return Finding(subject, "warn", "nobody may speak", "set its allowed_users, or gateway.pairing to true")
    return Finding(subject, "ok", f"{people} may speak{', others by pairing' if has_pairing else ''}")
