"""The tool host: one per session, inside its sandbox. Runs commands for a workspace until the channel closes.

It is started with settings as JSON (`launching.py` writes them), and with the descriptor of the channel where that is
not standard input and output. When the channel closes, or something here fails, nothing of what was started is left.
"""

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from talaria.tools.sandbox.host.descendants import adopt_orphans, memory_used, reap, sweep, wake_on_child_exit
from talaria.tools.sandbox.host.frames import ENDED, HELLO, INPUT, KILL, OUTPUT, SKIPPED, START, Frames, frame
from talaria.tools.sandbox.host.minder import NOT_STARTED, Program, mind, set_size
from talaria.tools.sandbox.host.shell import ShellState, make_proxy_variables

CHUNK_BYTES = 1 << 16
TAIL_BYTES = 16_000
MAX_UNREAD_BYTES = 4 << 20
FULL_BYTES = 1 << 20
"""While this much waits to be sent, no more output is read, so commands have to wait."""
TICK_S = 0.5
QUICKEST_TICK_S = 0.02
FILLING_BYTES_PER_S = 16 << 30
"""The fastest that commands may fill a disk or memory: the less room there is, the more often we check."""
SMALLEST_LIMIT_BYTES = 16 << 20
LEFTOVER_S = 0.5
"""How long we wait for output that somebody still holds open after its command has ended."""
DISK_FULL = "disk"
OUT_OF_MEMORY = "memory"


