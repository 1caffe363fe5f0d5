"""Git over https: the TLS of the sandbox ends here, each request is judged by its path, and what may pass gets the
credential on its way out. One request for each connection, so nothing depends on how somebody else would split a
stream into requests.
"""

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from socket import socket

import h11
import msgspec

from talaria.core.errors import Denied
from talaria.net.proxy_requests import TurnedDown
from talaria.net.urls import WebUrl
from talaria.tools.broker.commits import OddPush, PushHead
from talaria.tools.broker.relay import CHUNK_BYTES, close_writer
from talaria.tools.broker.remotes import Remote

MAX_HEAD_BYTES = 32 << 10
HEAD_S = 30.0
IDLE_S = 600.0
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_END = b"\r\n\r\n"
_PASSED_ON = frozenset((b"accept", b"accept-encoding", b"content-type", b"content-encoding", b"git-protocol"))
"""To other repositories, on a host that the person has allowed."""
_USER_AGENT = "git/2.39"
_PROTOCOL = re.compile(rb"version=[0-9]")
_UNAUTHORIZED = re.compile(rb"HTTP/1\.[01] 401\b")

Service = str


class GitRequest(msgspec.Struct, frozen=True):
    remote: Remote | None
    """None: of another repository on the same host."""
    service: Service
    """`git-upload-pack` or `git-receive-pack`, or nothing of the kind."""
    is_post: bool


class Handling(msgspec.Struct, frozen=True):
    """What the broker decides about one host."""

    url: WebUrl
    judge: Callable[[GitRequest], Awaitable[None]]
    """Before anything goes out. Raises `Denied`."""
    judge_push: Callable[[Remote, PushHead], Awaitable[None]]
    """Raises `Denied`."""
    authorize: Callable[[Remote], Awaitable[str | None]]
    """The value of the header."""
    forget: Callable[[Remote], None]
    """The server wants another one."""
    remotes: Callable[[], list[Remote]]
    refused: Callable[[str], None]
    """A push was not passed on; git does not show why."""
    context: ssl.SSLContext
    """Towards the server."""


async def serve_git(
    client: socket, certificate: ssl.SSLContext, dial: Callable[[], Awaitable[socket]], handling: Handling
) -> None:
    await asyncio.get_running_loop().sock_sendall(client, _ESTABLISHED)
    try:
        async with _tls_from(client, certificate) as (reader, writer):
            try:
                await _answer(reader, writer, dial, handling)
            except (TurnedDown, Denied, OddPush) as refusal:
                if isinstance(refusal, OddPush):
                    handling.refused(str(refusal))
                status = refusal.status if isinstance(refusal, TurnedDown) else 403
                await _refuse(writer, status, str(refusal))
    except (OSError, EOFError, TimeoutError, h11.ProtocolError):
        return  # the client has gone, or is none of git's


def parse_target(method: str, target: str, remotes: list[Remote]) -> GitRequest:
    """What a request is about; each form of git's is compared as a whole."""
    for remote in remotes:
        for service in ("git-upload-pack", "git-receive-pack"):
            if method == "GET" and target == f"{remote.path}/info/refs?service={service}":
                return GitRequest(remote, service, is_post=False)
            if method == "POST" and target == f"{remote.path}/{service}":
                return GitRequest(remote, service, is_post=True)
    return GitRequest(None, "", is_post=method != "GET")


async def _answer(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    dial: Callable[[], Awaitable[socket]],
    handling: Handling,
) -> None:
    heard = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
    async with asyncio.timeout(HEAD_S):
        request = await _next_event(heard, reader)
    if not isinstance(request, h11.Request):
        return
    method, target = request.method.decode(), request.target.decode()
    wanted = parse_target(method, target, handling.remotes())
    await handling.judge(wanted)
    if heard.they_are_waiting_for_100_continue:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    head = None
    if wanted.remote is not None and wanted.is_post and wanted.service == "git-receive-pack":
        head = await _read_push(request, heard, reader)
        if head.updates:
            await handling.judge_push(wanted.remote, head)
    authorization = await handling.authorize(wanted.remote) if wanted.remote is not None else None
    async with _tls_to(await dial(), handling) as (answer, upstream):
        said = h11.Connection(h11.CLIENT)
        upstream.write(said.send(_request(request, wanted, handling.url, authorization)) or b"")
        if head is not None:
            upstream.write(said.send(h11.Data(data=bytes(head.received))) or b"")
        while heard.their_state is h11.SEND_BODY:
            event = await _next_event(heard, reader)
            if isinstance(event, h11.Data) and wanted.is_post:
                upstream.write(said.send(event) or b"")
                await upstream.drain()
        upstream.write(said.send(h11.EndOfMessage()) or b"")
        chunk = await _read_head(answer)
        if wanted.remote is not None and _UNAUTHORIZED.match(chunk):
            handling.forget(wanted.remote)
        while chunk:
            writer.write(chunk)
            await writer.drain()
            chunk = await _read(answer)


