"""Splits a byte stream into the data of server-sent events, wherever its chunks are cut."""

from collections.abc import Iterator

from talaria.core.errors import Disconnected

MAX_LINE_BYTES = 32 << 20
_BOM = b"\xef\xbb\xbf"
"""May stand before everything."""


class EventSplitter:
    """Lines may end in LF or CRLF; names, comments, unknown fields and events without data are passed over."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        for line in self._lines(chunk):
            line = line.removesuffix(b"\r")  # noqa: PLW2901
            if line:
                self._take(line)
            elif self._data:
                data = b"\n".join(self._data)
                self._data, self._data_bytes = [], 0
                if data.strip():
                    yield data

    def end(self) -> Iterator[bytes]:
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

    def _take(self, line: bytes) -> None:
        """Whatever it is but the end of an event."""
        field, _, value = line.partition(b":")
        if field == b"data" or field.removeprefix(_BOM) == b"data":
            self._keep(value.removeprefix(b" "))

    def _keep(self, value: bytes) -> None:
        self._data.append(value)
        self._data_bytes += len(value) + 1
        if self._data_bytes > MAX_LINE_BYTES:
            raise Disconnected("The model server sent an event without end.")
