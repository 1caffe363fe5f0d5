"""The way out: who may reach what, and what that costs the others."""

import asyncio
import base64
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from tests.unit.web.conftest import PRIVATE, PUBLIC, Names, Site, answer

from talaria.core.errors import Denied
from talaria.net.egress import HEAD_S, LOOKUP_S, MAX_CONNECTIONS, MAX_HEAD_BYTES, AdmitHost, Egress
from talaria.net.proxy_requests import IDLE_S
from talaria.net.urls import parse_allowance
from talaria.testing.manual_clock import ManualClock
from talaria.testing.patience import PATIENCE_S

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class Line:
    """One end of a connection. What does not come in time does not come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @property
    def address(self) -> str:
        """Ours."""
        return self.writer.get_extra_info("sockname")[0]

    async def say(self, words: str | bytes) -> None:
        with suppress(ConnectionError):
            self.writer.write(words.encode() if isinstance(words, str) else words)
            await self.writer.drain()

    async def hear(self, size: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(size), PATIENCE_S)

    async def hear_head(self) -> list[str]:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        return head.decode().split("\r\n")

    async def hear_all(self) -> bytes:
        with suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(), PATIENCE_S)
        return b""

    def end(self) -> None:
        self.writer.write_eof()

    def close(self) -> None:
        self.writer.transport.abort()


@dataclass
class Proxy:
    port: int = 0
    asked: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    refused: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    forbidden: set[str] = field(default_factory=set[str])
    lines: list[Line] = field(default_factory=list[Line])

    async def admit(self, host: str, port: int) -> None:
        self.asked.append((host, port))
        if host in self.forbidden:
            raise Denied(f"{host} is not on the list.")

    async def connect(self) -> Line:
        line = Line(*await asyncio.open_connection("127.0.0.1", self.port))
        self.lines.append(line)
        return line

    async def say(self, words: str | bytes) -> bytes:
        """All that is answered."""
        line = await self.connect()
        await line.say(words)
        answered = await line.hear_all()
        line.close()
        return answered

    async def tunnel(self, place: str) -> Line:
        line = await self.connect()
        await line.say(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n")
        assert await line.hear(len(ESTABLISHED)) == ESTABLISHED
        return line


Open = Callable[..., Any]


@pytest.fixture
def opened(clock: ManualClock, names: Names) -> Open:
    """`async with opened() as proxy`"""

    @asynccontextmanager
    async def open_one(admit: AdmitHost | None = None, **more: Any) -> AsyncGenerator[Proxy]:
        proxy = Proxy()
        listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        proxy.port = listening.getsockname()[1]
        settings: dict[str, Any] = {"allowance": parse_allowance((PUBLIC,)), "lookup": names, **more}
        async with Egress(
            listening,
            admit or proxy.admit,
            clock=clock,
            refused=lambda host, port, _: proxy.refused.append((host, port)),
            **settings,
        ):
            yield proxy
        await hung_up(proxy.lines)

    return open_one


async def hung_up(lines: Iterable[Line]) -> None:
    for line in lines:
        line.close()
    await asyncio.sleep(0)


@pytest.fixture
async def proxy(opened: Open) -> AsyncIterator[Proxy]:
    async with opened() as proxy:
        yield proxy


class Peer:
    """A host on the public internet that says and hears what a test wants."""

    def __init__(self) -> None:
        self.port = 0
        self.lines: list[Line] = []
        self._arrived: asyncio.Queue[Line] = asyncio.Queue()

    async def arrive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line(reader, writer)
        self.lines.append(line)
        await self._arrived.put(line)

    async def accept(self) -> Line:
        return await asyncio.wait_for(self._arrived.get(), PATIENCE_S)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer()
    server = await asyncio.start_server(peer.arrive, PUBLIC)
    peer.port = server.sockets[0].getsockname()[1]
    yield peer
    server.close()
    await hung_up(peer.lines)


async def joined(proxy: Proxy, peer: Peer) -> tuple[Line, Line]:
    """Both ends of a tunnel."""
    return await proxy.tunnel(f"pages.example:{peer.port}"), await peer.accept()


def status(answered: bytes) -> int:
    return int(answered.split(b" ", 2)[1])


def sentence(answered: bytes) -> str:
    head, _, body = answered.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    return body.decode().strip()


# What gets through


async def test_tunnel_carries_both_ways_to_the_address_that_was_looked_up(
    proxy: Proxy, peer: Peer, names: Names
) -> None:
    near, far = await joined(proxy, peer)
    await near.say(b"there")
    assert await far.hear(5) == b"there"
    await far.say(b"back")
    assert await near.hear(4) == b"back"
    assert far.address == PUBLIC
    assert (names.asked, proxy.asked) == (["pages.example"], [("pages.example", peer.port)])
    assert proxy.refused == []


async def test_what_is_said_together_with_the_request_goes_through_the_tunnel(proxy: Proxy, peer: Peer) -> None:
    near = await proxy.connect()
    await near.say(f"CONNECT pages.example:{peer.port} HTTP/1.1\r\n\r\nearly")
    far = await peer.accept()
    assert await far.hear(5) == b"early"


async def test_plain_request_is_written_anew(proxy: Proxy, site: Site) -> None:
    site.pages["/a?b=c"] = answer(b"page")
    answered = await proxy.say(
        f"POST HTTP://Pages.Example:{site.port}/a?b=c#d HTTP/1.1\r\nHost: evil.example\r\nX-Kept: 1\r\n"
        "Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic YTpi\r\nConnection: x-dropped, content-length\r\n"
        "X-Dropped: 1\r\nUpgrade: h2c\r\nContent-Length: 4\r\n\r\nbody".encode()
    )
    assert answered.endswith(b"\r\n\r\npage")
    (heard,) = site.heard
    assert (heard.line, heard.body, heard.at) == ("POST /a?b=c HTTP/1.1", b"body", PUBLIC)
    assert heard.headers == {
        "host": f"pages.example:{site.port}",
        "x-kept": "1",
        "content-length": "4",
        "connection": "close",
    }


async def test_answer_of_any_length_is_passed_on_whole(proxy: Proxy, site: Site) -> None:
    site.pages["/"] = answer(bytes(range(256)) * 20_000)
    answered = await proxy.say(f"GET http://pages.example:{site.port}/ HTTP/1.0\r\n\r\n")
    assert answered == site.pages["/"]


async def test_real_client_uses_both_ways(proxy: Proxy, site: Site, secure_site: Site, certificate: Path) -> None:
    site.pages["/"] = secure_site.pages["/"] = answer(b"page")
    context = ssl.create_default_context(cafile=certificate)
    async with aiohttp.ClientSession(proxy=f"http://127.0.0.1:{proxy.port}") as session:
        for url in (f"http://pages.example:{site.port}/", f"https://pages.example:{secure_site.port}/"):
            async with session.get(url, ssl=context) as response:
                assert await response.read() == b"page"


@pytest.mark.parametrize("host", ["PAGES.example", "pages.example."])
async def test_name_has_one_form_for_everybody(proxy: Proxy, peer: Peer, names: Names, host: str) -> None:
    await proxy.tunnel(f"{host}:{peer.port}")
    assert (names.asked, proxy.asked) == (["pages.example"], [("pages.example", peer.port)])


async def test_next_address_is_tried_when_the_first_does_not_answer(peer: Peer, names: Names, opened: Open) -> None:
    names.say("pages.example", ["127.0.0.9", PUBLIC])
    async with opened(allowance=parse_allowance(("127.0.0.0/8",))) as proxy:
        await proxy.tunnel(f"pages.example:{peer.port}")


# What does not


async def test_host_that_is_not_admitted_is_neither_looked_up_nor_dialled(
    proxy: Proxy, site: Site, names: Names
) -> None:
    proxy.forbidden.add("pages.example")
    for words in (f"CONNECT pages.example:{site.port}", f"GET http://pages.example:{site.port}/"):
        answered = await proxy.say(f"{words} HTTP/1.1\r\n\r\n")
        assert (status(answered), sentence(answered)) == (403, "pages.example is not on the list.")
    assert (names.asked, site.connections) == ([], 0)
    assert proxy.refused == [("pages.example", site.port)] * 2


@pytest.mark.parametrize(
    "host",
    [
        *(PRIVATE, "169.254.169.254", "10.0.0.1", "0.0.0.0", "[::1]", "[::]", f"[::ffff:{PRIVATE}]", "[fd00::1]"),
        *("[64:ff9b::7f00:3]", "[2002:7f00:3::]", "[fe80::1]"),
    ],
)
@pytest.mark.parametrize("form", ["CONNECT {}:{}", "GET http://{}:{}/"])
async def test_private_address_is_refused_before_anybody_is_asked(
    proxy: Proxy, canary: Site, host: str, form: str
) -> None:
    answered = await proxy.say(f"{form.format(host, canary.port)} HTTP/1.1\r\n\r\n")
    assert status(answered) == 403
    assert "is not on the public internet" in sentence(answered)
    assert (proxy.asked, canary.connections) == ([], 0)
    assert [port for _, port in proxy.refused] == [canary.port]


@pytest.mark.parametrize("addresses", [[PRIVATE], [PUBLIC, PRIVATE], ["::1"], [PUBLIC, "fe80::1%1"]])
async def test_name_with_a_private_address_is_refused(
    proxy: Proxy, site: Site, canary: Site, names: Names, addresses: list[str]
) -> None:
    names.say("mixed.example", addresses)
    answered = await proxy.say(f"CONNECT mixed.example:{site.port} HTTP/1.1\r\n\r\n")
    assert status(answered) == 403
    assert (site.connections, canary.connections) == (0, 0)
    assert proxy.refused == [("mixed.example", site.port)]


async def test_name_that_changes_its_address_is_dialled_where_it_was_checked(
    proxy: Proxy, site: Site, canary: Site, names: Names
) -> None:
    names.say("rebinding.example", [PUBLIC], [PRIVATE])
    site.pages["/"] = answer(b"public")
    words = f"GET http://rebinding.example:{site.port}/ HTTP/1.1\r\n\r\n".encode()
    assert (await proxy.say(words)).endswith(b"public")
    assert names.asked == ["rebinding.example"]
    assert status(await proxy.say(words)) == 403
    assert (site.connections, canary.connections) == (1, 0)


async def test_listed_address_may_be_reached_by_any_name_of_it(opened: Open, canary: Site, names: Names) -> None:
    names.say("nas.lan", [PRIVATE])
    canary.pages["/"] = answer(b"home")
    async with opened(allowance=parse_allowance((PRIVATE,))) as proxy:
        for host in ("nas.lan", PRIVATE):
            words = f"GET http://{host}:{canary.port}/ HTTP/1.1\r\n\r\n".encode()
            assert (await proxy.say(words)).endswith(b"home")


@pytest.mark.parametrize(
    "head",
    [
        *(b"GET / HTTP/1.1", b"CONNECT / HTTP/1.1", b"CONNECT pages.example HTTP/1.1", b"", b"\r\n", b"hello"),
        *(b"CONNECT pages.example: HTTP/1.1", b"CONNECT pages.example:0 HTTP/1.1", b"CONNECT :443 HTTP/1.1"),
        *(b"CONNECT pages.example:65536 HTTP/1.1", b"CONNECT pages.example:443443 HTTP/1.1"),
        *(b"CONNECT pages.example:+443 HTTP/1.1", b"CONNECT pages.example:443/ HTTP/1.1"),
        *(b"CONNECT pages.example/:443 HTTP/1.1", b"CONNECT pages.example?:443 HTTP/1.1", b"CONNECT a#:443 HTTP/1.1"),
        *(b"CONNECT a@pages.example:443 HTTP/1.1", b"CONNECT pages.example:443@evil.example:443 HTTP/1.1"),
        *(b"CONNECT pages.example\0.evil:443 HTTP/1.1", b"CONNECT pages.example%00:443 HTTP/1.1"),
        *(b"CONNECT pages.example :443 HTTP/1.1", b"CONNECT  pages.example:443 HTTP/1.1"),
        *(b"CONNECT pages.example:443\tHTTP/1.1", b"CONNECT pages.example:443 HTTP/1.1 ", b" CONNECT a:1 HTTP/1.1"),
        *(b"CONNECT p\xc3\xa4ges.example:443 HTTP/1.1", b"CONNECT pages_example:443 HTTP/1.1"),
        *(b"CONNECT pages..example:443 HTTP/1.1", b"CONNECT -a.example:443 HTTP/1.1", b"CONNECT *:443 HTTP/1.1"),
        *(b"CONNECT " + b"a" * 64 + b":443 HTTP/1.1", b"CONNECT " + b"a." * 127 + b"a:443 HTTP/1.1"),
        *(b"CONNECT 0x7f.1:443 HTTP/1.1", b"CONNECT 2130706433:443 HTTP/1.1", b"CONNECT 127.1:443 HTTP/1.1"),
        *(b"CONNECT [::1%lo]:443 HTTP/1.1", b"CONNECT ::1:443 HTTP/1.1", b"CONNECT [pages.example]:443 HTTP/1.1"),
        *(b"CONNECT pages.example:443 HTTP/2.0", b"CONNECT pages.example:443", b"connect pages.example:443 HTTP/1.1"),
        *(b"GET http://a@pages.example/ HTTP/1.1", b"GET http://pages.example\\@evil.example/ HTTP/1.1"),
        *(b"GET https://pages.example/ HTTP/1.1", b"GET file:///etc/passwd HTTP/1.1", b"GET http:/pages HTTP/1.1"),
        *(b"GET http:///a HTTP/1.1", b"GET http://pages.example:99999/ HTTP/1.1", b"GET ws://pages.example/ HTTP/1.1"),
        b"GET http://pages.example/a b HTTP/1.1",
    ],
)
async def test_request_that_is_not_plain_is_turned_down_unasked(proxy: Proxy, names: Names, head: bytes) -> None:
    assert status(await proxy.say(head + b"\r\n\r\n")) == 400
    assert (proxy.asked, names.asked, proxy.refused) == ([], [], [])


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (b"Content-Length: 4\r\nTransfer-Encoding: chunked", 411),
        (b"Transfer-Encoding: chunked", 411),
        (b"Transfer-Encoding: identity", 411),
        (b"transfer-encoding:\tchunked", 411),
        (b"Transfer-Encoding : chunked", 400),
        (b"Content-Length: 4\r\nContent-Length: 5", 400),
        (b"Content-Length: 4\r\nContent-Length: 4", 400),
        (b"Content-Length: 4, 4", 400),
        (b"Content-Length: +4", 400),
        (b"Content-Length: -1", 400),
        (b"Content-Length: 0x4", 400),
        (b"Content-Length:", 400),
        (b"Content-Length: 4\nX: 1", 400),
        (b"X: 1\r Content-Length: 4", 400),
        (b"X: 1\r\n Content-Length: 4", 400),
        (b"X: 1\0", 400),
        (b"X", 400),
        (b": 1", 400),
        (b"X\xff: 1", 400),
    ],
)
async def test_request_whose_end_is_a_matter_of_opinion_is_turned_down(
    proxy: Proxy, site: Site, fields: bytes, told: int
) -> None:
    target = f"POST http://pages.example:{site.port}/ HTTP/1.1\r\n".encode()
    assert status(await proxy.say(target + fields + b"\r\n\r\nbody")) == told
    assert (proxy.asked, site.connections) == ([], 0)


async def posted(proxy: Proxy, peer: Peer, *pieces: str) -> tuple[Line, Line]:
    """A request's head with the first of these pieces behind it, then the others."""
    near = await proxy.connect()
    length = len("body") if "body" in "".join(pieces) else 0
    head = f"POST http://pages.example:{peer.port}/ HTTP/1.1\r\nContent-Length: {length}\r\n\r\n"
    await near.say(head + pieces[0])
    far = await peer.accept()
    assert (await far.hear_head())[0] == "POST / HTTP/1.1"
    for piece in pieces[1:]:
        await near.say(piece)
    return near, far


