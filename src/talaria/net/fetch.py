"""The vetted fetch, for pages that a model names and for calls that the operator's settings name.

For a page: only http and https; every address of the host is checked, and exactly those are dialled (`urls.py`,
`exchange.py`), again at each redirect; at most `web.max_bytes` after decompression, and `web.timeout_s` in all. Behind
a proxy (`HTTPS_PROXY`), the proxy resolves names and connects. Private addresses in the URL, and names that are private
*here*, are still refused; where the proxy connects to is for the proxy to police.

Bytes are decoded as in browsers, by the byte order mark, the header, the page's own declaration, or a guess.
Decompression has a limit, so a bomb costs no more than that.
"""

import codecs
import math
import re
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from talaria.core.aio import in_thread
from talaria.core.clock import Clock
from talaria.core.errors import ToolFailed
from talaria.net.stall import StallWatch
from talaria.net.urls import (
    EVERYWHERE,
    Allowance,
    Lookup,
    WebUrl,
    parse_allowance,
    parse_url,
    system_lookup,
    vet_addresses,
)
from talaria.net.web_settings import WebSettings

if TYPE_CHECKING:
    import ssl

    from talaria.net.exchange import Exchange, FetchResponse


CHUNK_BYTES = 64 << 10
"""How much is decoded at once, so that decoding a bad page lets other threads run."""
_HEAD_BYTES = 1024
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_DECLARED = re.compile(
    rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([\w.:-]{1,40})|^\s*<\?xml[^>]{0,100}?encoding\s*=\s*["']([\w.:-]{1,40})""",
    re.IGNORECASE,
)
_USUAL = re.compile(
    r"utf-(8|16|16-le|16-be|32|32-le|32-be)|ascii|iso8859-\d+|cp\d+|koi8-[rtu]|mac-\w+|gb\w+|big5\w*|euc_\w+|shift_jis\w*|iso2022_\w+|johab|hz|tis-620"
)
"""Python has more codecs, but some are programs rather than alphabets (punycode takes quadratic time)."""
_WIDER = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}
"""Browsers read a page that declares the first charset as the second."""


def charset_of(body: bytes, said: str | None) -> str:
    for mark, name in _MARKS:
        if body.startswith(mark):
            return name
    declared = _DECLARED.search(body, 0, _HEAD_BYTES)
    inside = (declared[1] or declared[2]).decode("ascii") if declared else None
    known = _find_charset(said) or _find_charset(inside, is_inside=True)
    if known is not None:
        return known
    try:
        codecs.getincrementaldecoder("utf-8")().decode(body)  # incremental: the last character may be cut
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


def decode_body(body: bytes, charset: str) -> str:
    decoder = codecs.getincrementaldecoder(charset)("replace")
    pieces = [decoder.decode(body[at : at + CHUNK_BYTES]) for at in range(0, len(body), CHUNK_BYTES)]
    return "".join([*pieces, decoder.decode(b"", final=True)])


def _find_charset(said: str | None, *, is_inside: bool = False) -> str | None:
    try:
        name = codecs.lookup(said or "").name
    except (LookupError, ValueError):
        return None
    if is_inside and name.startswith(("utf-16", "utf-32")):
        return "utf-8"  # since we could read the declaration as ASCII
    return _WIDER.get(name, name) if _USUAL.fullmatch(name) else None


ACCEPTED = "gzip, deflate"
MAX_LAYERS = 2
_GZIP = zlib.MAX_WBITS | 16


def decompress(packed: bytes, codings: str, limit: int) -> tuple[bytes, bool]:
    """At most `limit` bytes, and whether there was more or the data ended too early. Raises `ToolFailed`."""
    layers = [name for name in (part.strip().lower() for part in codings.split(",")) if name not in ("", "identity")]
    if len(layers) > MAX_LAYERS:
        raise ToolFailed("The page is compressed too many times.")
    is_cut = False
    for coding in reversed(layers):
        if coding in ("gzip", "x-gzip"):
            bits = _GZIP
        elif coding == "deflate":
            # some servers leave out the header that the standard requires
            has_header = len(packed) > 1 and packed[0] & 0x0F == 8 and int.from_bytes(packed[:2]) % 31 == 0
            bits = zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS
        else:
            raise ToolFailed(f"The page is compressed as {coding[:20]!r}, which was not requested.")
        inflater = zlib.decompressobj(bits)
        try:
            plain = inflater.decompress(packed, limit)
        except zlib.error as fault:
            raise ToolFailed(f"The page claims to be compressed as {coding}, but is not.") from fault
        is_whole = inflater.eof and not inflater.unused_data
        is_cut = is_cut or (bool(packed) and not is_whole)
        packed = plain
    return packed[:limit], is_cut or len(packed) > limit


