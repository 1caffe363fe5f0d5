"""A command under way, as the tool host sees it: what it reads, what it writes and how much of that goes on."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress

from talaria.tools.sandbox.host.frames import OUTPUT, SKIPPED, frame

CHUNK_BYTES = 1 << 16
TAIL_BYTES = 16_000
MAX_UNREAD_BYTES = 4 << 20


class ChildCommand:
    def __init__(
        self, number: int, minder: int, output: int, input: int | None, limit_bytes: int, notes: int | None
    ) -> None:
        """`notes`: where its minder tells, in the end, what it could not connect to; None: nobody takes note."""
        self.number = number
        self.minder = minder
        self.output: int | None = output
        """To be read until its end."""
        self.input = input
        """Where the command reads from."""
        self.unread = bytearray()
        """Written for it, and not taken yet."""
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
        """Frames for what there is to read now."""
        try:
            chunk = os.read(self.output, CHUNK_BYTES) if self.output is not None else b""
        except BlockingIOError:
            return
        except OSError:  # of a terminal: nobody has it open any more
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
        """Frames for the end of what was left out so far."""
        if self._skipped_bytes:
            yield frame(SKIPPED, self.number, b"%d" % (self._skipped_bytes - len(self._tail)))
            yield frame(OUTPUT, self.number, bytes(self._tail))
            self._tail.clear()
            self._skipped_bytes = 0

    def take(self, content: bytes) -> None:
        """For the command to read; nothing: there is no more to come."""
        self._is_last = self._is_last or not content
        if len(self.unread) + len(content) <= MAX_UNREAD_BYTES:
            self.unread += content
        self.write()

    def write(self) -> None:
        """What it takes now of what is unread."""
        if self.input is None:
            self.unread.clear()
            return
        try:
            while self.unread:
                del self.unread[: os.write(self.input, self.unread)]
        except BlockingIOError:
            return
        except OSError:  # it does not read any more
            self.unread.clear()
        if self._is_last:
            self._close_input()

    def read_notes(self) -> list[str] | None:
        """What it could not connect to, once its minder has ended; None: nobody took note."""
        if self._notes is None:
            return None
        os.set_blocking(self._notes, False)
        with suppress(OSError, ValueError):
            return json.loads(os.read(self._notes, CHUNK_BYTES))
        return None

    def _close_input(self) -> None:
        if self.input is not None:
            os.close(self.input)
            self.input = None

    def close(self) -> None:
        self._close_input()
        self._close_output()
        if self._notes is not None:
            os.close(self._notes)
            self._notes = None

    def _close_output(self) -> None:
        if self.output is not None:
            with suppress(OSError):
                os.close(self.output)
            self.output = None
