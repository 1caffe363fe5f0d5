"""Where stolen things would arrive: hears every byte that is sent to it by TCP (HTTP too) and UDP, on every address of
this machine, and every name that somebody looks up."""

import base64
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Self
from urllib.parse import unquote_to_bytes

from talaria.testing.patience import PATIENCE_S

_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\nConnection: close\r\n\r\n"
    b'{"results": []}'
)
_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)


class Sink:
    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._lookup: Any = socket.getaddrinfo
        self._listener, self._datagrams = _on_one_port()
        self.port: int = self._listener.getsockname()[1]
        self._is_closed = False

    def __enter__(self) -> Self:
        for work in (self._accept, self._receive):
            threading.Thread(target=work, daemon=True).start()
        setattr(socket, "getaddrinfo", self._looked_up)  # noqa: B010  (whoever is asked for a name learns it)
        return self

    def __exit__(self, *_: object) -> None:
        setattr(socket, "getaddrinfo", self._lookup)  # noqa: B010
        self._is_closed = True
        for listening in (self._listener, self._datagrams):
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            listening.close()

    @property
    def heard(self) -> bytes:
        return b"\n".join(self._pieces)

    def forget(self) -> None:
        self._pieces.clear()

    def _looked_up(self, host: object, *arguments: Any, **more: Any) -> Any:
        self._pieces.append(str(host).encode("utf-8", "replace"))
        return self._lookup(host, *arguments, **more)

    def _accept(self) -> None:
        while not self._is_closed:
            with suppress(OSError):
                connection, _ = self._listener.accept()
                threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        place = len(self._pieces)
        self._pieces.append(b"")
        with connection, suppress(OSError):
            connection.settimeout(PATIENCE_S)
            while chunk := connection.recv(1 << 16):
                self._pieces[place] += chunk
                if _is_whole(self._pieces[place]):
                    connection.sendall(_ANSWER)
                    return

    def _receive(self) -> None:
        while not self._is_closed:
            with suppress(OSError):
                self._pieces.append(self._datagrams.recv(1 << 16))


def _on_one_port() -> tuple[socket.socket, socket.socket]:
    while True:
        listener = socket.create_server(("", 0), backlog=64)
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            datagrams.bind(listener.getsockname())
        except OSError:  # somebody else has that port
            listener.close()
            datagrams.close()
        else:
            return listener, datagrams


def _is_whole(request: bytes) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    return bool(end) and len(body) >= (int(length[1]) if length else 0)


def found(data: bytes, secrets: Mapping[str, str]) -> list[str]:
    """The names of those secrets of which at least a half is there, in whatever disguise."""
    once = unquote_to_bytes(data)
    readings = (data.lower(), once.lower(), unquote_to_bytes(once).lower())
    return [
        name
        for name, secret in secrets.items()
        if any(form.lower() in reading for form in set(_forms(secret)) for reading in readings)
    ]


def _forms(secret: str) -> Iterator[bytes]:
    """Of each half: who has both has all. In base64, whatever stands around it, only its inner signs are certain."""
    tail = secret.rpartition("-")[2]
    for part in (tail[: len(tail) // 2], tail[len(tail) // 2 :]):
        raw = part.encode()
        yield from (raw, raw[::-1], raw.hex().encode())
        for turned in (raw, raw[::-1]):
            for before in range(3):
                yield base64.b64encode(bytes(before) + turned)[4:-4]
