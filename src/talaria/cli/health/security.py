"""`talaria doctor --security`: tries to break out of the sandbox for real, and looks at what else keeps people safe."""

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from talaria.app.settings import Settings
from talaria.cli.health import own_trial
from talaria.cli.health.checks import Finding, Verdict
from talaria.cli.health.escapes import probes
from talaria.cli.health.escapes.escape_trial import try_escapes
from talaria.config import paths
from talaria.core.errors import TalariaError
from talaria.core.text import show_size
from talaria.tools.sandbox.base import Level, Sandbox
from talaria.tools.sandbox.chooser import SandboxChooser
from talaria.tools.sandbox.launching import USUAL_WEIGHT
from talaria.tools.sandbox.resource_limits import enforce_limits
from talaria.tools.sandbox.sandbox_settings import TerminalSettings

_VERDICTS: dict[probes.Verdict, Verdict] = {"pass": "ok", "warn": "warn", "fail": "fail", "skip": "skip"}
_PROMISES: dict[Level, str] = {
    "strict": "commands see only the project and the system's programs, and reach no network but what is allowed",
    "landlock": (
        "commands can write only in the project and reach no network, which cannot be allowed either; hooks and "
        "settings are put back; multiprocessing and services of this machine need bubblewrap"
    ),
    "seatbelt": "commands can write only in the project and reach no network",
    "container": "commands run in a container",
    "remote": "commands run on another machine",
    "none": "nothing is kept from commands: every one is asked about",
}


def examine(settings: Settings) -> Iterator[Finding]:
    sandbox = SandboxChooser(settings.config.terminal).sandbox
    yield _level(sandbox)
    yield from _attempts(sandbox, settings)
    yield from own_trial.examine()
    if sandbox.level in ("strict", "landlock"):
        yield from _limits(settings.config.terminal)
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
        findings = asyncio.run(try_escapes(sandbox, settings.home.resolve(), settings.config.terminal))
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


def _limits(terminal: TerminalSettings) -> Iterator[Finding]:
    """How firmly: whether the kernel holds them, or only Talaria. That they hold was tried before."""
    limits = terminal.sandbox_limits
    memory, remedy = show_size(limits.memory_bytes), "run it as a systemd user service: that has control groups"
    with enforce_limits(limits.processes, limits.memory_bytes, limits.cpu_weight) as enforcing:
        by_kernel = enforcing.limited
    if "memory" in by_kernel:
        yield Finding("memory", "ok", f"a control group holds the commands of a session to {memory}")
    else:
        text = f"Talaria ends commands that use more than {memory}, but looks only now and then: no control group here"
        yield Finding("memory", "warn", text, remedy)
    weight = limits.cpu_weight
    if "cpu" in by_kernel:
        text = f"a control group gives all commands of a session a weight of {weight} against 100 of each other program"
        yield Finding("processor time", "ok", text)
    else:
        text = "not limited" if weight == USUAL_WEIGHT else "commands only have a lower priority"
        yield Finding("processor time", "warn", f"{text}: no control group here", remedy)
    reserve = show_size(limits.reserve_bytes)
    yield Finding("disk", "warn", f"commands end when less than {reserve} are free; quick ones may use some of that")


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
