"""`talaria doctor --security`: try to break out of the sandbox for real, and check what else keeps you safe."""

import asyncio
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from talaria.api.api_settings import check_api_settings, read_api_settings
from talaria.app.settings import Settings, read_settings_leniently
from talaria.cli.backup.restore import replace_home, reserve_aside
from talaria.cli.health.checks import ROOT, Finding, Verdict, report_problems
from talaria.cli.health.escapes.escape_trial import try_escapes
from talaria.config import paths
from talaria.core.clock import SystemClock
from talaria.core.errors import BadConfig, Denied, TalariaError
from talaria.core.ids import CallId, OwnerId, SessionId
from talaria.core.messages import ToolCall
from talaria.core.questions import Answer, Question
from talaria.core.text import show_size
from talaria.store.base import NewSession
from talaria.store.memory import MemoryStore
from talaria.tools.base import Scope
from talaria.tools.builtin.file_tools import file_tools
from talaria.tools.file_content import ReadFiles
from talaria.tools.gate import MAX_SHOWN_BYTES, PolicyGate
from talaria.tools.policy import ApprovalSettings, Policy
from talaria.tools.protected import Protected
from talaria.tools.sandbox.base import Level, Sandbox
from talaria.tools.sandbox.chooser import SandboxChooser
from talaria.tools.sandbox.launching import USUAL_WEIGHT
from talaria.tools.sandbox.resource_limits import enforce_limits
from talaria.tools.sandbox.sandbox_settings import TerminalSettings

_PROMISES: dict[Level, str] = {
    "strict": "commands see only the project and the system's programs, and have no network except what you allow",
    "landlock": (
        "commands can write only in the project and have no network, not even what you allow; changes to hooks and "
        "settings are undone; multiprocessing and services on this machine need bubblewrap"
    ),
    "seatbelt": "commands can write only in the project and have no network",
    "container": "commands run in a container",
    "remote": "commands run on another machine",
    "none": "commands are not confined at all: you are asked about each one",
}
_END = "the very end"


def check_security(home: Path) -> Iterator[Finding]:
    settings = read_settings_leniently(home)
    yield from report_problems(settings)
    terminal = settings.config.terminal
    sandbox = SandboxChooser(terminal).sandbox
    level = sandbox.level
    verdict: Verdict = "fail" if level == "none" else "ok" if level == "strict" else "warn"
    yield Finding("sandbox", verdict, f"level {level} ({sandbox.about}): {_PROMISES[level]}")
    yield from _check_escapes(sandbox, home, terminal)
    for name, has_succeeded in (
        ("get a person to approve more than they see", asyncio.run(_hides_something())),
        ("lose a home by two restores in one second", _loses_a_home()),
    ):
        yield Finding(name, "fail" if has_succeeded else "ok", "SUCCEEDS" if has_succeeded else "fails")
    if level in ("strict", "landlock"):
        yield from _check_limits(terminal)
    for path in (home, paths.secrets_file(home), paths.database_file(home)):
        if path.exists():
            mode = stat.S_IMODE(path.stat().st_mode)
            is_closed = not mode & (stat.S_IRWXG | stat.S_IRWXO)
            who = "only you" if is_closed else "others"
            yield Finding(path.name, "ok" if is_closed else "fail", f"{mode:04o}, {who} can read it")
    if settings.config.approvals.is_asking:
        yield Finding("approvals", "ok", "you are asked")
    else:
        yield Finding("approvals", "warn", "you are not asked: approvals.mode is off")
    if level in ("none", "container", "remote"):
        yield Finding("network", "warn", "Talaria does not limit what commands can reach")
    else:
        network = terminal.network
        text = f"commands may reach {', '.join(network) or 'nothing'}"
        yield Finding("network", "warn" if "*" in network else "ok", text)
    yield from _check_api(settings)
    if os.geteuid() == 0:
        yield Finding("user", "warn", ROOT)


def _check_api(settings: Settings) -> Iterator[Finding]:
    try:
        api = read_api_settings(settings.config.api, settings.environment)
        check_api_settings(api)
    except BadConfig as fault:
        yield Finding("HTTP API", "fail", str(fault))
        return
    if api.enabled:
        way = "on this machine" if api.is_local else "with TLS" if api.tls_cert else "behind your proxy"
        yield Finding("HTTP API", "ok", f"listens on {api.host}, port {api.port}, {way}; every request needs a token")


