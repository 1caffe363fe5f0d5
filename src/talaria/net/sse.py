"""Splits a byte stream into server-sent events, wherever its chunks are cut."""

from collections.abc import Iterator
from typing import NamedTuple

from talaria.model.errors import Disconnected

MAX_LINE_BYTES = 32 << 20


class ServerEvent(NamedTuple):
    name: str
    data: bytes


class EventSplitter:
    """Lines may end in LF or CRLF; comments, unknown fields and events without data are passed over."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._name = ""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        for line in self._lines(chunk):
            event = self._take(line.removesuffix(b"\r"))
            if event is not None:
                yield event

    def end(self) -> Iterator[ServerEvent]:
        """What stands complete in the last, unterminated lines."""
        yield from self.feed(b"\n\n")

    def _lines(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes. A long one is kept in pieces and joined once."""
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._rest, lines[0]))
            self._rest, self._rest_bytes = [], 0
        self._rest.append(rest)
        self._rest_bytes += len(rest)
        if self._rest_bytes > MAX_LINE_BYTES:
            raise Disconnected("The model server sent a line without end.")
        return lines

    def _take(self, line: bytes) -> ServerEvent | None:
        if not line:
            return self._flush()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        return None

    def _flush(self) -> ServerEvent | None:
        name, data = self._name, b"\n".join(self._data)
        self._name = ""
        self._data.clear()
        return ServerEvent(name, data) if data.strip() else None
