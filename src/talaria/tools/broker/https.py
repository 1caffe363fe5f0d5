"""Git over https: the TLS of the sandbox ends here, each request is judged by its path, and what may pass gets the
credential on its way out. Each connection carries one request, so nothing depends on how somebody else would split a
stream into requests.
"""

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from ipaddress import ip_address
from socket import socket
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

import h11
import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from talaria.core.errors import Denied
from talaria.net.proxy_requests import ProxyRefusal
from talaria.net.urls import WebUrl
from talaria.tools.broker.commits import OddPush, PushHead
from talaria.tools.broker.relay import CHUNK_BYTES, ESTABLISHED, close_writer
from talaria.tools.broker.remotes import Remote

if TYPE_CHECKING:
    from talaria.tools.broker.broker import CredentialBroker

MAX_HEAD_BYTES = 32 << 10
HEAD_S = 30.0
IDLE_S = 600.0
VALIDITY = timedelta(days=30)
_END = b"\r\n\r\n"
_PASSED_ON = frozenset((b"accept", b"accept-encoding", b"content-type", b"content-encoding", b"git-protocol"))
"""To other repositories on a host that the person has allowed."""
_USER_AGENT = "git/2.39"
_PROTOCOL = re.compile(rb"version=[0-9]")
_UNAUTHORIZED = re.compile(rb"HTTP/1\.[01] 401\b")


class GitRequest(msgspec.Struct, frozen=True):
    remote: Remote | None
    """None: it is about another repository on the same host."""
    service: str
    """`git-upload-pack`, `git-receive-pack`, or empty for any other request."""
    is_post: bool


def parse_target(method: str, target: str, remotes: list[Remote]) -> GitRequest:
    """What a request is about; each form that git uses is compared as a whole."""
    for remote in remotes:
        for service in ("git-upload-pack", "git-receive-pack"):
            if method == "GET" and target == f"{remote.path}/info/refs?service={service}":
                return GitRequest(remote, service, is_post=False)
            if method == "POST" and target == f"{remote.path}/{service}":
                return GitRequest(remote, service, is_post=True)
    return GitRequest(None, "", is_post=method != "GET")


async def serve_git(
    client: socket,
    dial: Callable[[], Awaitable[socket]],
    url: WebUrl,
    broker: "CredentialBroker",
    certificate: ssl.SSLContext,
    trust: ssl.SSLContext,
) -> None:
    """`certificate` is shown to git; `trust` is used towards the server."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(client, ESTABLISHED)
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    try:
        async with asyncio.timeout(HEAD_S):
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, client, ssl=certificate)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await _answer(reader, writer, dial, url, broker, trust)
        except (ProxyRefusal, Denied, OddPush) as refusal:
            if isinstance(refusal, OddPush):
                broker.report(url.host, str(refusal))  # git does not show why
            status = refusal.status if isinstance(refusal, ProxyRefusal) else 403
            body = f"{refusal}\n".encode("utf-8", "replace")
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
        finally:
            await close_writer(writer)
    except (OSError, EOFError, TimeoutError, h11.ProtocolError):
        return  # the client has gone, or is not git


async def _answer(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    dial: Callable[[], Awaitable[socket]],
    url: WebUrl,
    broker: "CredentialBroker",
    trust: ssl.SSLContext,
) -> None:
    received = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
    async with asyncio.timeout(HEAD_S):
        request = await _next_event(received, reader)
    if not isinstance(request, h11.Request):
        return
    wanted = parse_target(request.method.decode(), request.target.decode(), broker.list_remotes(url))
    await broker.judge(wanted, url)
    if received.they_are_waiting_for_100_continue:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    head = None
    if wanted.remote is not None and wanted.is_post and wanted.service == "git-receive-pack":
        if any(name == b"content-encoding" for name, _ in request.headers):
            raise OddPush("it is compressed")
        head = PushHead()
        while not head.is_decided and received.their_state is h11.SEND_BODY:
            event = await _next_event(received, reader)
            if isinstance(event, h11.Data):
                head.feed(bytes(event.data))
        head.end()
        if head.updates:
            await broker.judge_push(wanted.remote, head)
    authorization = await broker.authorize(wanted.remote) if wanted.remote is not None else None
    async with _connect(await dial(), url.host, trust) as (answer, upstream):
        sent = h11.Connection(h11.CLIENT)
        upstream.write(sent.send(_make_request(request, wanted, url, authorization)) or b"")
        if head is not None:
            upstream.write(sent.send(h11.Data(data=bytes(head.received))) or b"")
        while received.their_state is h11.SEND_BODY:
            event = await _next_event(received, reader)
            if isinstance(event, h11.Data) and wanted.is_post:
                upstream.write(sent.send(event) or b"")
                await upstream.drain()
        upstream.write(sent.send(h11.EndOfMessage()) or b"")
        chunk = await _read_head(answer)
        if wanted.remote is not None and _UNAUTHORIZED.match(chunk):
            broker.forget(wanted.remote)
        while chunk:
            writer.write(chunk)
            await writer.drain()
            chunk = await _read(answer)


def _make_request(request: h11.Request, wanted: GitRequest, url: WebUrl, authorization: str | None) -> h11.Request:
    """Git's own requests keep only what git needs: that leaves no room to tell the server anything else."""
    place = f"[{url.host}]" if ":" in url.host else url.host
    headers = [("Host", place if url.port == 443 else f"{place}:{url.port}"), ("User-Agent", _USER_AGENT)]
    given = dict(request.headers)
    if wanted.is_post:
        named = [name for name in (b"transfer-encoding", b"content-length") if name in given]
        framing = named[:1]  # the server must not have to guess where it ends
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


