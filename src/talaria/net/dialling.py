"""From a request whose addresses were checked to an open socket; nothing but those addresses is dialled.

Behind a proxy of the environment (`HTTPS_PROXY`) it is the proxy that is dialled, and that looks names up; what is
private *here* is refused all the same, before it comes to this.
"""

import asyncio
import os
import re
import socket
from urllib.parse import unquote, urlsplit

import msgspec

from talaria.core.errors import BadConfig, ToolFailed
from talaria.net.addresses import EVERYWHERE
from talaria.net.lookups import Lookup, vetted
from talaria.net.proxies import proxy_for
from talaria.net.proxy_requests import ProxyRequest
from talaria.net.stall import StallWatch
from talaria.net.urls import WebUrl, parse

ATTEMPT_S = 10.0
MAX_ATTEMPTS = 6
"""A host may have many addresses."""
MAX_ANSWER_BYTES = 16 << 10
_TAKEN = re.compile(rb"HTTP/1\.[01] 2[0-9][0-9]\b")


class Proxy(msgspec.Struct, frozen=True):
    """One that stands between us and the world."""

    url: WebUrl
    credential: str | None


async def reach(request: ProxyRequest, addresses: tuple[str, ...], lookup: Lookup, watch: StallWatch) -> socket.socket:
    """Where the request's head was told: its body is due, or the tunnel begins. Raises `ToolFailed` and `OSError`."""
    url = request.url
    proxy = _proxy(url)
    if proxy is not None:
        url = proxy.url
        async with watch.waiting(ATTEMPT_S):
            addresses = await vetted(url, EVERYWHERE, lookup)
    reason = f"No host is called {url.host}."
    for address in addresses[:MAX_ATTEMPTS]:
        try:
            return await _reached((address, url.port), request, proxy, watch)
        except OSError as fault:
            why = os.strerror(fault.errno) if fault.errno else "no answer"
            reason = f"{url.host} cannot be reached: {why}."
    raise ToolFailed(reason)


def _proxy(url: WebUrl) -> Proxy | None:
    try:
        named = proxy_for(str(url))
    except BadConfig as fault:
        raise ToolFailed(str(fault)) from fault
    if named is None:
        return None
    parts = urlsplit(named)
    if parts.scheme != "http":
        raise ToolFailed("The proxy of this machine is spoken to by https, which cannot be done from here.")
    credential = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
    return Proxy(parse(f"http://{parts.netloc.rpartition('@')[2]}/"), credential)


async def _reached(
    place: tuple[str, int], request: ProxyRequest, proxy: Proxy | None, watch: StallWatch
) -> socket.socket:
    upstream = socket.socket(socket.AF_INET6 if ":" in place[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        upstream.setblocking(False)
        async with watch.waiting(ATTEMPT_S):
            await asyncio.get_running_loop().sock_connect(upstream, place)
            await _introduce(upstream, request, proxy)
    except BaseException:
        upstream.close()
        raise
    return upstream


async def _introduce(upstream: socket.socket, request: ProxyRequest, proxy: Proxy | None) -> None:
    loop = asyncio.get_running_loop()
    if proxy is not None:
        await loop.sock_sendall(upstream, request.head(proxy.credential, is_for_proxy=True))
        if request.is_tunnel and not _TAKEN.match(await _answer(upstream)):
            raise ToolFailed(f"The proxy did not let the request to {request.url.host} pass.")
    elif not request.is_tunnel:
        await loop.sock_sendall(upstream, request.head())


async def _answer(upstream: socket.socket) -> bytes:
    """The head of it, sign by sign: what follows is for the tunnel."""
    loop = asyncio.get_running_loop()
    head = bytearray()
    while not head.endswith(b"\r\n\r\n") and len(head) < MAX_ANSWER_BYTES:
        sign = await loop.sock_recv(upstream, 1)
        if not sign:
            break
        head += sign
    return bytes(head)