class ChildCommand:
    """A command in progress: what it reads, what it writes, and how much of that is passed on."""

    def __init__(
        self, number: int, minder: int, output: int, input: int | None, limit_bytes: int, notes: int | None
    ) -> None:
        """`notes`: where its minder writes, in the end, what it could not connect to; None: nobody notes that."""
        self.number = number
        self.minder = minder
        self.output: int | None = output
        """To be read until its end."""
        self.input = input
        """Where the command reads from."""
        self.unread = bytearray()
        """Input that the command has not read yet."""
        self.code: int | None = None
        """Once it has ended."""
        self.why = ""
        """Why we ended it."""
        self.ended_at = 0.0
        self._notes = notes
        self._is_last = False
        self._limit_bytes = limit_bytes
        self._passed_bytes = 0
        self._tail = bytearray()
        self._skipped_bytes = 0

    def read(self) -> Iterator[bytes]:
        """Frames for what can be read now."""
        try:
            chunk = os.read(self.output, CHUNK_BYTES) if self.output is not None else b""
        except BlockingIOError:
            return
        except OSError:  # of a terminal that nobody has open any more
            chunk = b""
        if not chunk:
            self._close_output()
            return
        room = max(0, self._limit_bytes - self._passed_bytes)
        if room:
            self._passed_bytes += min(room, len(chunk))
            yield frame(OUTPUT, self.number, chunk[:room])
        rest = chunk[room:]
        self._skipped_bytes += len(rest)
        self._tail = (self._tail + rest)[-TAIL_BYTES:]

    def flush(self) -> Iterator[bytes]:
        """Frames for the end of what has been left out so far."""
        if self._skipped_bytes:
            yield frame(SKIPPED, self.number, b"%d" % (self._skipped_bytes - len(self._tail)))
            yield frame(OUTPUT, self.number, bytes(self._tail))
            self._tail.clear()
            self._skipped_bytes = 0

    def take(self, content: bytes) -> None:
        """Input for the command; empty: there is no more."""
        self._is_last = self._is_last or not content
        if len(self.unread) + len(content) <= MAX_UNREAD_BYTES:
            self.unread += content
        self.write()

    def write(self) -> None:
        """Pass on as much input as the command takes now."""
        if self.input is None:
            self.unread.clear()
            return
        try:
            while self.unread:
                del self.unread[: os.write(self.input, self.unread)]
        except BlockingIOError:
            return
        except OSError:  # it no longer reads
            self.unread.clear()
        if self._is_last:
            self._close_input()

    def read_notes(self) -> list[str] | None:
        """What it could not connect to, once its minder has ended; None: not known."""
        if self._notes is None:
            return None
        os.set_blocking(self._notes, False)
        with suppress(OSError, ValueError):
            return json.loads(os.read(self._notes, CHUNK_BYTES))
        return None

    def end(self, why: str) -> None:
        """By its minder, which also ends all that the command has started."""
        self.why = self.why or why
        for sign in (signal.SIGTERM, signal.SIGCONT):  # a command may have stopped it
            with suppress(ProcessLookupError):
                os.kill(self.minder, sign)

    def close(self) -> None:
        self._close_input()
        self._close_output()
        if self._notes is not None:
            os.close(self._notes)
            self._notes = None

    def _close_input(self) -> None:
        if self.input is not None:
            os.close(self.input)
            self.input = None

    def _close_output(self) -> None:
        if self.output is not None:
            with suppress(OSError):
                os.close(self.output)
            self.output = None


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
        """Commands whose state is kept, and whether the folder that they end in is kept, too."""
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
            os.set_inheritable(descriptor, False)  # not for commands
        hello = frame(HELLO, 0, json.dumps({"pid": os.getpid()}).encode())
        if self._settings.get("has_egress"):
            listener = socket.create_server(("127.0.0.1", 0), backlog=64)  # the egress proxy outside accepts from it
            self._environment.update(make_proxy_variables(listener.getsockname()[1], self._settings.get("proxied")))
            with listener, socket.socket(fileno=os.dup(self._out)) as channel:
                socket.send_fds(channel, [hello], [listener.fileno()])
        else:
            self._outgoing += hello
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

            with suppress(RecursionError):  # too deep: the process that started us removes it as well
                shutil.rmtree(self._settings["confinement"]["scratch"], ignore_errors=True)

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
            if running.input is not None and ready.get(running.input, 0):  # also when the command no longer reads
                running.write()
        if ready.get(self._in, 0) & readable:
            try:
                chunk = os.read(self._in, CHUNK_BYTES)
            except BlockingIOError:
                pass
            else:
                if not chunk:
                    raise EOFError
                for kind, number, content in self._frames.feed(chunk):
                    running = self._commands.get(number)
                    if kind == START:
                        self._start(number, json.loads(content))
                    elif kind == INPUT and running is not None:
                        running.take(content)
                    elif kind == KILL and running is not None:
                        running.end("")
        if self._outgoing:
            with suppress(BlockingIOError):
                del self._outgoing[: os.write(self._out, self._outgoing)]

    def _start(self, number: int, wanted: dict[str, Any]) -> None:
        """`wanted` is a `SandboxCommand` (running_command.py)."""
        if wanted["program"] is not None:
            argv, environment = tuple(wanted["program"]), self._environment
        else:
            script = self._state.script(wanted["command"], is_kept=wanted["is_kept"])
            argv, environment = (self._settings["shell"], "-c", script), self._state.environment(self._environment)
        limits = self._settings["limits"]
        file_bytes = min(limits["FSIZE"], max(self._room_bytes(), SMALLEST_LIMIT_BYTES))  # however fast a file grows
        kept: list[int] = []
        passed_on: list[int] = []
        try:
            try:
                ours, theirs = _open_streams(wanted["size"], has_input=wanted["has_input"])
                kept += [one for one in ours if one is not None]
                passed_on += {*theirs}
                notes, noting = None, None
                if self._settings.get("notes_connections"):
                    notes, noting = os.pipe()
                    kept.append(notes)
                    passed_on.append(noting)
                program = Program(
                    argv,
                    {**environment, "TERM": "xterm-256color" if wanted["size"] else "dumb"},
                    wanted["cwd"] or self._state.place(),
                    theirs,
                    bool(wanted["size"]),
                    {**limits, "FSIZE": file_bytes},
                    self._settings.get("niceness", 0),
                    self._confine,
                    noting,
                )
                minder = mind(program)
            finally:
                for descriptor in passed_on:
                    os.close(descriptor)
        except OSError as fault:  # too many files or processes
            for descriptor in kept:
                os.close(descriptor)
            self._send((frame(OUTPUT, number, f"cannot start: {fault.strerror}\n".encode()),))
            self._send((self._format_end(number, NOT_STARTED),))
            return
        self._commands[number] = ChildCommand(number, minder, *ours, wanted["limit_bytes"], notes)
        if wanted["is_kept"]:
            self._saving[number] = wanted["cwd"] is None

    def _collect(self) -> None:
        """Report the commands whose minder has ended, once their output has ended, too."""
        minders = {running.minder: running for running in self._commands.values() if running.code is None}
        ended = reap()
        while ended:
            pid, code = ended.popitem()
            running = minders.pop(pid, None)
            if running is not None:
                running.code = code
                running.ended_at = time.monotonic()
                if code < 0:  # the command ended its own minder: what it left behind is ours now
                    ended.update(sweep(spared=minders))
        for running in tuple(self._commands.values()):
            is_late = time.monotonic() - running.ended_at > LEFTOVER_S and len(self._outgoing) < FULL_BYTES
            if running.code is None or not (running.output is None or is_late):
                continue
            if (is_place_kept := self._saving.pop(running.number, None)) is not None:
                self._state.take(is_place_kept=is_place_kept)
            self._send(running.flush())
            unreachable = running.read_notes()
            running.close()
            del self._commands[running.number]
            code = running.code if running.code >= 0 else 128 - running.code
            self._send((self._format_end(running.number, code, running.why, unreachable),))

    def _format_end(self, number: int, code: int, why: str = "", unreachable: list[str] | None = None) -> bytes:
        status = {"code": code, "why": why, "cwd": self._state.place(), "unreachable": unreachable}
        return frame(ENDED, number, json.dumps(status).encode())

    def _tick(self) -> None:
        """Pass on the end of long output, and end commands when the disk or memory is full."""
        now = time.monotonic()
        if not self._commands or now - self._ticked_at < self._tick_s:
            return
        self._ticked_at = now
        disk_bytes, memory_bytes = self._room_bytes(), FILLING_BYTES_PER_S
        if limit_bytes := self._settings.get("memory_bytes"):
            living = {one.minder: one for one in self._commands.values() if one.code is None}
            used = memory_used(living, limit_bytes)
            memory_bytes = limit_bytes - sum(used.values())
            if memory_bytes < 0:
                living[max(used, key=used.__getitem__)].end(OUT_OF_MEMORY)
        self._tick_s = min(tick_s(disk_bytes), tick_s(memory_bytes))
        for running in self._commands.values():
            self._send(running.flush())
            if disk_bytes < 0 and running.code is None:
                running.end(DISK_FULL)

    def _room_bytes(self) -> int:
        """On the project's disk, without what is to stay free; less than nothing: it is too full."""
        with suppress(OSError):
            disk = os.statvfs(self._settings["cwd"])
            return disk.f_bavail * disk.f_frsize - self._settings["reserve_bytes"]
        return FILLING_BYTES_PER_S

    def _send(self, frames: Iterable[bytes]) -> None:
        for one in frames:
            self._outgoing += one


