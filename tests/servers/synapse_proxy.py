"""A door to a homeserver on loopback: it passes everything on, writes it down, and misbehaves when told to."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from talaria.testing.servers.chat_service import Loopback, LostAnswer, Refusal, Slow

MAX_CONNECTIONS = 40
"""Synapse lets 50 wait at its socket file."""
_ERRCODES = {
    400: "M_BAD_JSON",
    401: "M_UNKNOWN_TOKEN",
    403: "M_FORBIDDEN",
    404: "M_NOT_FOUND",
    413: "M_TOO_LARGE",
    429: "M_LIMIT_EXCEEDED",
}
_NAMES = {
    r"/rooms/[^/]+/([a-z]+)": "",
    r"/account/(whoami)$": "",
    r"/media/(?:v3/|v1/)?(upload|download)": "",
    r"/keys/([a-z]+)$": "keys_",
    r"/(sync|login|join|sendToDevice|account_data)(?:/|$)": "",
}
"""By what of its path a request is called; the first that fits."""
_PASSED_ON = ("Authorization", "Content-Type")


def name_of(path: str) -> str:
    """`send`, `sync`, `redact`, `typing`, `join`, `upload`, `keys_query`, …"""
    for pattern, prefix in _NAMES.items():
        if found := re.search(pattern, path):
            return prefix + found[1]
    return path.rpartition("/")[2]


class SynapseProxy(Loopback):
    """Open inside `opened`."""

    def __init__(self) -> None:
        super().__init__()
        self.url = ""
        self._port = 0

    @asynccontextmanager
    async def opened(self, homeserver: Path) -> AsyncGenerator[None]:
        connector = aiohttp.UnixConnector(str(homeserver), limit=MAX_CONNECTIONS, force_close=True)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession("http://homeserver", connector=connector, timeout=timeout) as session:
            self._session = session
            app = web.Application(client_max_size=2**30)
            app.router.add_route("*", "/{path:.*}", self._pass)
            self._port = await self._open(app, self._port, shutdown_s=0, cancels=True)
            self.url = f"http://127.0.0.1:{self._port}"
            try:
                yield
            finally:
                await session.close()  # else a long poll would be waited for
                await self._runner.cleanup()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        fault = self._record_call(name_of(request.path), _call(request, body))
        if isinstance(fault, Refusal):
            return _refused(fault)
        if isinstance(fault, Slow):
            await asyncio.sleep(fault.seconds)
        answer = await self._answered(request, body)
        return await _cut(request) if isinstance(fault, LostAnswer) else answer

    async def _answered(self, request: web.Request, body: bytes) -> web.Response:
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        headers |= {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "http"}  # a socket file has no address
        url = request.url.relative()
        async with self._session.request(
            request.method, url, data=body, headers=headers, allow_redirects=False
        ) as answer:
            content = await answer.read()
        kept = {"Content-Type": answer.headers.get("Content-Type", "application/json")}
        return web.Response(status=answer.status, body=content, headers=kept)


async def _cut(request: web.Request) -> web.StreamResponse:
    """An answer that ends after its first byte: one that never begins, aiohttp asks for again by itself."""
    answer = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
    await answer.prepare(request)
    await answer.write(b"{")
    if request.transport is not None:
        request.transport.close()
    return answer


def _call(request: web.Request, body: bytes) -> Mapping[str, Any]:
    given: dict[str, Any] = {"path": request.path, "query": dict(request.query)}
    try:
        given["body"] = json.loads(body)
    except ValueError:
        given["body"] = body
    return given


def _refused(refusal: Refusal) -> web.Response:
    answer: dict[str, Any] = {
        "errcode": _ERRCODES.get(refusal.status, "M_UNKNOWN"),
        "error": refusal.words or f"refused with {refusal.status}",
    }
    if refusal.retry_after_s is not None:
        answer["retry_after_ms"] = round(refusal.retry_after_s * 1000)
    return web.json_response({**answer, **refusal.extra}, status=refusal.status)
