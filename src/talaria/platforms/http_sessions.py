"""How platforms reach their services: connections, and files on their way over them."""

import ssl
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, BinaryIO

from talaria.core.aio import complete, in_thread
from talaria.net import tls
from talaria.platforms.base import File, Rejected

with tls.skip_certificates():
    import aiohttp

PIECE_BYTES = 1 << 18
_NO_TIMEOUT = aiohttp.ClientTimeout()


async def certificates(url: str = "https:") -> ssl.SSLContext | None:
    """Whom to trust there; None: there is no encryption. The contexts that aiohttp makes for itself trust nobody."""
    return await in_thread(tls.make_tls_context) if url.startswith(("https:", "wss:")) else None


@asynccontextmanager
async def open_session(
    trusted: ssl.SSLContext | None, timeout: aiohttp.ClientTimeout = _NO_TIMEOUT
) -> AsyncGenerator[aiohttp.ClientSession]:
    """Without cookies. How much is done at once is not decided here."""
    connector = aiohttp.TCPConnector(ssl=trusted or True, limit=0)
    cookies = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(connector=connector, cookie_jar=cookies, timeout=timeout) as session:
        yield session


@asynccontextmanager
async def open_file(file: File) -> AsyncGenerator[BinaryIO]:
    """A file to be sent. Raises `Rejected`."""
    try:
        content = await in_thread(lambda: file.path.open("rb"))
    except OSError as fault:
        raise Rejected(f"{file.name} cannot be read: {fault.strerror or fault}.") from fault
    with content:
        yield content


async def save(pieces: AsyncIterable[bytes], to: Path, max_bytes: int) -> None:
    """A file that comes: it is whole, or it is not there. Raises `Rejected` as soon as it is too much, whatever size
    was announced."""
    file = await in_thread(lambda: to.open("wb"))
    try:
        with file:
            await _copy(pieces, file, max_bytes)
    except BaseException:
        await complete(in_thread(lambda: to.unlink(missing_ok=True)))
        raise


async def _copy(pieces: AsyncIterable[bytes], file: IO[bytes], max_bytes: int) -> None:
    size = 0
    async for piece in pieces:
        size += len(piece)
        if size > max_bytes:
            raise Rejected(f"The file is larger than {max_bytes:,} bytes.")
        await in_thread(lambda part=piece: file.write(part))