async def _read_push(request: h11.Request, heard: h11.Connection, reader: asyncio.StreamReader) -> PushHead:
    if any(name == b"content-encoding" for name, _ in request.headers):
        raise OddPush("it is compressed")
    head = PushHead()
    while not head.is_decided and heard.their_state is h11.SEND_BODY:
        event = await _next_event(heard, reader)
        if isinstance(event, h11.Data):
            head.feed(bytes(event.data))
    head.end()
    return head


def _request(request: h11.Request, wanted: GitRequest, url: WebUrl, authorization: str | None) -> h11.Request:
    """Of git's own requests only what git needs: there is no room in them to tell the server anything else."""
    place = f"[{url.host}]" if ":" in url.host else url.host
    headers = [("Host", place if url.port == 443 else f"{place}:{url.port}"), ("User-Agent", _USER_AGENT)]
    given = dict(request.headers)
    if wanted.is_post:
        told = [name for name in (b"transfer-encoding", b"content-length") if name in given]
        framing = told[:1]  # where it ends is not for servers to guess
        headers += [(name.decode(), given[name].decode()) for name in framing]
    if wanted.remote is None:
        headers += [(name.decode(), value.decode("latin-1")) for name, value in given.items() if name in _PASSED_ON]
    else:
        headers += [("Accept", "*/*"), ("Accept-Encoding", "gzip")]
        if _PROTOCOL.fullmatch(given.get(b"git-protocol", b"")):
            headers.append(("Git-Protocol", given[b"git-protocol"].decode()))
        if wanted.is_post:
            headers.append(("Content-Type", f"application/x-{wanted.service}-request"))
        if wanted.is_post and given.get(b"content-encoding") == b"gzip":
            headers.append(("Content-Encoding", "gzip"))
    if authorization is not None:
        headers.append(("Authorization", authorization))
    headers.append(("Connection", "close"))
    return h11.Request(method=request.method, target=request.target, headers=headers)


async def _next_event(heard: h11.Connection, reader: asyncio.StreamReader) -> object:
    while (event := heard.next_event()) is h11.NEED_DATA:
        async with asyncio.timeout(IDLE_S):
            heard.receive_data(await reader.read(CHUNK_BYTES))
    return event


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    """Of the answer: says that nothing follows it on this connection. Raises `TurnedDown`."""
    received = b""
    while _END not in received and len(received) < MAX_HEAD_BYTES and (chunk := await _read(reader)):
        received += chunk
    head, end, rest = received.partition(_END)
    if not end:
        raise TurnedDown(502, "The server did not answer by HTTP.")
    kept = [line for line in head.split(b"\r\n") if not line.lower().startswith((b"connection:", b"keep-alive:"))]
    return b"\r\n".join((*kept, b"Connection: close")) + _END + rest


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Empty: the server has ended. Some do so without saying good-bye in TLS."""
    try:
        async with asyncio.timeout(IDLE_S):
            return await reader.read(CHUNK_BYTES)
    except (ssl.SSLError, ConnectionError):
        return b""


async def _refuse(writer: asyncio.StreamWriter, status: int, sentence: str) -> None:
    body = f"{sentence}\n".encode("utf-8", "replace")
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()


@asynccontextmanager
async def _tls_from(
    client: socket, certificate: ssl.SSLContext
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    async with asyncio.timeout(HEAD_S):
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, client, ssl=certificate)
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    try:
        yield reader, writer
    finally:
        await close_writer(writer)


@asynccontextmanager
async def _tls_to(
    upstream: socket, handling: Handling
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Raises `TurnedDown`."""
    host = handling.url.host
    try:
        async with asyncio.timeout(HEAD_S):
            reader, writer = await asyncio.open_connection(
                sock=upstream, ssl=handling.context, server_hostname=host, limit=CHUNK_BYTES
            )
    except (OSError, TimeoutError) as fault:
        upstream.close()
        reason = getattr(fault, "verify_message", "") or getattr(fault, "reason", "") or str(fault) or "no answer"
        raise TurnedDown(502, f"{host} cannot be trusted or does not answer: {reason}.") from fault
    try:
        yield reader, writer
    finally:
        await close_writer(writer)
