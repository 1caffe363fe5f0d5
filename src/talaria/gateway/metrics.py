"""Monitoring on this machine only, without a token: `/metrics` in the format of Prometheus, and `/health`."""

import asyncio
from collections.abc import Callable

from talaria.core.errors import OperatorError
from talaria.gateway.monitor import GatewayMonitor
from talaria.net import tls

with tls.skip_certificates():
    from aiohttp import web

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
HOST = "127.0.0.1"
_CLOSING_S = 1.0


class MetricsServer:
    def __init__(self, monitor: GatewayMonitor) -> None:
        self._monitor = monitor

    async def serve(self, port: int, on_start: Callable[[int], None]) -> None:
        """Until cancelled; on any free port if it is 0, of which `on_start` is told. Raises `OperatorError`."""
        server = web.Server(self._answer, access_log=None, lingering_time=_CLOSING_S)
        try:
            sockets = await asyncio.get_running_loop().create_server(server, HOST, port)
        except OSError as fault:
            raise OperatorError(
                f"Cannot listen on {HOST}, port {port}: {fault.strerror}. Set gateway.metrics_port to another."
            ) from fault
        try:
            on_start(sockets.sockets[0].getsockname()[1])
            await asyncio.Event().wait()
        finally:
            sockets.close()
            await server.shutdown(_CLOSING_S)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if (request.method, request.path) == ("GET", "/health"):
            complaints = list(self._monitor.complaints())
            return web.json_response(
                {"ok": not complaints, "complaints": complaints}, status=503 if complaints else 200
            )
        if (request.method, request.path) != ("GET", "/metrics"):
            return web.Response(status=404)
        return web.Response(text=await self._monitor.metrics(), headers={"Content-Type": CONTENT_TYPE})
