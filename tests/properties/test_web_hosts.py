"""Whatever a host looks like: what is dialled is what was checked, and the site hears the name that was looked up."""

import asyncio
import ipaddress
import zlib
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.web.conftest import Site, answer

from talaria.core.errors import ToolFailed
from talaria.net.addresses import is_public
from talaria.net.fetch import Fetch, unpacked
from talaria.net.settings import WebSettings
from talaria.net.urls import parse
from talaria.testing.manual_clock import ManualClock

LISTED = "127.64.0.0/10"
"""Stands for the public internet; the rest of loopback does not."""

signs = st.sampled_from(
    [*"a1-._~@:/\\?#[]%0xX \t\r\n\0éß。", "\N{FULLWIDTH DIGIT ONE}", "\u202e", "\ud800", "%00", "xn--"]
)
words = st.sampled_from(
    ["example.org", "127.0.0.1", "127.64.0.9", "localhost", "0x7f.1", "[::1]", "2130706433", "a", "B.c"]
)
names = st.lists(st.from_regex(r"[a-zA-Z0-9éß-]{1,8}", fullmatch=True), min_size=1, max_size=3).map(".".join)
hosts = names | st.lists(words | signs | st.text(max_size=3), max_size=6).map("".join)


def address_of(host: str) -> str:
    """What the name server of these tests says: half of all names are listed, half are not."""
    return str(ipaddress.IPv4Address(0x7F000000 | 1 + zlib.crc32(host.encode()) % 0x7FFFFD))


async def fetched(host: str, scheme: str = "http") -> tuple[Site, list[str], str | None]:
    """The site that answers on all of loopback, the names that were looked up, and the page, if there was one."""
    site = Site(pages={"*": answer(b"page")})
    asked: list[str] = []

    async def lookup(name: str) -> Sequence[str]:
        asked.append(name)
        return [address_of(name)]

    async with await asyncio.start_server(site.serve, "0.0.0.0", 0) as server:
        port = server.sockets[0].getsockname()[1]
        fetch = Fetch(WebSettings(allow_private=(LISTED,)), ManualClock(), lookup=lookup)
        try:
            page = await fetch.page(f"{scheme}://{host}:{port}/p")
        except ToolFailed:
            return site, asked, None
    return site, asked, page.url


@settings(max_examples=300, deadline=None)
@given(host=hosts)
def test_what_is_dialled_is_what_was_checked(host: str) -> None:
    site, asked, url = asyncio.run(fetched(host))
    if url is None:
        assert site.connections == 0
        return
    parsed = parse(url)
    dialled = address_of(parsed.host) if asked else parsed.host
    assert [heard.at for heard in site.heard] == [dialled]
    assert ipaddress.ip_address(dialled) in ipaddress.ip_network(LISTED)
    assert asked == ([] if parsed.literal else [parsed.host])
    assert site.heard[0].headers["host"] == f"{parsed.host}:{parsed.port}"


@given(text=st.text() | hosts.map(lambda host: f"https://{host}/") | hosts.map(lambda host: f"//{host}"))
def test_address_has_one_form_or_none(text: str) -> None:
    try:
        url = parse(text)
    except ToolFailed:
        return
    assert parse(str(url)) == url
    assert str(url).isascii()
    assert not set(str(url)) & set(' \t\r\n\0"<>\\')
    assert len(url.host) <= 253


@given(number=st.integers(0, 2**32 - 1))
def test_every_disguise_of_a_private_address_is_seen_through(number: int) -> None:
    plain = ipaddress.IPv4Address(number)
    mapped, translated = (ipaddress.IPv6Address(prefix | number) for prefix in (0xFFFF << 32, 0x64FF9B << 96))
    assert is_public(mapped) == is_public(translated) == is_public(plain)
    if not plain.is_global:
        assert not is_public(plain)
    assert not is_public(ipaddress.IPv6Address(0x2002 << 112 | number << 80))
    assert not is_public(ipaddress.IPv6Address(0x20010000 << 96 | number ^ 0xFFFFFFFF))


@given(number=st.integers(0, 2**128 - 1))
def test_nothing_is_public_that_python_holds_for_private(number: int) -> None:
    address = ipaddress.IPv6Address(number)
    assert (
        address.is_global
        or address.ipv4_mapped
        or address in ipaddress.ip_network("64:ff9b::/96")
        or not is_public(address)
    )


@given(
    body=st.binary(),
    coding=st.sampled_from(["gzip", "deflate", "identity", "", "gzip, deflate"]),
    limit=st.integers(1, 50),
)
def test_unpacking_stays_within_its_limit(body: bytes, coding: str, limit: int) -> None:
    try:
        plain, is_cut = unpacked(body, coding, limit)
    except ToolFailed:
        return
    assert len(plain) <= limit
    if coding in ("identity", ""):
        assert (plain, is_cut) == (body[:limit], len(body) > limit)


@given(body=st.binary(max_size=500), limit=st.integers(1, 600), bits=st.sampled_from([31, 15, -15]))
def test_what_was_packed_comes_back(body: bytes, limit: int, bits: int) -> None:
    packer = zlib.compressobj(wbits=bits)
    packed = packer.compress(body) + packer.flush()
    plain, is_cut = unpacked(packed, "gzip" if bits == 31 else "deflate", limit)
    assert plain == body[:limit]
    assert is_cut or len(body) <= limit
