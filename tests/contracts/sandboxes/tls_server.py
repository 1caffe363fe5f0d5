"""A server on loopback that speaks https, with a certificate authority of its own."""

from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from talaria.tools.broker.https import SessionAuthority

T = TypeVar("T", bound="TlsServer")


class TlsServer(ThreadingHTTPServer):
    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler], certificate: Path) -> None:
        """`certificate`: where to write that of the authority."""
        super().__init__((host, port), handler)
        authority = SessionAuthority()
        self.certificate = certificate
        certificate.write_bytes(authority.pem)
        self._context = authority.context_for(host)

    def get_request(self) -> tuple[Any, Any]:
        """The handshake is for the thread of the connection."""
        connection, address = self.socket.accept()
        return self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@contextmanager
def served(server: T) -> Generator[T]:
    with server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