@pytest.mark.parametrize("pieces", [("GET /b",), ("bodyGET /b",), ("", "bodyGET /b"), ("bo", "dyGET /b")])
async def test_second_request_with_the_first_goes_nowhere(proxy: Proxy, peer: Peer, pieces: tuple[str, ...]) -> None:
    near, far = await posted(proxy, peer, *pieces)
    body = b"body" if "body" in "".join(pieces) else b""
    assert await far.hear(len(body)) == body
    await far.say(answer(b"one"))
    far.end()
    assert (await near.hear_all()).endswith(b"one")
    assert await far.hear_all() == b""


@pytest.mark.parametrize("body", ["", "body"])
async def test_second_request_after_the_first_ends_the_connection(proxy: Proxy, peer: Peer, body: str) -> None:
    near, far = await posted(proxy, peer, body)
    assert await far.hear(len(body)) == body.encode()
    await near.say("GET /b HTTP/1.1\r\n\r\n")
    assert (await far.hear_all(), await near.hear_all()) == (b"", b"")


async def test_client_that_hangs_up_ends_its_request(proxy: Proxy, peer: Peer) -> None:
    near = await proxy.connect()
    await near.say(f"GET http://pages.example:{peer.port}/ HTTP/1.1\r\n\r\n")
    far = await peer.accept()
    near.writer.close()
    assert (await far.hear_all()).startswith(b"GET / ")


