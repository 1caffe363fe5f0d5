"""A bare ASGI server that hands on what the model server streams, as it comes; whoever sends no body is told nothing.

`python -m benchmarks.floors.relay ADDRESS FOLDER WHO`: nobody is asked who they are, and nothing is written.
"""

import asyncio
import json
import socket
import sys
from typing import Any

import aiohttp
import uvicorn

from benchmarks.chat_service import Line
from benchmarks.serving import serve

_HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}


class Relay:
    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = f"{url}/chat/completions"
        self._session = session

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "GET":
            await send(_HEAD)
            await send({"type": "http.response.body", "body": b": watching\n\n", "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        body, is_whole = b"", False
        while not is_whole:
            event = await receive()
            body += event.get("body", b"")
            is_whole = not event.get("more_body", False)
        request = json.dumps({"messages": json.loads(body)["messages"], "stream": True}).encode()
        async with self._session.post(self._url, data=request) as response:
            await send(_HEAD)
            async for piece in response.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def main(url: str) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        config = uvicorn.Config(
            Relay(url, session), http="h11", ws="none", lifespan="off", log_config=None, access_log=False
        )
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # else it is slow to send
        listening.bind(("127.0.0.1", 0))
        listening.listen(512)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await serve(Line(lambda _: None), listening.getsockname()[1])
        server.should_exit = server.force_exit = True
        await serving


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