def _check_escapes(sandbox: Sandbox, home: Path, terminal: TerminalSettings) -> Iterator[Finding]:
    level = sandbox.level
    if level not in ("strict", "landlock", "seatbelt", "none"):
        yield Finding("escapes", "warn", f"not tried in a {level} sandbox: it is as secure as you made it")
        return
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        results = asyncio.run(try_escapes(sandbox, home.resolve(), terminal))
    except TalariaError as error:
        yield Finding("escapes", "fail", str(error))
        return
    for one in results:
        if not one.is_tried:
            yield Finding(one.name, "skip", f"not tried: {one.detail}")
            continue
        is_needed, verdict = bool(one.attempt.works_at), one.verdict(level)
        text = "works" if is_needed else "fails"
        if not one.is_right:
            text = f"{'does not work' if is_needed else 'SUCCEEDS'} ({one.detail[:100]})"
        yield Finding(one.name, "ok" if verdict == "pass" else verdict, text)


def _check_limits(terminal: TerminalSettings) -> Iterator[Finding]:
    """Whether the kernel enforces them or only Talaria. The escapes have tried that they hold."""
    limits = terminal.sandbox_limits
    memory, remedy = show_size(limits.memory_bytes), "run it as a systemd user service: that has control groups"
    with enforce_limits(limits.processes, limits.memory_bytes, limits.cpu_weight) as enforcing:
        by_kernel = enforcing.limited
    if "memory" in by_kernel:
        yield Finding("memory", "ok", f"a control group limits the commands of a session to {memory}")
    else:
        text = f"Talaria stops commands that use more than {memory}, but checks only now and then: no control group"
        yield Finding("memory", "warn", text, remedy)
    weight = limits.cpu_weight
    if "cpu" in by_kernel:
        text = f"a control group gives the commands of a session a weight of {weight}; other programs have 100 each"
        yield Finding("processor time", "ok", text)
    else:
        text = "not limited" if weight == USUAL_WEIGHT else "commands only have a lower priority"
        yield Finding("processor time", "warn", f"{text}: no control group", remedy)
    reserve = show_size(limits.reserve_bytes)
    text = f"commands are stopped when less than {reserve} is free; fast ones may use some of that"
    yield Finding("disk", "warn", text)


class _Reader:
    """Says no, and keeps what was shown."""

    def __init__(self) -> None:
        self.shown = ""

    def may_approve(self) -> bool:
        return True

    async def allow(self, question: Question) -> Answer:
        self.shown = question.text
        return "no"

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:  # noqa: ARG002
        return None


async def _hides_something() -> bool:
    """Whether the gate asks about a large file without showing all of it. Nothing is written.

    One file can be shown whole, one is too large for that; both are outside the project.
    """
    clock, session = SystemClock(), SessionId("trial")
    outside, project = Path("/talaria-trial/outside"), Path("/talaria-trial/project")
    policy = Policy(ApprovalSettings(), Protected(Path("/talaria-trial"), Path("/talaria-trial/home")))
    write = next(tool for tool in file_tools(ReadFiles()) if tool.spec.name == "write_file")
    async with MemoryStore(clock) as store:
        await store.sessions.create(NewSession(session, "terminal"))
        gate = PolicyGate(
            policy, store.approvals, store.grants, session=session, owner=OwnerId("trial"), clock=clock, timeout_s=5.0
        )
        shown: list[str] = []
        for size in (MAX_SHOWN_BYTES // 2, MAX_SHOWN_BYTES + 1):
            reader = _Reader()
            scope = Scope(session, project, project / "spill", turn="trial", person=reader)
            arguments = {"path": str(outside), "content": "x\n" * (size // 2) + _END}
            call = ToolCall(CallId("trial"), "write_file", msgspec.json.encode(arguments).decode())
            try:
                await gate.admit(call, write.prepare(call.arguments, scope), scope)
            except Denied:
                shown.append(reader.shown)
            else:
                return True
    return not (shown[0].rstrip().endswith(_END) and not shown[1])


def _loses_a_home() -> bool:
    with TemporaryDirectory(prefix="talaria-trial-") as name:
        home = Path(name).resolve() / "home"
        for number in range(3):
            new = home.with_name(f"new-{number}") if number else home
            new.mkdir()
            (new / "number").write_text(str(number))
            if number:
                replace_home(home, new, reserve_aside(home))
        return sorted(file.read_text() for file in home.parent.glob("*/number")) != ["0", "1", "2"]