async def test_long_head_is_turned_down(proxy: Proxy, site: Site) -> None:
    padding = b"X: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n"
    answered = await proxy.say(f"CONNECT pages.example:{site.port} HTTP/1.1\r\n".encode() + padding)
    assert status(answered) == 431
    assert proxy.asked == []


async def test_host_that_nobody_knows_or_that_does_not_answer_is_told(proxy: Proxy, names: Names) -> None:
    answered = await proxy.say(b"CONNECT unknown.example:443 HTTP/1.1\r\n\r\n")
    assert (status(answered), sentence(answered)) == (502, "There is no host called unknown.example.")
    answered = await proxy.say(b"CONNECT pages.example:9 HTTP/1.1\r\n\r\n")
    assert (status(answered), sentence(answered)) == (502, "pages.example cannot be reached: Connection refused.")
    assert proxy.refused == []


async def test_answer_is_heard_although_the_request_goes_on(proxy: Proxy) -> None:
    proxy.forbidden.add("pages.example")
    head = b"POST http://pages.example/ HTTP/1.1\r\nContent-Length: 3000000\r\n\r\n"
    near = await proxy.connect()
    await near.say(head)
    assert status(await near.hear_all()) == 403
    await near.say(bytes(3_000_000))
    near.writer.close()
    await near.writer.wait_closed()