MAX_REDIRECTS = 5
_HEADERS = {
    "User-Agent": "Mozilla/5.0 (compatible; Talaria)",
    "Accept": "text/html, application/xhtml+xml, text/markdown, text/plain, application/json;q=0.9, */*;q=0.8",
    "Accept-Language": "en, *;q=0.5",
    "Accept-Encoding": ACCEPTED,
}


class FetchedPage(msgspec.Struct, frozen=True):
    url: str
    """After redirects."""
    status: int
    media_type: str
    """In lower case; empty if the server does not send one."""
    charset: str
    body: bytes
    """Decompressed."""
    is_cut: bool
    """The page is longer than may be fetched."""

    def text(self) -> str:
        """Call it in a thread, because a large page takes a while."""
        return decode_body(self.body, self.charset)


class Fetch:
    def __init__(
        self,
        settings: WebSettings,
        clock: Clock,
        *,
        lookup: Lookup = system_lookup,
        tls_context: "Callable[[], ssl.SSLContext] | None" = None,
    ) -> None:
        """Raises `BadConfig` for an invalid entry of `allow_private`."""
        self._settings = settings
        self._allowance = parse_allowance(settings.allow_private)
        self._clock = clock
        self._lookup = lookup
        self._tls_context = tls_context
        self._exchange: Exchange | None = None

    async def page(self, url: str) -> FetchedPage:
        """A page that a model asked for. Raises `ToolFailed`."""
        here = parse_url(url)
        async with StallWatch(self._clock, self._settings.timeout_s) as watch:
            for _ in range(MAX_REDIRECTS + 1):
                answer = await self._ask(here, self._allowance, watch)
                if answer.location is None:
                    return await in_thread(partial(_decode_page, here, answer, self._settings.max_bytes))
                there = here.join(answer.location)
                if (here.scheme, there.scheme) == ("https", "http"):
                    raise ToolFailed(
                        f"{here.host} redirects to {there}, which is not secure; "
                        "fetch that address directly if that is acceptable."
                    )
                here = there
        raise ToolFailed(f"{here.host} still redirects after {MAX_REDIRECTS} redirects; giving up.")

    async def call(self, url: str, *, headers: Mapping[str, str], body: bytes | None = None) -> FetchedPage:
        """For an address from the settings, never from a model. It may be private and be sent a key, so redirects are
        not followed. Raises `ToolFailed`.
        """
        here = parse_url(url)
        async with StallWatch(self._clock, self._settings.timeout_s) as watch:
            answer = await self._ask(here, EVERYWHERE, watch, headers, body)
        if answer.location is not None:
            raise ToolFailed(f"{here.host} redirects to another address, which this request may not follow.")
        return await in_thread(partial(_decode_page, here, answer, self._settings.max_bytes))

    async def _ask(
        self,
        url: WebUrl,
        allowed: Allowance,
        watch: StallWatch,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> "FetchResponse":
        from talaria.net import tls  # noqa: PLC0415  (100 ms that only the first page costs)
        from talaria.net.exchange import Exchange, FetchRequest  # noqa: PLC0415

        try:
            async with watch.limit(math.inf):
                addresses = await vet_addresses(url, allowed, self._lookup)
            sent = {**_HEADERS, **(headers or {})}
            request = FetchRequest(url, addresses, sent, "GET" if body is None else "POST", body)
            if self._exchange is None:
                self._exchange = Exchange(self._tls_context or tls.make_tls_context)
            return await self._exchange.ask(request, watch, self._settings.max_bytes)
        except TimeoutError as fault:
            raise ToolFailed(f"{url.host} did not finish its answer within {self._settings.timeout_s:g} s.") from fault


def _decode_page(url: WebUrl, answer: "FetchResponse", limit: int) -> FetchedPage:
    body, is_short = decompress(answer.body, answer.headers.get("Content-Encoding", ""), limit)
    media_type, *parameters = (part.strip() for part in answer.headers.get("Content-Type", "").split(";"))
    said = None
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            said = value.strip().strip("\"'")
            break
    charset = charset_of(body, said)
    return FetchedPage(str(url), answer.status, media_type.lower(), charset, body, answer.is_cut or is_short)
