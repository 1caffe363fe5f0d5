"""A page comes whole, from where it says, within its bounds; what goes wrong is one sentence."""

import asyncio
import tracemalloc
import zlib
from pathlib import Path

import pytest
from tests.ports import reserved_port
from tests.unit.web.conftest import PUBLIC, Names, Site, answer, redirect

from talaria.core.errors import ToolFailed
from talaria.net.fetch import Fetch, decompress
from talaria.net.web_settings import WebSettings
from talaria.testing.manual_clock import ManualClock

HTML = b"<p>Hello.</p>"


def packed(body: bytes, bits: int) -> bytes:
    packer = zlib.compressobj(wbits=bits)
    return packer.compress(body) + packer.flush()


async def test_page_comes_with_what_belongs_to_it(fetch: Fetch, site: Site) -> None:
    site.pages["/a?b=c"] = answer(HTML, content_type="Text/HTML; Charset='ISO-8859-15'")
    fetched = await fetch.page(f"http://Pages.example:{site.port}/a?b=c#part")
    assert fetched.url == f"http://pages.example:{site.port}/a?b=c"
    assert (fetched.status, fetched.media_type, fetched.charset) == (200, "text/html", "iso8859-15")
    assert (fetched.body, fetched.text(), fetched.is_cut) == (HTML, HTML.decode(), False)
    assert site.heard[0].headers["host"] == f"pages.example:{site.port}"


async def test_failure_of_the_site_is_a_page_too(fetch: Fetch, site: Site) -> None:
    site.pages["*"] = answer(b"gone", 410)
    fetched = await fetch.page(f"http://pages.example:{site.port}/")
    assert (fetched.status, fetched.media_type, fetched.body) == (410, "", b"gone")


async def test_page_longer_than_allowed_is_cut(fetch: Fetch, site: Site) -> None:
    site.pages["/long"] = answer(b"x" * 100_001)
    site.pages["/fits"] = answer(b"x" * 100_000)
    long = await fetch.page(f"http://pages.example:{site.port}/long")
    fits = await fetch.page(f"http://pages.example:{site.port}/fits")
    assert [(len(page.body), page.is_cut) for page in (long, fits)] == [(100_000, True), (100_000, False)]


async def test_endless_page_is_left(fetch: Fetch, site: Site) -> None:
    site.holds = True
    site.pages["*"] = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100_001
    fetched = await fetch.page(f"http://pages.example:{site.port}/")
    assert (len(fetched.body), fetched.is_cut) == (100_000, True)


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", packed(HTML, 31)),
        ("X-GZIP", packed(HTML, 31)),
        ("deflate", packed(HTML, 15)),
        ("deflate", packed(HTML, -15)),
        ("identity", HTML),
        ("deflate, gzip", packed(packed(HTML, 15), 31)),
    ],
)
async def test_packed_page_is_unpacked(fetch: Fetch, site: Site, coding: str, body: bytes) -> None:
    site.pages["*"] = answer(body, content_encoding=coding)
    fetched = await fetch.page(f"http://pages.example:{site.port}/")
    assert (fetched.body, fetched.is_cut) == (HTML, False)
    assert site.heard[0].headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize(
    ("coding", "body", "sentence"),
    [
        ("br", HTML, "The page is compressed as 'br', which was not requested."),
        ("zstd", HTML, "The page is compressed as 'zstd', which was not requested."),
        ("gzip", HTML, "The page claims to be compressed as gzip, but is not."),
        ("gzip, gzip, gzip", HTML, "The page is compressed too many times."),
    ],
)
async def test_page_that_cannot_be_unpacked_is_told(
    fetch: Fetch, site: Site, coding: str, body: bytes, sentence: str
) -> None:
    site.pages["*"] = answer(body, content_encoding=coding)
    with pytest.raises(ToolFailed) as told:
        await fetch.page(f"http://pages.example:{site.port}/")
    assert str(told.value) == sentence


@pytest.mark.parametrize("coding", ["gzip", "deflate", "gzip, gzip"])
def test_bomb_costs_what_the_limit_costs(coding: str) -> None:
    bomb = b"\0" * (64 << 20)
    for layer in coding.split(", "):
        bomb = packed(bomb, 31 if layer == "gzip" else 15)
    tracemalloc.start()
    body, is_cut = decompress(bomb, coding, 100_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (body, is_cut) == (b"\0" * 100_000, True)
    assert peak < 2 << 20


def test_packed_page_that_breaks_off_is_kept_as_far_as_it_goes() -> None:
    whole = packed(b"".join(b"%d," % number for number in range(1_000)), 31)
    body, is_cut = decompress(whole[:-200], "gzip", 100_000)
    assert body.startswith(b"0,1,2,")
    assert is_cut
    assert decompress(b"", "gzip", 100) == (b"", False)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1_000 + b"\r\n",
        b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
    ],
    ids=["long header", "long line", "many headers", "not HTTP"],
)
async def test_head_that_is_none_is_told(fetch: Fetch, site: Site, head: bytes) -> None:
    site.pages["*"] = head
    with pytest.raises(ToolFailed) as told:
        await fetch.page(f"http://pages.example:{site.port}/")
    assert str(told.value) == "pages.example does not answer in HTTP, or its headers are too long."


