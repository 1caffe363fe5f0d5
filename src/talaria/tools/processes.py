"""Background processes of a session, each with its own name until the session ends; and how commands ended."""

import asyncio
import signal
from collections.abc import Callable

import msgspec

from talaria.core.errors import BadArguments, ToolFailed
from talaria.core.messages import Outcome
from talaria.core.text import show_size
from talaria.tools.base import RichResult
from talaria.tools.output import CapturedOutput
from talaria.tools.sandbox.running_command import ExitStatus, RunningCommand, SandboxCommand

MAX_RUNNING = 16
MAX_KEPT = 64
SHOWN_END_CHARS = 500
KILLED = 137
"""The exit code of a command that was killed."""
SIGNAL_BASE = 128
"""Added to the number of the signal that ended a command."""


class BackgroundProcess(msgspec.Struct, eq=False):
    id: str
    command: SandboxCommand
    started: RunningCommand
    output: CapturedOutput
    is_ended_on_purpose: bool = False
    """So its end is not reported."""
    _polled_bytes: int = 0

    @property
    def is_running(self) -> bool:
        return self.started.end is None

    @property
    def state(self) -> str:
        end = self.started.end
        return "running" if end is None else describe_end(end)

    def close_input(self) -> None:
        """At a terminal this sends Ctrl-D, and the input stays open."""
        if self.command.size is None:
            self.started.close_input()
        else:
            self.started.write(b"\x04")

    def read_new_output(self) -> str:
        """What it has printed since the last call."""
        size = self.output.size_bytes
        fresh = self.output.since(self._polled_bytes)
        left_out = size - self._polled_bytes - len(fresh)
        self._polled_bytes = size
        text = fresh.decode("utf-8", "replace")
        return f"[… {left_out:,} bytes left out …]\n{text}" if left_out > 0 else text


def describe_end(end: ExitStatus | None, limit_s: int = 0) -> str:
    """In words, for the end of a command's output. `end` None: it was stopped when its time was up."""
    if end is None:
        return f"stopped after {limit_s} seconds; it did not end by itself"
    match end.why:
        case "disk":
            return "stopped, because the disk is nearly full"
        case "memory":
            limit = show_size(end.limit_bytes)
            code = f"exit code {end.code}; " if end.code != KILLED else ""
            reason = f"the commands of this session used more than {limit} of memory (terminal.limits.memory)"
            return f"{code}killed: {reason}"
        case "lost":
            return "lost: the shell and all processes of this session are gone; the next command starts a new shell"
        case "":
            return f"exit code {end.code}"


def make_outcome(end: ExitStatus | None, limit_s: int = 0, output_chars: int = 0) -> Outcome:
    """For people, in a few words. `end` None: it was stopped when its time was up."""
    if end is None:
        return Outcome("failed", f"timed out after {limit_s} s", output_chars=output_chars)
    match end.why:
        case "disk":
            words = "stopped, the disk is nearly full"
        case "memory":
            words = f"out of memory, the limit is {show_size(end.limit_bytes)}"
        case "lost":
            words = "lost with its sandbox"
        case "":
            # Shells report a signal as an exit code, too. Only signals that are used to end something count.
            number = end.code - SIGNAL_BASE
            names = {int(one): one.name for one in _DEADLY}
            words = f"killed by {names[number]}" if number in names else f"exit {end.code}"
    is_done = end.code == 0 and end.why == ""
    return Outcome("done" if is_done else "failed", words, output_chars=output_chars)


def make_result(output: str, end: ExitStatus | None, limit_s: int, more: str = "") -> RichResult:
    """The result of a command: what it printed, how it ended, and what else is to be said."""
    ours = f"\n[{describe_end(end, limit_s)}]{more}"
    text = f"{output}{ours}".lstrip("\n")
    return RichResult(text, outcome=make_outcome(end, limit_s, max(0, len(text) - len(ours))))


_DEADLY = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS),
    *(signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE, signal.SIGALRM, signal.SIGTERM, signal.SIGSYS),
)


class BackgroundProcesses:
    def __init__(self, notify: Callable[[str], None]) -> None:
        """`notify` is called when a process has ended by itself."""
        self._notify = notify
        self._all: dict[str, BackgroundProcess] = {}
        self._count = 0
        self._watches: set[asyncio.Task[None]] = set()

    @property
    def all(self) -> tuple[BackgroundProcess, ...]:
        return tuple(self._all.values())

    def add(self, command: SandboxCommand, started: RunningCommand, output: CapturedOutput) -> BackgroundProcess:
        self._count += 1
        process = BackgroundProcess(f"p{self._count}", command, started, output)
        self._all[process.id] = process
        over = [process.id for process in self._all.values() if not process.is_running]
        for id in over[: max(0, len(self._all) - MAX_KEPT)]:
            del self._all[id]
        watch = asyncio.create_task(self._watch(process), name=f"background {process.id}")
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        return process

    def check_room(self) -> None:
        """Raises `ToolFailed`."""
        if sum(process.is_running for process in self._all.values()) >= MAX_RUNNING:
            raise ToolFailed(f"{MAX_RUNNING} background processes are running already; end one first.")

    def find(self, id: str) -> BackgroundProcess:
        try:
            return self._all[id]
        except KeyError:
            known = ", ".join(self._all) or "none"
            raise BadArguments(f"There is no background process {id!r}. Known: {known}.") from None

    def close(self) -> None:
        for watch in self._watches:
            watch.cancel()
        for process in self._all.values():
            process.output.close()
        self._all.clear()

    async def _watch(self, process: BackgroundProcess) -> None:
        end = await process.started.wait()
        process.output.close()
        if process.is_ended_on_purpose:
            return
        last = process.output.since(max(0, process.output.size_bytes - SHOWN_END_CHARS)).decode("utf-8", "replace")
        lines = "".join(f"\n  {line}" for line in last.strip().splitlines())  # indented: none can pass for ours
        command = " ".join(process.command.command.split())[:80]
        output = f" Its last output:{lines}" if lines else ""
        self._notify(f"[Background process {process.id} ({command}) has ended: {describe_end(end)}.]{output}")
