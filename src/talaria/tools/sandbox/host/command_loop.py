"""The tool host: one per session, inside its sandbox. Runs commands for a workspace until that lets go of it.

Started with settings as JSON (`launching.py` writes them), and the descriptor of the channel where that is not standard
input and output. When the channel closes, or on any fault of ours, nothing of what was started here is left.
"""

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from talaria.tools.sandbox.host.child_command import CHUNK_BYTES, ChildCommand
from talaria.tools.sandbox.host.descendants import adopt_orphans, reap, sweep, wake_on_child_exit
from talaria.tools.sandbox.host.frames import ENDED, HELLO, INPUT, KILL, OUTPUT, START, Frames, frame
from talaria.tools.sandbox.host.memory_use import memory_used
from talaria.tools.sandbox.host.minder import NOT_STARTED, Program, mind, set_size
from talaria.tools.sandbox.host.shell import ShellState, make_proxy_variables

FULL_BYTES = 1 << 20
"""While so much waits to be sent, commands have to wait with more output."""
TICK_S = 0.5
QUICKEST_TICK_S = 0.02
FILLING_BYTES_PER_S = 16 << 30
"""As fast as commands may fill a disk or memory: the less room there is, the more often we look."""
SMALLEST_LIMIT_BYTES = 16 << 20
LEFTOVER_S = 0.5
"""Output that somebody still holds open when its command has ended is waited for so long."""
DISK_FULL = "disk"
OUT_OF_MEMORY = "memory"


