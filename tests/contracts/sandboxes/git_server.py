"""Git's own server behind https, for whoever has the right login, as forges run it."""

import os
import subprocess
from base64 import b64encode
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tests.contracts.sandboxes.tls_server import TlsServer

HOST = "127.0.0.2"
"""Programs reach 127.0.0.1 without a proxy."""
LOGIN = "ada:hush-hush"


class GitServer(TlsServer):
    def __init__(self, folder: Path) -> None:
        super().__init__(HOST, 0, _Handler, folder / "server.pem")
        self.folder = folder
        self.requests: list[tuple[str, str, str | None]] = []
        """Method, target and credential of each."""
        self.ambiguous: list[str] = []
        """Targets of requests that tell their length in two ways."""

    @property
    def address(self) -> str:
        return f"https://{HOST}:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: GitServer  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_GET  # noqa: N815  (as the library calls it)

    def _serve(self) -> None:
        given = self.headers.get("Authorization")
        self.server.requests.append((self.command, self.path, given))
        if self.headers.get("Transfer-Encoding") and self.headers.get("Content-Length"):
            self.server.ambiguous.append(self.path)
        body = self._body()
        if given != f"Basic {b64encode(LOGIN.encode()).decode()}":
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path, _, query = self.path.partition("?")
        environment = {
            **os.environ,
            "GIT_PROJECT_ROOT": str(self.server.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REMOTE_USER": "ada",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        done = subprocess.run(("git", "http-backend"), input=body, env=environment, capture_output=True, check=False)
        head, _, rest = done.stdout.partition(b"\r\n\r\n")
        fields = [line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line]
        status = next((value for name, value in fields if name == "Status"), "200 OK")
        self.send_response(int(status.split()[0]))
        for name, value in fields:
            if name != "Status":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        self.wfile.write(rest)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, format: str, *args: object) -> None:
        pass
