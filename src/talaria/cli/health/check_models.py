"""What `talaria doctor` finds out about models and their keys, the clock, the gateway and its platforms."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
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
from talaria.gateway.gateway_status import read_status
from talaria.net.client import HttpClient
from talaria.platforms.loader import manifests
from talaria.providers.base import Endpoint
from talaria.providers.http_provider import LOOKING

SKEW_S = 60.0
SANE_YEARS = range(2025, 2100)


async def check_models(settings: Settings) -> list[Finding]:
    rows = await model_status.providers(settings, is_live=False)
    keys = [f"{row.name} ({row.keys})" for row in rows if row.keys]  # how many, and nothing of the keys themselves
    keys += [f"{name} (by command)" for name, own in settings.config.providers.items() if own.key_command]
    found = [Finding("keys", "ok", ", ".join(keys) or "none")]
    try:
        async with open_application(settings) as app:
            found += await _check_route(app)
    except (StoreDamaged, StoreTooNew, StoreUnavailable):
        pass  # reported by the check of the store
    except TalariaError as error:
        found.append(Finding("model", "fail", str(error), _remedy(error)))
    return found


async def _check_route(app: Application) -> list[Finding]:
    async def ask(endpoint: Endpoint) -> TalariaError | None:
        """Returns why it does not answer; None if it does."""
        try:
            await app.upstream.provider(endpoint).models(await app.upstream.keys(endpoint).take(endpoint.model))
        except TalariaError as error:
            return error
        return None

    primary, *others = app.route.endpoints
    error, *errors = await asyncio.gather(*map(ask, (primary, *others)))
    if error is not None:
        found = [Finding("model", "fail", str(error), _remedy(error))]
    elif app.is_stand_in:
        text = "demo: no API key and no local model server found"
        found = [Finding("model", "warn", text, "run `talaria setup` to choose a model")]
    elif primary.provider == DEMO:
        found = [Finding("model", "ok", "demo, a scripted stand-in, as configured")]
    else:
        found = [Finding("model", "ok", f"{primary.label} answers at {primary.base_url}")]
    for endpoint, failure in zip(others, errors, strict=True):
        if failure is not None:
            found.append(Finding("fallback", "warn", str(failure), _remedy(failure)))
        else:
            found.append(Finding("fallback", "ok", f"{endpoint.label} answers at {endpoint.base_url}"))
    reported = {problem.sentence for problem in app.settings.problems}
    for sentence in app.left_out:
        if sentence in reported:  # as a finding about the settings
            continue
        found.append(Finding("left out", "warn", sentence, "add what is missing, or remove it from config.yaml"))
    date = None
    if primary.provider != DEMO and error is None:
        with suppress(TalariaError):
            async with (
                HttpClient(SystemClock()) as client,
                client.get(f"{primary.base_url}/models", headers={}, timeouts=LOOKING) as response,  # without a key
            ):
                date = response.headers.get("Date")
    return [*found, check_clock(app.clock.now(), date, urlsplit(primary.base_url).netloc)]


def _remedy(error: TalariaError) -> str:
    match error:
        case MissingCredential():
            return "run `talaria setup` to enter the key, or to choose another model"
        case KeyRejected():
            return "run `talaria setup` to enter another key"
        case Disconnected(kind="not_listening"):
            return "start it, or run `talaria setup` to choose another"
        case Disconnected():
            return "check that it is running and that base_url is right, or run `talaria setup` to choose another"
        case _:
            return "`talaria model try` shows more, `talaria setup` chooses another"


def check_clock(now: float, date: str | None, place: str) -> Finding:
    """Compares our time with the `Date` of an answer from `place`; without one, only the year is checked."""
    try:
        there = None if date is None else parsedate_to_datetime(date).timestamp()
    except ValueError:
        there = None
    if there is None:
        year = datetime.fromtimestamp(now, UTC).year
        is_right, text = year in SANE_YEARS, f"the year is {year}"
    else:
        off_s = now - there
        is_right = abs(off_s) <= SKEW_S
        text = (
            f"matches {place}" if is_right else f"{abs(off_s):,.0f} s {'ahead of' if off_s > 0 else 'behind'} {place}"
        )
    if is_right:
        return Finding("clock", "ok", text)
    return Finding("clock", "warn", text, "set it, or have a time service (NTP) do so")


def check_platforms(settings: Settings) -> Iterator[Finding]:
    """Nothing where no platform is set up."""
    found = load_wanted(settings, SystemClock())
    if not found.specs and not found.problems:
        return
    if (pid := find_holder(gateway_file(settings.home))) is None:
        yield Finding("gateway", "warn", "not running, although platforms are set up", "`talaria gateway start`")
    else:
        status = read_status(settings.home)
        complaints = status.complaints(time.time()) if status else ["It has not come up yet."]
        if complaints:
            remedy = "see `talaria gateway status` and `talaria gateway logs`"
            yield Finding("gateway", "warn", " ".join(complaints), remedy)
        else:
            yield Finding("gateway", "ok", f"running as process {pid}")
    for name, problem in found.problems.items():
        if settings.config.wants_plugins and name not in manifests():
            text = "not built in; a plugin may provide it"
            yield Finding(f"platform {name}", "warn", text, "`talaria gateway status` shows its state")
        else:
            remedy = "fix it in config.yaml or .env; `talaria gateway platforms` lists what it needs"
            yield Finding(f"platform {name}", "fail", problem, remedy)
    for spec in found.specs:
        subject, given = f"platform {spec.name}", spec.settings
        people, has_pairing = len({*given.allowed_users, *given.admin_users}), settings.config.gateway.pairing
        if given.allow_all_users:
            text = "allow_all_users is on: anyone who finds the bot can command the agent"
            yield Finding(subject, "warn", text, "remove it, and set allowed_users")
        elif not people and not has_pairing:
            yield Finding(subject, "warn", "nobody may talk to it", "set allowed_users, or gateway.pairing to true")
        else:
            yield Finding(subject, "ok", f"{people} may talk to it{', others by pairing' if has_pairing else ''}")
