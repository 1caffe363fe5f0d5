"""Trying the limits of a sandbox, with limits so small that nothing is harmed: memory, disk, inotify."""

import json
from pathlib import Path

import msgspec

from talaria.cli.health.escapes.probes import EVERYWHERE, SHUT_IN, STRICT, Attempt, ProbeLine, ProbeResult, decode_line
from talaria.core.aio import in_thread
from talaria.core.redaction import Redactor
from talaria.tools.output import CapturedOutput
from talaria.tools.sandbox.base import Sandbox, SandboxLimits, SandboxPolicy, ToolHost
from talaria.tools.sandbox.running_command import ExitStatus, SandboxCommand
from talaria.tools.sandbox.system import PYTHON

MEMORY = Attempt("use more memory than allowed", SHUT_IN)
INOTIFY = Attempt("use up the inotify instances of the user", STRICT)
DISK = Attempt("go on when the disk is nearly full", EVERYWHERE)
RESOURCES = (MEMORY, INOTIFY, DISK)
LIMITS = SandboxLimits(processes=256, memory_bytes=96 << 20)
TOO_MUCH_BYTES = 256 << 20
_LARGER_THAN_ANY_DISK = 1 << 60
_INSTANCES = Path("/proc/sys/user/max_inotify_instances")
_REASONS = {"memory": "it was killed for its memory", "disk": "it was stopped because of the disk"}


async def try_limits(sandbox: Sandbox, view: SandboxPolicy, intruder: str) -> list[ProbeResult]:
    """`intruder` is the program in the project that makes the attempts."""
    persons_own = await in_thread(_read_instances)
    async with sandbox.open(msgspec.structs.replace(view, limits=LIMITS)) as host:
        findings = [
            await _try(host, view, intruder, MEMORY, "use_memory", TOO_MUCH_BYTES),
            await _try(host, view, intruder, INOTIFY, "use_instances", persons_own),
        ]
    pretended = msgspec.structs.replace(LIMITS, reserve_bytes=_LARGER_THAN_ANY_DISK)
    async with sandbox.open(msgspec.structs.replace(view, limits=pretended)) as host:
        return [*findings, await _try(host, view, intruder, DISK, "go_on")]


async def _try(
    host: ToolHost, view: SandboxPolicy, intruder: str, attempt: Attempt, function: str, *facts: int
) -> ProbeResult:
    description = view.project / f"{function}.json"
    await in_thread(lambda: description.write_text(json.dumps([[attempt.name, function, *facts]])))
    output = CapturedOutput(view.project.with_name("spill") / "trial" / function, Redactor())
    end = await host.start(SandboxCommand(program=(PYTHON, "-I", "-S", intruder, str(description))), output).wait()
    output.close()
    return _judge(attempt, end, next(filter(None, map(decode_line, output.text().splitlines())), None))


def _judge(attempt: Attempt, end: ExitStatus, told: ProbeLine | None) -> ProbeResult:
    if end.why in _REASONS:
        return ProbeResult(attempt, False, _REASONS[end.why])
    if told is None:
        return ProbeResult(attempt, None, f"no answer, exit code {end.code}")
    return ProbeResult(attempt, told.succeeded, told.detail, is_tried=told.succeeded is not None)


def _read_instances() -> int:
    """0: this kernel does not say."""
    try:
        return int(_INSTANCES.read_text())
    except (OSError, ValueError):
        return 0
