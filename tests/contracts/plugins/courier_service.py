"""The server that the sample plugin `courier` speaks to: on loopback, with posts to read and calls to look at."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(16)


class CourierService:
    token = "courier-token-of-the-bot"
    url: str

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.got: list[str] = []
        """Posts that the adapter says it has."""
        self.typing: list[str] = []
        self.refusals: list[web.Response | None] = []
        """For the next calls; None: the connection is cut after the call had its effect."""
        self._lines: list[web.WebSocketResponse] = []
        self._ids = iter(range(1, 10**6))

    def called(self, path: str) -> list[dict[str, Any]]:
        return [facts for name, facts in self.calls if name == path]

    async def post(self, text: str, **facts: Any) -> str:
        """Somebody says something."""
        id = facts.pop("id", None) or f"p{next(self._ids)}"
        told = {"id": id, "room": "r1", "type": "dm", "user": "anna", "text": text, **facts}
        for line in self._lines:
            await line.send_json(told)
        return id

    async def hang_up(self) -> None:
        for line in self._lines:
            await line.close()

    async def _me(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("X-Token") != self.token:
            return web.json_response({}, status=401)
        return web.json_response({"id": "bot"})

    async def _live(self, request: web.Request) -> web.StreamResponse:
        line = web.WebSocketResponse()
        await line.prepare(request)
        self._lines.append(line)
        async for message in line:
            told = message.json()
            self.got.extend([told["got"]] if "got" in told else [])
            self.typing.extend([told["typing"]] if "typing" in told else [])
        self._lines.remove(line)
        return line

    async def _call(self, request: web.Request) -> web.StreamResponse:
        self.calls.append((request.match_info["path"], await request.json()))
        if not self.refusals:
            return web.json_response({"id": f"m{next(self._ids)}"})
        refusal = self.refusals.pop(0)
        if refusal is None and request.transport is not None:
            request.transport.close()
        return refusal or web.Response()

    async def _file(self, request: web.Request) -> web.StreamResponse:
        is_picture = request.match_info["name"].endswith(".png")
        return web.Response(body=PICTURE if is_picture else b"page", content_type="image/png" if is_picture else None)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["CourierService"]:
        app = web.Application()
        app.add_routes(
            [
                web.get("/api/me", self._me),
                web.get("/live", self._live),
                web.get("/files/{name}", self._file),
                web.post("/api/{path}", self._call),
            ]
        )
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await self.hang_up()
            await runner.cleanup()