async def _next_event(connection: h11.Connection, reader: asyncio.StreamReader) -> object:
    while (event := connection.next_event()) is h11.NEED_DATA:
        async with asyncio.timeout(IDLE_S):
            connection.receive_data(await reader.read(CHUNK_BYTES))
    return event


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    """The head of the answer, changed to say that the connection ends after it. Raises `ProxyRefusal`."""
    received = b""
    while _END not in received and len(received) < MAX_HEAD_BYTES and (chunk := await _read(reader)):
        received += chunk
    head, end, rest = received.partition(_END)
    if not end:
        raise ProxyRefusal(502, "The server did not answer with HTTP.")
    kept = [line for line in head.split(b"\r\n") if not line.lower().startswith((b"connection:", b"keep-alive:"))]
    return b"\r\n".join((*kept, b"Connection: close")) + _END + rest


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Empty: the server has closed the connection. Some do so without the goodbye that TLS asks for."""
    try:
        async with asyncio.timeout(IDLE_S):
            return await reader.read(CHUNK_BYTES)
    except (ssl.SSLError, ConnectionError):
        return b""


@asynccontextmanager
async def _connect(
    upstream: socket, host: str, trust: ssl.SSLContext
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Raises `ProxyRefusal`."""
    try:
        async with asyncio.timeout(HEAD_S):
            reader, writer = await asyncio.open_connection(
                sock=upstream, ssl=trust, server_hostname=host, limit=CHUNK_BYTES
            )
    except (OSError, TimeoutError) as fault:
        upstream.close()
        reason = getattr(fault, "verify_message", "") or getattr(fault, "reason", "") or str(fault) or "no answer"
        raise ProxyRefusal(502, f"{host} cannot be trusted or does not answer: {reason}.") from fault
    try:
        yield reader, writer
    finally:
        await close_writer(writer)


class SessionAuthority:
    """A certificate authority of one session, trusted by git in its sandbox and by nobody else. Its key never leaves
    this process."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Talaria, this session only")])
        self._certificate = (
            self._build(self._name, self._key.public_key(), is_authority=True)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self._contexts: dict[str, ssl.SSLContext] = {}

    @property
    def pem(self) -> bytes:
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def context_for(self, host: str) -> ssl.SSLContext:
        """The TLS context of a server with this name or address. Made once for each."""
        if host in self._contexts:
            return self._contexts[host]
        key = ec.generate_private_key(ec.SECP256R1())
        name: x509.GeneralName
        try:
            name = x509.IPAddress(ip_address(host))
        except ValueError:
            name = x509.DNSName(host)
        certificate = (
            self._build(x509.Name([]), key.public_key(), is_authority=False)
            .add_extension(x509.SubjectAlternativeName([name]), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        encoding = serialization.Encoding.PEM
        private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        with NamedTemporaryFile(prefix="talaria-") as file:  # OpenSSL reads only from a file; nobody else can read it
            file.write(private + certificate.public_bytes(encoding) + self.pem)
            file.flush()
            context.load_cert_chain(file.name)
        self._contexts[host] = context
        return context

    def _build(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, is_authority: bool
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        usage = x509.KeyUsage(
            digital_signature=not is_authority,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=is_authority,
            crl_sign=is_authority,
            encipher_only=False,
            decipher_only=False,
        )
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + VALIDITY)
            .add_extension(usage, critical=True)
        )
