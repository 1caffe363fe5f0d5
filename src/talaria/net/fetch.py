"""The vetted fetch: pages that a model names, and calls that the operator's settings name.

What is promised for a page: only http and https; every address of the host is checked, and exactly those are dialled
(`lookups.py`, `exchange.py`), again at every redirect; at most `web.max_bytes` after unpacking, `web.timeout_s` in all.
Behind a proxy (`HTTPS_PROXY`) it is the proxy that looks names up and dials. Then addresses in the URL, and names that
are private *here*, are still refused; where the proxy ends up is for the proxy to police.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import ToolFailed
from talaria.net import codings
from talaria.net.addresses import EVERYWHERE, Allowance, allowance
from talaria.net.charsets import charset_of, decoded
from talaria.net.lookups import Lookup, system_lookup, vetted
from talaria.net.stall import StallWatch
from talaria.net.urls import WebUrl, parse
from talaria.net.web_settings import WebSettings
from talaria.waiting import in_thread

if TYPE_CHECKING:
    import ssl

    from talaria.net.exchange import Exchange, FetchAnswer

MAX_REDIRECTS = 5
_HEADERS = {
    "User-Agent": "Mozilla/5.0 (compatible; Talaria)",
    "Accept": "text/html, application/xhtml+xml, text/markdown, text/plain, application/json;q=0.9, */*;q=0.8",
    "Accept-Language": "en, *;q=0.5",
    "Accept-Encoding": codings.ACCEPTED,
}


class Fetched(msgspec.Struct, frozen=True):
    url: str
    """Where it was found in the end."""
    status: int
    media_type: str
    """In lower case; empty if the server does not say."""
    charset: str
    body: bytes
    """Unpacked."""
    is_cut: bool
    """There was more than may be fetched."""

    def text(self) -> str:
        """For a thread: a large page takes a while."""
        return decoded(self.body, self.charset)


class Fetch:
    def __init__(
        self,
        settings: WebSettings,
        clock: Clock,
        *,
        lookup: Lookup = system_lookup,
        tls_context: "Callable[[], ssl.SSLContext] | None" = None,
    ) -> None:
        """Raises `BadConfig` for an entry of `allow_private` that is none."""
        self._settings = settings
        self._allowance = allowance(settings.allow_private)
        self._clock = clock
        self._lookup = lookup
        self._tls_context = tls_context
        self._exchange: Exchange | None = None

    async def page(self, url: str) -> Fetched:
        """What a model asked for. Raises `ToolFailed`."""
        here = parse(url)
        async with StallWatch(self._clock, self._settings.timeout_s) as watch:
            for _ in range(MAX_REDIRECTS + 1):
                answer = await self._ask(here, self._allowance, watch)
                if answer.location is None:
                    return await self._fetched(here, answer)
                here = _onwards(here, answer.location)
        raise ToolFailed(f"{here.host} redirects again after {MAX_REDIRECTS} redirects; it is given up.")

    async def call(self, url: str, *, headers: Mapping[str, str], body: bytes | None = None) -> Fetched:
        """An address from the settings, never from a model: it may be private, and may be sent a key. So it is not
        followed anywhere else. Raises `ToolFailed`.
        """
        here = parse(url)
        async with StallWatch(self._clock, self._settings.timeout_s) as watch:
            answer = await self._ask(here, EVERYWHERE, watch, headers, body)
        if answer.location is not None:
            raise ToolFailed(f"{here.host} redirects elsewhere, where this request may not go.")
        return await self._fetched(here, answer)

    async def _ask(
        self,
        url: WebUrl,
        allowed: Allowance,
        watch: StallWatch,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> "FetchAnswer":
        from talaria.net.exchange import FetchRequest  # noqa: PLC0415  (100 ms that only the first page pays)

        try:
            async with watch.waiting(math.inf):
                addresses = await vetted(url, allowed, self._lookup)
            sent = {**_HEADERS, **(headers or {})}
            request = FetchRequest(url, addresses, sent, "GET" if body is None else "POST", body)
            return await self._loaded().ask(request, watch, self._settings.max_bytes)
        except TimeoutError as fault:
            raise ToolFailed(f"{url.host} did not answer in full within {self._settings.timeout_s:g} s.") from fault

    def _loaded(self) -> "Exchange":
        if self._exchange is None:
            from talaria.net import tls  # noqa: PLC0415
            from talaria.net.exchange import Exchange  # noqa: PLC0415

            self._exchange = Exchange(self._tls_context or tls.context)
        return self._exchange

    async def _fetched(self, url: WebUrl, answer: "FetchAnswer") -> Fetched:
        return await in_thread(lambda: _read(url, answer, self._settings.max_bytes))


def _onwards(here: WebUrl, location: str) -> WebUrl:
    there = here.joined(location)
    if (here.scheme, there.scheme) == ("https", "http"):
        raise ToolFailed(f"{here.host} redirects to {there}, which is not secure; fetch that itself if it will do.")
    return there


def _read(url: WebUrl, answer: "FetchAnswer", limit: int) -> Fetched:
    body, is_short = codings.unpacked(answer.body, answer.headers.get("Content-Encoding", ""), limit)
    media_type, said = _content_type(answer.headers.get("Content-Type", ""))
    return Fetched(str(url), answer.status, media_type, charset_of(body, said), body, answer.is_cut or is_short)


def _content_type(header: str) -> tuple[str, str | None]:
    media_type, *parameters = (part.strip() for part in header.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return media_type.lower(), value.strip().strip("\"'")
    return media_type.lower(), None
