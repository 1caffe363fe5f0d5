"""The HTTP client keeps connections, honours proxies and a corporate CA, and says in one sentence what went wrong."""

import asyncio
import json
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.ports import reserved_port

from talaria.core.clock import SystemClock
from talaria.core.errors import BadConfig, CertificateRefused, Disconnected
from talaria.net.client import HttpClient, Response, Timeouts
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Failure, Faults, Reply

QUESTION = b'{"model":"m","stream":true,"messages":[]}'
STREAMED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


@dataclass
class Peer:
    """A server, or a proxy, that answers every request alike and notes on which connection it came."""

    port: int = 0
    requests: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    connections: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def lines(self) -> list[str]:
        return [line for _, line in self.requests]

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        with closing(writer):
            while head := await read_head(reader):
                line, _, headers = head.partition("\r\n")
                self.requests.append((number, line.removesuffix(" HTTP/1.1")))
                if line.startswith("CONNECT "):
                    await tunnel(line.split()[1], reader, writer)
                    return
                await reader.readexactly(content_length(headers))
                writer.write(STREAMED)


async def read_head(reader: asyncio.StreamReader) -> str:
    try:
        return (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return ""


def content_length(headers: str) -> int:
    pairs = (line.partition(":") for line in headers.split("\r\n"))
    return next((int(value) for name, _, value in pairs if name.lower() == "content-length"), 0)


async def tunnel(target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    host, _, port = target.partition(":")
    far_reader, far_writer = await asyncio.open_connection(host, int(port))
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    with closing(far_writer):
        async with asyncio.TaskGroup() as pumps:
            pumps.create_task(pump(reader, far_writer))
            pumps.create_task(pump(far_reader, writer))


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while part := await reader.read(65536):
        writer.write(part)
    writer.close()


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name.upper()}_PROXY", raising=False)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer()
    async with await asyncio.start_server(peer.converse, "127.0.0.1", 0) as server:
        peer.port = server.sockets[0].getsockname()[1]
        yield peer


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    async with HttpClient(SystemClock()) as client:
        yield client


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for 127.0.0.1 that signs itself, with its key: a network's own CA."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command to make a certificate")
    pem, key = tmp_path / "ca.pem", tmp_path / "key.pem"
    options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=127.0.0.1"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(pem)]
    subprocess.run([openssl, *options.split(), *names], check=True, capture_output=True)
    pem.write_text(key.read_text() + pem.read_text())
    return pem


@pytest.fixture
def secure_server(certificate: Path) -> Iterator[ModelServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with ModelServer(tls=context, respond=lambda _: "Hello.") as server:
        yield server


async def body_of(client: HttpClient, url: str) -> bytes:
    async with client.post(url, body=QUESTION, headers={}, timeouts=Timeouts()) as response:
        return await response.read()


async def test_connection_is_kept_after_a_streamed_answer(client: HttpClient, peer: Peer) -> None:
    assert [await body_of(client, peer.url) for _ in range(3)] == [b"onetwo"] * 3
    assert [number for number, _ in peer.requests] == [1, 1, 1]


async def test_connection_is_closed_when_an_answer_is_left_early(client: HttpClient) -> None:
    with ModelServer() as server:
        server.say(Reply("Hello.", faults=Faults(stall_at=10)))
        url = f"{server.base_url}/messages"
        async with client.post(url, body=QUESTION, headers={}, timeouts=Timeouts()) as response:
            assert await anext(response.chunks())
        await asyncio.to_thread(server.wait_for_connections, 0)


async def test_redirects_are_not_followed(client: HttpClient, peer: Peer) -> None:
    with ModelServer() as server:
        server.say(Failure(307, headers={"location": f"{peer.url}/elsewhere"}))
        async with client.post(
            f"{server.base_url}/messages", body=QUESTION, headers={"x-api-key": "secret"}, timeouts=Timeouts()
        ) as response:
            assert response.status == 307
    assert peer.requests == []


async def test_a_proxy_is_asked_by_the_whole_address(
    client: HttpClient, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", peer.url)
    assert await body_of(client, "http://models.invalid/v1/messages") == b"onetwo"
    assert peer.lines == ["POST http://models.invalid/v1/messages"]


@pytest.mark.parametrize("exempt", ["127.0.0.1", "*", "example.org,127.0.0.1"])
async def test_no_proxy_is_asked_for_hosts_that_are_exempt(
    client: HttpClient, peer: Peer, monkeypatch: pytest.MonkeyPatch, exempt: str
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:3128")
    monkeypatch.setenv("NO_PROXY", exempt)
    assert await body_of(client, f"{peer.url}/v1/messages") == b"onetwo"
    assert peer.lines == ["POST /v1/messages"]


async def test_a_proxy_for_https_is_not_asked_for_http(
    client: HttpClient, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:3128")
    assert await body_of(client, f"{peer.url}/v1/messages") == b"onetwo"


CHILD = """
import asyncio, json, sys
from talaria.core.clock import SystemClock
from talaria.core.errors import TalariaError
from talaria.net.client import HttpClient, Timeouts

async def main(url):
    async with HttpClient(SystemClock()) as client:
        try:
            async with client.post(url, body=b'{"model":"m"}', headers={}, timeouts=Timeouts()) as response:
                await response.read()
                print(json.dumps(["status", response.status]))
        except TalariaError as error:
            print(json.dumps([type(error).__name__, str(error)]))

asyncio.run(main(sys.argv[1]))
"""


async def post_in_child(url: str, **environment: str) -> list[object]:
    """What came of a post in a process of its own: OpenSSL looks at its environment only once."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        CHILD,
        url,
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), **environment},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await child.communicate()
    return json.loads(output)


async def test_a_certificate_that_nobody_vouches_for_is_a_matter_of_setup(secure_server: ModelServer) -> None:
    host = secure_server.url.removeprefix("https://")
    sentence = (
        f"The certificate of {host} cannot be verified. If your network has its own CA, point SSL_CERT_FILE to it."
    )
    assert await post_in_child(f"{secure_server.base_url}/messages") == [CertificateRefused.__name__, sentence]


async def test_a_ca_of_the_network_is_trusted(secure_server: ModelServer, certificate: Path) -> None:
    url = f"{secure_server.base_url}/messages"
    assert await post_in_child(url, SSL_CERT_FILE=str(certificate)) == ["status", 200]


async def test_https_goes_through_the_proxy_in_a_tunnel(
    secure_server: ModelServer, certificate: Path, peer: Peer
) -> None:
    url = f"{secure_server.base_url}/messages"
    outcome = await post_in_child(url, SSL_CERT_FILE=str(certificate), HTTPS_PROXY=peer.url)
    assert outcome == ["status", 200]
    assert peer.lines == [f"CONNECT {secure_server.url.removeprefix('https://')}"]


async def test_a_refused_connection_is_told_in_one_sentence(client: HttpClient) -> None:
    with reserved_port() as port, pytest.raises(Disconnected) as refused:
        await body_of(client, f"http://127.0.0.1:{port}/")
    assert (str(refused.value), refused.value.kind) == (f"Nothing is listening on 127.0.0.1:{port}.", "not_listening")


async def test_an_address_that_is_none_is_a_matter_of_setup(client: HttpClient) -> None:
    with pytest.raises(BadConfig) as refused:
        await body_of(client, "api.example.org/v1")
    assert str(refused.value) == "'api.example.org/v1' is not an address: check base_url in config.yaml."


async def test_silence_before_the_answer_is_told(client: HttpClient) -> None:
    with ModelServer() as server:
        server.say(Reply(faults=Faults(hang=True)))
        with pytest.raises(Disconnected, match=r"did not answer within 0\.05 s"):
            await read_with(client, server, Timeouts(first_byte_s=0.05))


async def test_silence_in_the_middle_of_an_answer_is_told(client: HttpClient) -> None:
    with ModelServer() as server:
        server.say(Reply("Hello.", faults=Faults(stall_at=100)))
        with pytest.raises(Disconnected, match=r"sent nothing for 0\.05 s in the middle of an answer"):
            await read_with(client, server, Timeouts(chunk_s=0.05))


async def test_a_cut_in_the_middle_of_an_answer_is_told(client: HttpClient) -> None:
    with ModelServer() as server:
        server.say(Reply("Hello.", faults=Faults(cut_at=100)), Reply("Hello.", faults=Faults(cut_at=100, reset=True)))
        for _ in range(2):
            with pytest.raises(Disconnected, match="broke in the middle of an answer"):
                await read_with(client, server, Timeouts())


async def read_with(client: HttpClient, server: ModelServer, timeouts: Timeouts) -> bytes:
    url = f"{server.base_url}/chat/completions"
    async with client.post(url, body=QUESTION, headers={}, timeouts=timeouts) as response:
        return await whole(response)


async def whole(response: Response) -> bytes:
    return b"".join([chunk async for chunk in response.chunks()])
