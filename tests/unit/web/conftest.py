"""Sites on loopback. To a fetch, `127.0.0.2` and other listed addresses stand for the public internet, all others of
this machine for what it must never reach.
"""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from talaria.net.fetch import Fetch
from talaria.net.settings import WebSettings
from talaria.testing.manual_clock import ManualClock

PUBLIC = "127.0.0.2"
PRIVATE = "127.0.0.3"


@dataclass(frozen=True)
class Heard:
    """A request; header names in lower case."""

    line: str
    headers: Mapping[str, str]
    body: bytes
    at: str
    """The address that was dialled."""


def answer(body: bytes = b"", status: int = 200, /, **headers: str) -> bytes:
    """An answer in full; `content_type` becomes Content-Type."""
    fields = {"content_length": str(len(body)), "connection": "close", **headers}
    lines = [f"HTTP/1.1 {status} X", *(f"{name.replace('_', '-')}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def redirect(location: str, status: int = 302, /, **headers: str) -> bytes:
    return answer(b"", status, location=location, **headers)


@dataclass
class Site:
    port: int = 0
    pages: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """What stands at a path, head and all; `*` is anywhere else."""
    heard: list[Heard] = field(default_factory=list[Heard])
    connections: int = 0
    holds: bool = False
    """Whether connections stay open until the other side closes them."""
    writers: list[asyncio.StreamWriter] = field(default_factory=list[asyncio.StreamWriter])

    @property
    def paths(self) -> list[str]:
        return [heard.line.split()[1] for heard in self.heard]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with closing(writer), suppress(asyncio.IncompleteReadError, OSError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *fields = head.strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.heard.append(Heard(line, headers, body, writer.get_extra_info("sockname")[0]))
            writer.write(self.pages.get(line.split()[1], self.pages.get("*", answer(b"", 404))))
            if self.holds:
                self.writers.append(writer)
                await reader.read()


@dataclass
class Names:
    """A name server: each question takes the next answer of that name, and its last one for ever."""

    answers: dict[str, list[Sequence[str]]] = field(default_factory=dict[str, list[Sequence[str]]])
    asked: list[str] = field(default_factory=list[str])

    def say(self, host: str, *answers: Sequence[str]) -> None:
        self.answers[host] = list(answers)

    async def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        waiting = self.answers.get(host, [()])
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]


Serve = Callable[..., Awaitable[Site]]


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name.upper()}_PROXY", raising=False)


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """`await serve(address)`: a site there, on the same port as `beside`, if given."""
    async with AsyncExitStack() as stack:

        async def start(
            address: str = PUBLIC, *, beside: Site | None = None, tls: ssl.SSLContext | None = None
        ) -> Site:
            site = Site()
            port = beside.port if beside else 0
            server = await asyncio.start_server(site.serve, address, port, ssl=tls)
            stack.push_async_callback(server.wait_closed)
            stack.callback(server.close)
            site.port = server.sockets[0].getsockname()[1]
            return site

        yield start


@pytest.fixture
async def site(serve: Serve) -> Site:
    """On the public internet, as far as `fetch` knows."""
    return await serve(PUBLIC)


@pytest.fixture
async def canary(serve: Serve, site: Site) -> Site:
    """At a private address, on the same port as `site`."""
    return await serve(PRIVATE, beside=site)


@pytest.fixture
def names() -> Names:
    names = Names()
    names.say("pages.example", [PUBLIC])
    return names


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def settings() -> WebSettings:
    return WebSettings(allow_private=(PUBLIC,), max_bytes=100_000)


@pytest.fixture
def fetch(settings: WebSettings, clock: ManualClock, names: Names) -> Fetch:
    return Fetch(settings, clock, lookup=names)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For pages.example; it signs itself."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    pem, key = folder / "ca.pem", folder / "key.pem"
    options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=pages.example"
    names = ["-addext", "subjectAltName=DNS:pages.example", "-keyout", str(key), "-out", str(pem)]
    subprocess.run([openssl, *options.split(), *names], check=True, capture_output=True)
    pem.write_text(key.read_text() + pem.read_text())
    return pem


@pytest.fixture
async def secure_site(serve: Serve, certificate: Path) -> Site:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return await serve(PUBLIC, tls=context)


@pytest.fixture
def trusting_fetch(settings: WebSettings, clock: ManualClock, names: Names, certificate: Path) -> Fetch:
    """Takes the certificate of pages.example for what it says."""
    return Fetch(settings, clock, lookup=names, tls_context=lambda: ssl.create_default_context(cafile=certificate))
