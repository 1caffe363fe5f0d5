"""Sockets of this machine that commands reach, without a sandbox: a second name of the file is what they would see."""

import asyncio
import os
import resource
import socket
from pathlib import Path

from talaria.tools.sandbox.ports import Ports


async def test_a_socket_is_served_again_after_a_moment_without_free_descriptors(tmp_path: Path) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"welcome")
        writer.close()

    async def show(place: Path, _: Path) -> str:
        os.link(place, tmp_path / "inside")
        return ""

    async def hide(_: Path) -> str:
        return ""

    async def ask() -> bytes:
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, str(tmp_path / "inside"))
            return await asyncio.get_running_loop().sock_recv(client, 100)

    ports = Ports(lambda: None, show, hide)
    async with await asyncio.start_unix_server(greet, tmp_path / "service"):
        await ports.let_in_socket(tmp_path / "service")
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        waiting = asyncio.create_task(ask())
        await asyncio.sleep(0)  # it has its descriptor; whoever accepts gets none
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        try:
            for _ in range(10):
                await asyncio.sleep(0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert await waiting == b"welcome"
        assert await ask() == b"welcome"
        await ports.aclose()