@pytest.mark.parametrize(
    ("head", "drop"),
    [(b"", b""), (b"HTTP/1.1 200 OK\r\ncontent-le", b"x"), (b"HTTP/1.1 200 OK\r\n\r\n", b"x")],
    ids=["silence", "head that drips", "page that drips"],
)
async def test_site_that_takes_its_time_is_given_up_in_the_end(
    fetch: Fetch, site: Site, clock: ManualClock, head: bytes, drop: bytes
) -> None:
    site.pages["*"] = head
    site.holds = True
    async with asyncio.TaskGroup() as group:
        fetching = group.create_task(_sentence(fetch, f"http://pages.example:{site.port}/"))
        while not site.writers:
            await asyncio.sleep(0)
        for _ in range(29):
            site.writers[0].write(drop)
            clock.advance(1)
            await asyncio.sleep(0)
        assert not fetching.done()
        clock.advance(1)
        assert await fetching == "pages.example did not finish its answer within 30 s."


async def _sentence(fetch: Fetch, url: str) -> str:
    with pytest.raises(ToolFailed) as told:
        await fetch.page(url)
    return str(told.value)


async def test_name_server_that_does_not_answer_is_given_up(settings: WebSettings, clock: ManualClock) -> None:
    is_asked = asyncio.Event()

    async def silent(host: str) -> list[str]:
        is_asked.set()
        await asyncio.Event().wait()
        return []

    async with asyncio.TaskGroup() as group:
        fetching = group.create_task(_sentence(Fetch(settings, clock, lookup=silent), "http://pages.example/"))
        await is_asked.wait()
        clock.advance(30)
        assert await fetching == "pages.example did not finish its answer within 30 s."


async def test_page_that_breaks_off_is_told(fetch: Fetch, site: Site) -> None:
    site.pages["*"] = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf"
    sentence = await _sentence(fetch, f"http://pages.example:{site.port}/")
    assert sentence == "The connection to pages.example broke in the middle of the answer."


async def test_closed_port_and_unknown_host_are_told(fetch: Fetch) -> None:
    with reserved_port(PUBLIC) as port:
        sentence = await _sentence(fetch, f"http://pages.example:{port}/")
    assert sentence == "pages.example cannot be reached: Connection refused."
    assert await _sentence(fetch, "http://nowhere.example/") == "There is no host called nowhere.example."


async def test_certificate_must_be_of_the_name_that_was_asked_for(
    trusting_fetch: Fetch, secure_site: Site, names: Names, certificate: Path
) -> None:
    secure_site.pages["*"] = answer(HTML)
    names.say("other.example", [PUBLIC])
    fetched = await trusting_fetch.page(f"https://pages.example:{secure_site.port}/")
    assert fetched.body == HTML
    sentence = await _sentence(trusting_fetch, f"https://other.example:{secure_site.port}/")
    assert sentence == "The certificate of other.example cannot be verified, so it is not fetched."
    assert len(secure_site.heard) == 1


async def test_certificate_that_nobody_vouches_for_is_refused(fetch: Fetch, secure_site: Site) -> None:
    sentence = await _sentence(fetch, f"https://pages.example:{secure_site.port}/")
    assert sentence == "The certificate of pages.example cannot be verified, so it is not fetched."


async def test_what_does_not_speak_tls_is_told(fetch: Fetch) -> None:
    async def plainly(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b"", 400))
        writer.close()

    async with await asyncio.start_server(plainly, PUBLIC, 0) as server:
        port = server.sockets[0].getsockname()[1]
        sentence = await _sentence(fetch, f"https://pages.example:{port}/")
    assert sentence == "Cannot make a secure connection to pages.example."


async def test_redirect_from_secure_to_open_is_not_followed(
    trusting_fetch: Fetch, secure_site: Site, site: Site
) -> None:
    there = f"http://pages.example:{site.port}/open"
    secure_site.pages["*"] = redirect(there)
    sentence = await _sentence(trusting_fetch, f"https://pages.example:{secure_site.port}/")
    assert sentence.startswith(f"pages.example redirects to {there}, which is not secure; fetch that address directly")
    assert site.connections == 0
