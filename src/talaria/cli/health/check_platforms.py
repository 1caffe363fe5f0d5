"""What `talaria doctor` finds out about the gateway; nothing where no platform is set up."""

import time
from collections.abc import Iterator

from talaria.cli.health.finding import Finding
from talaria.core.clock import SystemClock
from talaria.gateway.claims import gateway_file, holder
from talaria.gateway.gateway_status import read_status
from talaria.gateway.service import PlatformSpec
from talaria.gateway_app import wanted
from talaria.platforms.loader import manifests
from talaria.settings import Settings

OF_A_PLUGIN = "not one of ours: a plugin may bring it"


def examine(settings: Settings) -> Iterator[Finding]:
    found = wanted(settings, SystemClock())
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
    if (pid := holder(gateway_file(settings.home))) is None:
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
