"""Whatever bytes a client sends as a host: who is asked, what is looked up and what is dialled are one and the same."""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Sequence
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties.test_web_hosts import LISTED, address_of
from tests.properties.test_web_hosts import hosts as written
from tests.unit.web.conftest import Site, answer

from talaria.core.errors import Denied
from talaria.net.egress import Egress
from talaria.net.urls import parse_allowance
from talaria.testing.manual_clock import ManualClock
from talaria.testing.patience import PATIENCE_S

LDH = re.compile(r"(?=.{1,253}$)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")

hosts = written.map(lambda host: host.encode("utf-8", "surrogatepass")) | st.binary(max_size=12)
forms = st.sampled_from(
    [
        b"CONNECT %b:%d HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"GET http://%b:%d/ HTTP/1.1\r\n\r\n",
        b"GET http://listed.example:%d@%b/ HTTP/1.1\r\n\r\n",
        b"GET http://%b:%d/ HTTP/1.1\r\nHost: listed.example\r\n\r\n",
    ]
)


class Way:
    """One request through a proxy to a site that answers on all of loopback."""

    def __init__(self) -> None:
        self.site = Site(pages={"*": answer(b"page")})
        self.asked: list[tuple[str, int]] = []
        self.looked_up: list[str] = []
        self.port = 0

    async def admit(self, host: str, port: int) -> None:
        """Half of all names, and every address."""
        self.asked.append((host, port))
        if not is_admitted(host):
            raise Denied(f"{host} is not on the list.")

    async def lookup(self, host: str) -> Sequence[str]:
        self.looked_up.append(host)
        return [address_of(host)]

    async def take(self, form: bytes, host: bytes) -> bytes:
        listening = socket.create_server(("127.0.0.1", 0))
        proxy = listening.getsockname()
        async with (
            asyncio.timeout(PATIENCE_S),
            await asyncio.start_server(self.site.serve, "0.0.0.0", 0) as server,
            Egress(
                listening, self.admit, allowance=parse_allowance((LISTED,)), clock=ManualClock(), lookup=self.lookup
            ),
        ):
            self.port = server.sockets[0].getsockname()[1]
            words = form.replace(b"%b", host).replace(b"%d", str(self.port).encode())
            return await said(proxy, words)


async def said(place: tuple[str, int], words: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*place)
    with suppress(ConnectionError):
        writer.write(words)
        answered = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answered
    return b""


def is_admitted(host: str) -> bool:
    return ":" in host or host[-1:].isdigit() or len(host) % 2 == 0


@settings(max_examples=400, deadline=None)
@given(host=hosts, form=forms)
def test_what_was_admitted_is_what_is_dialled(host: bytes, form: bytes) -> None:
    way = Way()
    answered = asyncio.run(way.take(form, host))
    if not way.site.heard:
        assert (way.site.connections, b"page" in answered) == (0, False)
    for name, port in way.asked:
        assert LDH.fullmatch(name) or ipaddress.ip_address(name)
        assert 0 < port < 65536
    assert way.looked_up == [name for name, _ in way.asked if is_admitted(name) and not is_address(name)]
    for heard in way.site.heard:
        ((name, port),) = way.asked
        assert is_admitted(name)
        assert heard.at == (name if is_address(name) else address_of(name))
        assert ipaddress.ip_address(heard.at) in ipaddress.ip_network(LISTED)
        assert port == way.port


def is_address(host: str) -> bool:
    return ":" in host or host.rpartition(".")[2].isdigit()
