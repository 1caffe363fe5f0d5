"""A first model that cannot be reached, or is none: it is not tried for long, and no key is given away."""

import asyncio
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.ports import reserved_port

from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Failure

if TYPE_CHECKING:
    from tests.contracts.faults.conftest import OpenWorld

RECONNECT_S = 24.0
"""The longest that two retries, new connections, and two more retries wait."""


async def test_a_refused_connection_ends_soon(open_world: "OpenWorld", second_says: str | None) -> None:
    """0.0.0.0 leads to this machine without being a loopback address."""
    with reserved_port() as port:
        url = f"http://0.0.0.0:{port}/v1"
        async with open_world(ModelServer(), second_says=second_says, url=url) as world:
            await world.ends_without_the_first("Cannot reach 0.0.0.0:.*: Connection refused")
            assert len(world.clock.slept) == 5
            assert sum(world.clock.slept) <= RECONNECT_S


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "[::1]"])
async def test_a_connection_refused_on_loopback_is_not_tried_again(
    open_world: "OpenWorld", second_says: str | None, host: str
) -> None:
    with reserved_port("::") as port:
        url = f"http://{host}:{port}/v1"
        async with open_world(ModelServer(), second_says=second_says, url=url) as world:
            await world.ends_without_the_first(
                rf"^Nothing is listening on {re.escape(host)}:{port}\. Start the server, or check base_url"
            )
            assert world.clock.slept == []


async def test_a_known_server_that_is_not_running_is_named_with_the_command_that_starts_it(
    open_world: "OpenWorld",
) -> None:
    with socket.socket() as bound:
        try:
            bound.bind(("127.1.2.3", 11434))  # so nobody else listens there; the port is what it is known by
        except OSError:
            pytest.skip("something uses the port of Ollama here")
        async with open_world(ModelServer(), url="http://127.1.2.3:11434/v1") as world:
            await world.ends_without_the_first("Start the server, e.g. `ollama serve`, or check base_url")


async def test_a_name_that_nobody_has_ends_soon(open_world: "OpenWorld", second_says: str | None) -> None:
    url = "http://no-such-host.invalid/v1"
    async with open_world(ModelServer(), second_says=second_says, url=url, max_attempts=1) as world:
        await world.ends_without_the_first("Cannot reach no-such-host.invalid")
        assert len(world.clock.slept) == 1  # once more with new connections


@pytest.fixture
def impostor(tmp_path: Path) -> ModelServer:
    """With a certificate that nobody vouches for."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command to make a certificate")
    pem, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=127.0.0.1"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(pem)]
    subprocess.run([openssl, *options.split(), *names], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    return ModelServer(tls=context, respond=lambda _: "Trust me.")


async def test_a_certificate_that_nobody_vouches_for_is_not_tried_twice(
    open_world: "OpenWorld", impostor: ModelServer, second_says: str | None
) -> None:
    async with open_world(impostor, second_says=second_says) as world:
        await world.ends_without_the_first("certificate .* cannot be verified. .* SSL_CERT_FILE")
        assert (impostor.requests, world.clock.slept) == ([], [])


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(open_world: "OpenWorld", status: int, second_says: str | None) -> None:
    with ModelServer(respond=lambda _: "Your key, please.") as elsewhere:
        target = f"{elsewhere.base_url}/chat/completions"
        primary = ModelServer(respond=lambda _: Failure(status, headers={"location": target}))
        async with open_world(primary, second_says=second_says) as world:
            await world.ends_without_the_first("redirects elsewhere; set base_url")
            assert len(primary.requests) == 1
        assert elsewhere.requests == []


STRANGERS = {
    "another protocol": b"SSH-2.0-OpenSSH_9.9\r\n",
    "a head without end": b"HTTP/1.1 200 OK\r\nx: " + b"a" * 100_000,
    "a length that is none": b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
    "chunks that are none": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nmany\r\n",
}


@pytest.mark.parametrize("name", STRANGERS)
async def test_who_speaks_no_http_is_told_of(open_world: "OpenWorld", name: str, second_says: str | None) -> None:
    async with stranger(STRANGERS[name]) as port:
        url = f"http://127.0.0.1:{port}/v1"
        async with open_world(ModelServer(), second_says=second_says, url=url) as world:
            await world.ends_without_the_first(f"127.0.0.1:{port}")
            assert len(world.clock.slept) == 5


@asynccontextmanager
async def stranger(says: bytes) -> AsyncGenerator[int]:
    """Says the same to everybody, and hangs up."""

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(says)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(converse, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def test_https_to_a_server_without_it_is_told_as_what_it_is(open_world: "OpenWorld") -> None:
    async with (
        stranger(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n") as port,
        open_world(ModelServer(), url=f"https://127.0.0.1:{port}/v1", max_attempts=1) as world,
    ):
        await world.ends_without_the_first("(?i)ssl|tls|https")
