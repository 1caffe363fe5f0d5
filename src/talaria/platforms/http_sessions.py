"""How platforms reach their services: connections, files, and what a failed request means.

The rule behind every failure: an answer that refuses means that nothing was done; no answer leaves that open.
"""

import math
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, BinaryIO

from talaria.core.aio import complete, in_thread
from talaria.net import tls
from talaria.platforms.base import File, NotTaken, PlatformFailure, Refused, Rejected, Unsure

with tls.skip_certificates():
    import aiohttp

CHUNK_BYTES = 1 << 18
NEVER_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)
"""Raised before the request is written."""
_NO_TIMEOUT = aiohttp.ClientTimeout()
_MAX_QUOTE_CHARS = 300


async def load_certificates(url: str = "https:") -> ssl.SSLContext | None:
    """None if the URL is not encrypted. Needed because the contexts that aiohttp makes for itself trust nobody."""
    return await in_thread(tls.make_tls_context) if url.startswith(("https:", "wss:")) else None


@asynccontextmanager
async def open_session(
    trusted: ssl.SSLContext | None, timeout: aiohttp.ClientTimeout = _NO_TIMEOUT
) -> AsyncGenerator[aiohttp.ClientSession]:
    """A session without cookies and without a limit on connections."""
    connector = aiohttp.TCPConnector(ssl=trusted or True, limit=0)
    cookies = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(connector=connector, cookie_jar=cookies, timeout=timeout) as session:
        yield session


@asynccontextmanager
async def open_file(file: File) -> AsyncGenerator[BinaryIO]:
    """Opens a file for upload. Raises `Rejected`."""
    try:
        content = await in_thread(lambda: file.path.open("rb"))
    except OSError as fault:
        raise Rejected(f"{file.name} cannot be read: {fault.strerror or fault}.") from fault
    with content:
        yield content


async def save(chunks: AsyncIterable[bytes], to: Path, max_bytes: int) -> None:
    """Saves a download whole or not at all. Raises `Rejected` once it is too large, whatever size was announced."""
    file = await in_thread(lambda: to.open("wb"))
    try:
        with file:
            await _copy(chunks, file, max_bytes)
    except BaseException:
        await complete(in_thread(lambda: to.unlink(missing_ok=True)))
        raise


async def _copy(chunks: AsyncIterable[bytes], file: IO[bytes], max_bytes: int) -> None:
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > max_bytes:
            raise Rejected(f"The file is larger than {max_bytes:,} bytes.")
        await in_thread(lambda data=chunk: file.write(data))


def explain_no_answer(service: str, fault: Exception) -> PlatformFailure:
    """What it means that a request got no answer. `service`: its name as written in the middle of a sentence."""
    subject = service[:1].upper() + service[1:]
    if isinstance(fault, aiohttp.ClientConnectorCertificateError):
        return Refused(
            f"{subject}'s certificate cannot be verified. If it, or your network, has its own CA, set SSL_CERT_FILE."
        )
    # an idle connection that the other side has closed breaks before the request is written completely
    is_unwritten = "closing transport" in str(fault.__cause__)
    if isinstance(fault, (*NEVER_SENT, aiohttp.InvalidURL)) or is_unwritten:
        reason = "the connection was cut"
        if isinstance(fault, TimeoutError):
            reason = "it took too long"
        elif isinstance(fault, aiohttp.InvalidURL):
            reason = "that is not an address"
        elif isinstance(fault, OSError) and fault.errno is not None and fault.errno > 0:
            reason = os.strerror(fault.errno).lower()
        return NotTaken(f"{subject} cannot be reached: {reason}.")
    if isinstance(fault, TimeoutError):
        return Unsure(f"{subject} did not answer in time.")
    return Unsure(f"The connection to {service} broke before it answered.")


def resolve_doubt(failure: PlatformFailure) -> PlatformFailure:
    """For a request without visible effect: whether it was carried out does not matter, so `Unsure` is `NotTaken`."""
    return NotTaken(str(failure)) if isinstance(failure, Unsure) else failure


def parse_retry_after(header: str) -> float | None:
    """The seconds in a `Retry-After` header."""
    try:
        seconds = float(header)
    except ValueError:
        return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def format_quote(code: str, words: str) -> str:
    """What the service said, on one line."""
    flat = " ".join("".join(char if char.isprintable() else " " for char in words).split())
    return f"{code}: {flat[:_MAX_QUOTE_CHARS]}" if flat else code