# Who may use it


async def test_without_the_credential_nobody_is_served(opened: Open, peer: Peer) -> None:
    connect = f"CONNECT pages.example:{peer.port} HTTP/1.1\r\n"
    async with opened(credential="browser:secret") as proxy:
        for given in ("", "Basic", "Basic !", f"Bearer {_encoded('browser:secret')}", f"Basic {_encoded('browser:')}"):
            answered = await proxy.say(f"{connect}Proxy-Authorization: {given}\r\n\r\n")
            assert status(answered) == 407
            assert b'Proxy-Authenticate: Basic realm="proxy"' in answered
        assert status(await proxy.say(f"{connect}\r\n")) == 407
        assert proxy.asked == []
        near = await proxy.connect()
        await near.say(f"{connect}Proxy-Authorization: basic {_encoded('browser:secret')}\r\n\r\n".encode())
        assert await near.hear(len(ESTABLISHED)) == ESTABLISHED


def _encoded(credential: str) -> str:
    return base64.b64encode(credential.encode()).decode()


# Behind another proxy


async def test_tunnel_leads_through_the_proxy_of_the_environment(
    proxy: Proxy, peer: Peer, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://us%3Aer:pass@{PUBLIC}:{peer.port}")
    near = await proxy.connect()
    await near.say(b"CONNECT inside.example:443 HTTP/1.1\r\n\r\n")
    far = await peer.accept()
    head = await far.hear_head()
    assert head[0] == "CONNECT inside.example:443 HTTP/1.1"
    assert f"Proxy-Authorization: Basic {_encoded('us:er:pass')}" in head
    await far.say(b"HTTP/1.1 200 OK\r\nX: 1\r\n\r\nhello")
    assert await near.hear(len(ESTABLISHED) + 5) == ESTABLISHED + b"hello"
    await near.say(b"there")
    assert await far.hear(5) == b"there"


async def test_plain_request_is_told_to_the_proxy_of_the_environment(
    proxy: Proxy, site: Site, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://{PUBLIC}:{site.port}")
    site.pages["*"] = answer(b"by proxy")
    assert (await proxy.say(b"GET http://inside.example/a HTTP/1.1\r\n\r\n")).endswith(b"by proxy")
    assert site.heard[0].line == "GET http://inside.example/a HTTP/1.1"


async def test_behind_a_proxy_what_is_private_here_is_still_refused(
    proxy: Proxy, site: Site, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", f"http://{PUBLIC}:{site.port}")
    names.say("intranet.example", ["10.0.0.1"])
    for place in ("intranet.example:443", "169.254.169.254:443"):
        assert status(await proxy.say(f"CONNECT {place} HTTP/1.1\r\n\r\n")) == 403
    assert site.connections == 0


@pytest.mark.parametrize("said", [b"HTTP/1.1 403 No\r\n\r\n", b"HTTP/1.1 2000 No\r\n\r\n", b"SSH-2.0\r\n\r\n", b""])
async def test_proxy_that_says_no_is_told(
    proxy: Proxy, peer: Peer, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://{PUBLIC}:{peer.port}")
    asking = asyncio.create_task(proxy.say(b"CONNECT inside.example:443 HTTP/1.1\r\n\r\n"))
    far = await peer.accept()
    await far.say(said)
    far.writer.close()
    answered = await asking
    assert status(answered) == 502
    assert sentence(answered) == "The proxy did not allow the request to inside.example."


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("socks5://u:hush@127.0.0.2:9", "HTTPS_PROXY is not a usable proxy"),
        ("https://u:hush@127.0.0.2:9", "The proxy of this machine uses https"),
    ],
)
async def test_proxy_that_cannot_be_used_is_told_and_not_gone_around(
    proxy: Proxy, site: Site, monkeypatch: pytest.MonkeyPatch, named: str, told: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", named)
    answered = await proxy.say(f"CONNECT pages.example:{site.port} HTTP/1.1\r\n\r\n")
    assert status(answered) == 502
    assert sentence(answered).startswith(told)
    assert b"hush" not in answered
    assert site.connections == 0


# How it ends


async def test_client_that_has_said_all_still_hears_the_answer(proxy: Proxy, peer: Peer) -> None:
    near, far = await joined(proxy, peer)
    await near.say(b"question")
    near.end()
    assert await far.hear_all() == b"question"
    await far.say(b"answer")
    far.writer.close()
    assert await near.hear_all() == b"answer"


async def test_host_that_has_said_all_still_hears_the_client(proxy: Proxy, peer: Peer) -> None:
    near, far = await joined(proxy, peer)
    await far.say(b"greeting")
    far.end()
    assert await near.hear_all() == b"greeting"
    await near.say(b"thanks")
    near.end()
    assert await far.hear_all() == b"thanks"


async def test_connection_that_breaks_ends_the_other_one(proxy: Proxy, peer: Peer) -> None:
    near, far = await joined(proxy, peer)
    far.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    far.close()
    assert await near.hear_all() == b""


async def test_slow_head_is_given_up_and_holds_up_nobody(proxy: Proxy, peer: Peer, clock: ManualClock) -> None:
    near = await proxy.connect()
    await near.say(b"CONNECT pages")
    await joined(proxy, peer)
    clock.advance(HEAD_S)
    assert await near.hear_all() == b""


async def test_name_server_that_does_not_answer_is_given_up(opened: Open, clock: ManualClock) -> None:
    asked = asyncio.Event()

    async def silence(host: str) -> list[str]:
        asked.set()
        await asyncio.Event().wait()
        return []

    async with opened(lookup=silence) as proxy:
        asking = asyncio.create_task(proxy.say(b"CONNECT pages.example:443 HTTP/1.1\r\n\r\n"))
        await asked.wait()
        clock.advance(LOOKUP_S)
        assert status(await asking) == 504


async def test_tunnel_in_which_nothing_moves_is_closed(proxy: Proxy, peer: Peer, clock: ManualClock) -> None:
    near, far = await joined(proxy, peer)
    for _ in range(3):
        clock.advance(IDLE_S - 1)
        await far.say(b"a")
        assert await near.hear(1) == b"a"
    clock.advance(IDLE_S)
    assert (await near.hear_all(), await far.hear_all()) == (b"", b"")


async def test_host_that_is_not_read_from_is_held_up(proxy: Proxy, peer: Peer, clock: ManualClock) -> None:
    near, far = await joined(proxy, peer)
    cast("asyncio.Transport", near.writer.transport).pause_reading()
    sent = 0

    async def flood() -> None:
        nonlocal sent
        with suppress(ConnectionError):
            for _ in range(1_000):
                far.writer.write(bytes(100_000))
                await far.writer.drain()
                sent += 100_000

    flooding = asyncio.create_task(flood())
    before = -1
    while sent != before:
        before = sent
        for _ in range(200):
            await asyncio.sleep(0)
    clock.advance(IDLE_S)
    await flooding
    assert 0 < sent < 100_000_000


async def test_bytes_of_all_connections_together_are_limited(opened: Open, peer: Peer, site: Site) -> None:
    async with opened(max_bytes=1_000) as proxy:
        near, far = await joined(proxy, peer)
        await near.say(bytes(400))
        assert await far.hear(400) == bytes(400)
        other, far_other = await joined(proxy, peer)
        await far_other.say(bytes(400))
        assert await other.hear(400) == bytes(400)
        await far.say(bytes(400))
        assert (await near.hear_all(), await far.hear_all()) == (b"", b"")
        answered = await proxy.say(f"GET http://pages.example:{site.port}/ HTTP/1.1\r\n\r\n")
        assert (status(answered), sentence(answered)) == (403, "The limit for network traffic has been reached.")
        assert proxy.refused == [("pages.example", site.port)]
        assert site.connections == 0


async def test_two_hundred_connections_are_served_and_not_too_many_at_once(opened: Open, site: Site) -> None:
    site.pages["/"] = answer(b"page")
    present, most = 0, 0
    full = asyncio.Event()

    async def admit(host: str, port: int) -> None:
        nonlocal present, most
        present += 1
        most = max(most, present)
        if present == MAX_CONNECTIONS:
            full.set()
        await full.wait()
        await asyncio.sleep(0)
        present -= 1

    words = f"GET http://pages.example:{site.port}/ HTTP/1.1\r\n\r\n".encode()
    async with opened(admit) as proxy:
        answers = await asyncio.gather(*(proxy.say(words) for _ in range(200)))
    assert [answered[-4:] for answered in answers] == [b"page"] * 200
    assert (most, site.connections) == (MAX_CONNECTIONS, 200)


async def test_person_who_thinks_holds_up_nobody_else_and_is_not_waited_for_at_the_end(
    opened: Open, site: Site
) -> None:
    site.pages["/"] = answer(b"page")
    thinking = asyncio.Event()

    async def admit(host: str, port: int) -> None:
        if host == "unknown.example":
            thinking.set()
            await asyncio.Event().wait()

    async with opened(admit) as proxy:
        asking = asyncio.create_task(proxy.say(b"CONNECT unknown.example:443 HTTP/1.1\r\n\r\n"))
        await thinking.wait()
        answered = await proxy.say(f"GET http://pages.example:{site.port}/ HTTP/1.1\r\n\r\n")
        assert answered.endswith(b"page")
    assert await asking == b""


async def test_one_that_breaks_hurts_no_other(opened: Open, site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.pages["/"] = answer(b"page")

    async def admit(host: str, port: int) -> None:
        if host == "unknown.example":
            raise RuntimeError("broken")

    async with opened(admit) as proxy:
        assert await proxy.say(b"CONNECT unknown.example:443 HTTP/1.1\r\n\r\n") == b""
        answered = await proxy.say(f"GET http://pages.example:{site.port}/ HTTP/1.1\r\n\r\n")
        assert answered.endswith(b"page")
    assert "a connection of the egress proxy broke" in caplog.text


async def test_nothing_is_left_of_a_tunnel_that_has_ended(proxy: Proxy, peer: Peer) -> None:
    before = asyncio.all_tasks()
    near, far = await joined(proxy, peer)
    near.end()
    far.end()
    assert (await near.hear_all(), await far.hear_all()) == (b"", b"")
    while asyncio.all_tasks() - before:
        await asyncio.sleep(0)


async def test_everything_is_closed_when_the_context_ends(opened: Open, peer: Peer) -> None:
    before = asyncio.all_tasks()
    async with opened() as proxy:
        near, far = await joined(proxy, peer)
        idle = await proxy.connect()
    assert asyncio.all_tasks() <= before
    assert (await near.hear_all(), await far.hear_all(), await idle.hear_all()) == (b"", b"", b"")
    with pytest.raises(ConnectionRefusedError):
        await proxy.connect()