class CommandLoop:
    def __init__(
        self, settings: dict[str, Any], incoming: int, outgoing: int, confine: Callable[[], None] = lambda: None
    ) -> None:
        """`confine` is called by every command before it begins."""
        self._settings = settings
        self._in, self._out = incoming, outgoing
        self._frames = Frames()
        self._outgoing = bytearray()
        self._commands: dict[int, ChildCommand] = {}
        self._state = ShellState(settings["folder"], settings["cwd"])
        self._saving: dict[int, bool] = {}
        """Commands whose state is kept, and whether the place they end in is, too."""
        self._environment = {**os.environ, **settings.get("environment", {})}
        self._confine = confine
        self._woken = wake_on_child_exit()  # only the end of the channel ends us
        self._ticked_at = 0.0
        self._tick_s = QUICKEST_TICK_S

    def run(self) -> None:
        self._state.make()
        adopt_orphans()
        for descriptor in (self._in, self._out):
            os.set_blocking(descriptor, False)
            os.set_inheritable(descriptor, False)  # commands have no business here
        self._greet()
        while True:
            self._handle(self._poll())
            self._collect()
            self._tick()

    def end(self) -> None:
        for running in self._commands.values():
            with suppress(ProcessLookupError):
                os.kill(running.minder, signal.SIGTERM)
        sweep()
        self._state.remove()
        if "confinement" in self._settings:
            import shutil  # noqa: PLC0415  (takes as long to load as all the rest)

            with suppress(RecursionError):  # too deep: whoever started us removes it, too
                shutil.rmtree(self._settings["confinement"]["scratch"], ignore_errors=True)

    def _greet(self) -> None:
        hello = frame(HELLO, 0, json.dumps({"pid": os.getpid()}).encode())
        if not self._settings.get("has_egress"):
            self._outgoing += hello
            return
        with self._listener() as listener, socket.socket(fileno=os.dup(self._out)) as channel:
            socket.send_fds(channel, [hello], [listener.fileno()])

    def _listener(self) -> socket.socket:
        """Whoever connects to it speaks with the egress proxy, which sits outside."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._environment.update(make_proxy_variables(listener.getsockname()[1], self._settings.get("proxied")))
        return listener

    def _poll(self) -> dict[int, int]:
        """What can be read and written now, by descriptor."""
        wanted = {self._in: select.POLLIN, self._woken: select.POLLIN}
        if self._outgoing:
            wanted[self._out] = wanted.get(self._out, 0) | select.POLLOUT
        for running in self._commands.values():
            if running.output is not None and len(self._outgoing) < FULL_BYTES:
                wanted[running.output] = select.POLLIN
            if running.input is not None and running.unread:
                wanted[running.input] = wanted.get(running.input, 0) | select.POLLOUT
        poll = select.poll()
        for descriptor, events in wanted.items():
            poll.register(descriptor, events)
        return dict(poll.poll(self._tick_s * 1000 if self._commands else None))

    def _handle(self, ready: dict[int, int]) -> None:
        readable = select.POLLIN | select.POLLHUP | select.POLLERR
        if ready.get(self._woken):
            with suppress(BlockingIOError):
                os.read(self._woken, 4096)
        for running in tuple(self._commands.values()):
            if running.output is not None and ready.get(running.output, 0) & readable:
                self._send(running.read())
            if running.input is not None and ready.get(running.input, 0):  # or it does not read any more: that is told
                running.write()
        if ready.get(self._in, 0) & readable:
            self._hear()
        if self._outgoing:
            with suppress(BlockingIOError):
                del self._outgoing[: os.write(self._out, self._outgoing)]

    def _hear(self) -> None:
        try:
            chunk = os.read(self._in, CHUNK_BYTES)
        except BlockingIOError:
            return
        if not chunk:
            raise EOFError
        for kind, number, content in self._frames.feed(chunk):
            running = self._commands.get(number)
            if kind == START:
                self._start(number, json.loads(content))
            elif kind == INPUT and running is not None:
                running.take(content)
            elif kind == KILL and running is not None:
                _end(running, "")

    def _start(self, number: int, wanted: dict[str, Any]) -> None:
        """`wanted` is a `Command` (commands.py)."""
        opened: list[int] = []
        try:
            ours, theirs = _terminal(*wanted["size"]) if wanted["size"] else _pipes(has_input=wanted["has_input"])
            opened = [one for one in ours if one is not None]
            notes, noting = os.pipe() if self._settings.get("notes_connections") else (None, None)
            opened += [notes] if notes is not None else []
            try:
                minder = mind(self._program(wanted, theirs, noting))
            finally:
                for descriptor in {*theirs, *([noting] if noting is not None else [])}:
                    os.close(descriptor)
        except OSError as fault:  # too many files or processes
            for descriptor in opened:
                os.close(descriptor)
            self._send((frame(OUTPUT, number, f"cannot start: {fault.strerror}\n".encode()),))
            self._send((self._format_end(number, NOT_STARTED),))
            return
        self._commands[number] = ChildCommand(number, minder, *ours, wanted["limit_bytes"], notes)
        if wanted["is_kept"]:
            self._saving[number] = wanted["cwd"] is None

    def _program(self, wanted: dict[str, Any], descriptors: tuple[int, int, int], notes: int | None) -> Program:
        term = {"TERM": "xterm-256color" if wanted["size"] else "dumb"}
        if wanted["program"] is not None:
            argv, environment = tuple(wanted["program"]), self._environment
        else:
            script = self._state.script(wanted["command"], is_kept=wanted["is_kept"])
            argv, environment = (self._settings["shell"], "-c", script), self._state.environment(self._environment)
        cwd = wanted["cwd"] or self._state.place()
        return Program(
            argv,
            {**environment, **term},
            cwd,
            descriptors,
            bool(wanted["size"]),
            {**self._settings["limits"], "FSIZE": self._file_limit_bytes()},
            self._settings.get("niceness", 0),
            self._confine,
            notes,
        )

    def _file_limit_bytes(self) -> int:
        """No single file fills the disk, however fast it is made."""
        return min(self._settings["limits"]["FSIZE"], max(self._room_bytes(), SMALLEST_LIMIT_BYTES))

    def _collect(self) -> None:
        """Commands whose minder has ended, once their output has, too."""
        minders = {running.minder: running for running in self._commands.values() if running.code is None}
        for pid, code in reap().items():
            if (running := minders.get(pid)) is not None:
                running.code = code
                running.ended_at = time.monotonic()
                if code < 0:  # the command ended its own minder: what it left behind is ours now
                    sweep(self._minders)
        for running in tuple(self._commands.values()):
            is_late = time.monotonic() - running.ended_at > LEFTOVER_S and len(self._outgoing) < FULL_BYTES
            if running.code is not None and (running.output is None or is_late):
                self._finish(running, running.code)

    def _minders(self) -> frozenset[int]:
        return frozenset(running.minder for running in self._commands.values() if running.code is None)

    def _finish(self, running: ChildCommand, code: int) -> None:
        if (is_place_kept := self._saving.pop(running.number, None)) is not None:
            self._state.take(is_place_kept=is_place_kept)
        self._send(running.flush())
        unreachable = running.read_notes()
        running.close()
        del self._commands[running.number]
        self._send((self._format_end(running.number, code if code >= 0 else 128 - code, running.why, unreachable),))

    def _format_end(self, number: int, code: int, why: str = "", unreachable: list[str] | None = None) -> bytes:
        told = {"code": code, "why": why, "cwd": self._state.place(), "unreachable": unreachable}
        return frame(ENDED, number, json.dumps(told).encode())

    def _tick(self) -> None:
        now = time.monotonic()
        if not self._commands or now - self._ticked_at < self._tick_s:
            return
        self._ticked_at = now
        room_bytes = self._room_bytes()
        self._tick_s = min(tick_s(room_bytes), tick_s(self._watch_memory()))
        is_full = room_bytes < 0
        for running in self._commands.values():
            self._send(running.flush())
            if is_full and running.code is None:
                _end(running, DISK_FULL)

    def _watch_memory(self) -> int:
        """How much more commands may use. When that is less than nothing, the one that uses most is ended."""
        limit_bytes = self._settings.get("memory_bytes")
        if not limit_bytes:
            return FILLING_BYTES_PER_S
        running = {one.minder: one for one in self._commands.values() if one.code is None}
        used = memory_used(running, limit_bytes)
        room_bytes = limit_bytes - sum(used.values())
        if room_bytes < 0:
            _end(running[max(used, key=used.__getitem__)], OUT_OF_MEMORY)
        return room_bytes

    def _room_bytes(self) -> int:
        """On the disk of the project, without what is to stay free; less than nothing: it is too full."""
        with suppress(OSError):
            disk = os.statvfs(self._settings["cwd"])
            return disk.f_bavail * disk.f_frsize - self._settings["reserve_bytes"]
        return FILLING_BYTES_PER_S

    def _send(self, frames: Iterable[bytes]) -> None:
        for one in frames:
            self._outgoing += one


def tick_s(room_bytes: int) -> float:
    """When to look next at what commands do."""
    return min(TICK_S, max(QUICKEST_TICK_S, room_bytes / FILLING_BYTES_PER_S))


def _end(running: ChildCommand, why: str) -> None:
    running.why = running.why or why
    for sign in (signal.SIGTERM, signal.SIGCONT):  # a command may have stopped it
        with suppress(ProcessLookupError):
            os.kill(running.minder, sign)


def _terminal(rows: int, columns: int) -> tuple[tuple[int, int], tuple[int, int, int]]:
    """Ours to read and write, theirs for all three."""
    ours, theirs = os.openpty()
    set_size(theirs, rows, columns)
    os.set_blocking(ours, False)
    return (ours, os.dup(ours)), (theirs, theirs, theirs)


def _pipes(*, has_input: bool) -> tuple[tuple[int, int | None], tuple[int, int, int]]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    if not has_input:
        return (reading, None), (os.open(os.devnull, os.O_RDONLY), writing, writing)
    theirs, ours = os.pipe()
    os.set_blocking(ours, False)
    return (reading, ours), (theirs, writing, writing)


def _make_confinement(settings: dict[str, Any], channel: Iterable[int]) -> Callable[[], None]:
    """What every command calls before it begins; nothing, where a sandbox stands around all of us."""
    if "confinement" not in settings:
        return lambda: None
    from talaria.tools.sandbox.host.confining import confine  # noqa: PLC0415  (elsewhere nobody needs it)

    return confine(settings["confinement"], channel)


def main() -> None:
    settings, *channel = map(json.loads, sys.argv[1:])
    incoming, outgoing = channel * 2 if channel else (0, 1)
    host = CommandLoop(settings, incoming, outgoing, _make_confinement(settings, {incoming, outgoing}))
    try:
        host.run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    finally:
        host.end()
