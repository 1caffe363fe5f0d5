"""`talaria doctor --security`: tries to break out of the sandbox for real, and looks at what else keeps people safe."""

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from talaria.cli.health.finding import Finding, Verdict
from talaria.config import paths
from talaria.model.errors import TalariaError
from talaria.settings import Settings
from talaria.tools.sandbox import probes
from talaria.tools.sandbox.base import Level, Sandbox
from talaria.tools.sandbox.choosing import Choosing
from talaria.tools.sandbox.trial import attempted

_VERDICTS: dict[probes.Verdict, Verdict] = {"pass": "ok", "warn": "warn", "fail": "fail", "skip": "skip"}
_PROMISES: dict[Level, str] = {
    "strict": "commands see only the project and the system's programs, and reach no network but what is allowed",
    "landlock": "commands can write only in the project and reach no network; hooks and settings in it are not guarded",
    "seatbelt": "commands can write only in the project and reach no network",
    "container": "commands run in a container",
    "remote": "commands run on another machine",
    "none": "nothing is kept from commands: every one is asked about",
}


def examine(settings: Settings) -> Iterator[Finding]:
    sandbox = Choosing(settings.config.terminal).sandbox
    yield _level(sandbox)
    yield from _attempts(sandbox, settings)
    yield from _limits(sandbox.level)
    yield from _files(settings.home)
    yield from _settings(settings, sandbox.level)


def _level(sandbox: Sandbox) -> Finding:
    verdict: Verdict = "fail" if sandbox.level == "none" else "ok" if sandbox.level == "strict" else "warn"
    return Finding("sandbox", verdict, f"level {sandbox.level} ({sandbox.about}): {_PROMISES[sandbox.level]}")


def _attempts(sandbox: Sandbox, settings: Settings) -> Iterator[Finding]:
    if sandbox.level not in ("strict", "landlock", "seatbelt", "none"):
        yield Finding("escapes", "warn", f"not tried in a {sandbox.level} sandbox: it is as good as you have set it up")
        return
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        findings = asyncio.run(attempted(sandbox, settings.home.resolve(), settings.config.terminal))
    except TalariaError as error:
        yield Finding("escapes", "fail", str(error))
        return
    for one in findings:
        if not one.is_tried:
            yield Finding(one.name, "skip", f"not tried: {one.detail}")
            continue
        outcome = "works" if one.attempt.works_at else "fails"
        is_so = one.has_succeeded if one.attempt.works_at else not one.is_escape
        text = outcome if is_so else f"{'does not work' if one.attempt.works_at else 'SUCCEEDS'} ({one.detail[:100]})"
        yield Finding(one.name, _VERDICTS[one.verdict(sandbox.level)], text)


def _files(home: Path) -> Iterator[Finding]:
    for path in (home, paths.secrets_file(home), home / "state.db"):
        if path.exists():
            mode = stat.S_IMODE(path.stat().st_mode)
            is_closed = not mode & (stat.S_IRWXG | stat.S_IRWXO)
            yield Finding(
                path.name,
                "ok" if is_closed else "fail",
                f"{mode:04o}, {'only you' if is_closed else 'others'} can read it",
            )


def _limits(level: Level) -> Iterator[Finding]:
    """What nothing limits: said, because it cannot be tried without harm."""
    if level in ("strict", "landlock", "seatbelt", "none"):
        yield Finding("memory and processor time", "warn", "not limited: a command can use all of both")
        yield Finding("disk", "warn", "commands end when it is nearly full; a quick one can fill it before that")
        yield Finding("inotify", "warn", "not limited: a command can use up the watches of your user")


def _settings(settings: Settings, level: Level) -> Iterator[Finding]:
    config = settings.config
    is_asking = config.approvals.is_asking
    yield Finding(
        "approvals",
        "ok" if is_asking else "warn",
        "people are asked" if is_asking else "nobody is asked: approvals.mode is off",
    )
    network = config.terminal.network
    if level in ("none", "container", "remote"):
        yield Finding("network", "warn", "what commands reach is not limited by Talaria")
    else:
        verdict: Verdict = "warn" if "*" in network else "ok"
        yield Finding("network", verdict, f"commands may reach {', '.join(network) or 'nothing'}")
    if os.geteuid() == 0:
        yield Finding("user", "warn", "running as root: what is not confined has every right on this machine")