def tick_s(room_bytes: int) -> float:
    """How soon to check again what commands use."""
    return min(TICK_S, max(QUICKEST_TICK_S, room_bytes / FILLING_BYTES_PER_S))


def _open_streams(
    size: tuple[int, int] | None, *, has_input: bool
) -> tuple[tuple[int, int | None], tuple[int, int, int]]:
    """A terminal of this size, or pipes: our ends to read and to write, and the command's three."""
    if size:
        ours, theirs = os.openpty()
        set_size(theirs, *size)
        os.set_blocking(ours, False)
        return (ours, os.dup(ours)), (theirs, theirs, theirs)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    if not has_input:
        return (reading, None), (os.open(os.devnull, os.O_RDONLY), writing, writing)
    theirs, ours = os.pipe()
    os.set_blocking(ours, False)
    return (reading, ours), (theirs, writing, writing)


def main() -> None:
    settings, *channel = map(json.loads, sys.argv[1:])
    incoming, outgoing = channel * 2 if channel else (0, 1)
    if "confinement" in settings:
        from talaria.tools.sandbox.host.confining import confine  # noqa: PLC0415  (only level landlock needs it)

        host = CommandLoop(settings, incoming, outgoing, confine(settings["confinement"], {incoming, outgoing}))
    else:
        host = CommandLoop(settings, incoming, outgoing)
    try:
        host.run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    finally:
        host.end()
