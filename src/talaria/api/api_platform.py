"""The HTTP API as a platform of the gateway: its connection is the server that listens. Messages do not come through
`receive`: each request hands in its own, and waits until that is on the disk."""
# ruff: noqa: ARG002  (nothing is sent to programs: they watch)

import asyncio
import hashlib
import logging
import resource
import socket
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn

from talaria.api.api_requests import ApiRequests
from talaria.api.api_server import ApiServer, Monitor
from talaria.api.api_settings import ApiSettings
from talaria.api.api_tokens import SERVER_KEY_NAME, digest_of
from talaria.api.file_links import FileLinks, read_or_make_key
from talaria.api.operations import OPERATIONS
from talaria.api.sent_content import Uploads
from talaria.core.aio import in_thread
from talaria.core.clock import Clock
from talaria.core.ids import SessionId
from talaria.core.secret import NO_SECRET
from talaria.gateway.service import Gateway
from talaria.platforms.base import (
    Address,
    Attachment,
    Batch,
    Capabilities,
    ChatInfo,
    Kit,
    Outbound,
    Press,
    Refused,
    Rejected,
    SentId,
)
from talaria.store.api_ports import API, ApiToken
from talaria.store.base import Store

PULSE_S = 20.0
CLOSING_S = 3
MAX_CONNECTIONS = 4096
OPEN_FILES_SHARE = 2
"""Connections may take one in so many of the files that this process may open: turns need some, too."""
BACKLOG = 512
STARTED_LOOK_S = 0.01

log = logging.getLogger(__name__)


class ApiPlatform:
    name = API
    capabilities = Capabilities(max_chars=1_000_000, max_upload_bytes=0, pulse_s=PULSE_S)

    def __init__(self, account: str, uploads: Uploads, clock: Clock) -> None:
        self.account = account
        self._uploads = uploads
        self._clock = clock
        self.port = 0
        """Where it listens."""
        self.url = ""
        """Under which programs on this machine reach it."""
        self.has_ended = asyncio.Event()

    async def receive(self, cursor: str | None) -> AsyncGenerator[Batch]:
        """Nothing but the sign that the server is there."""
        while not self.has_ended.is_set():
            yield Batch()
            await self._clock.sleep(PULSE_S)

    async def acknowledge(self, batch: Batch) -> None:
        pass

    async def send(self, message: Outbound) -> SentId:
        raise Rejected("Nothing can be sent to the API: programs ask, and read the answers.")

    async def edit(self, sent: SentId, message: Outbound) -> None:
        raise Rejected("Nothing can be sent to the API.")

    async def delete(self, sent: SentId, where: Address) -> None: ...
    async def show_typing(self, where: Address) -> None: ...
    async def react(self, where: Address, message_id: str, emoji: str) -> None: ...
    async def answer(self, press: Press, text: str) -> None: ...
    async def fetch(self, attachment: Attachment, to: Path, max_bytes: int) -> None:
        content = await in_thread(lambda: self._uploads.read(attachment.ref, max_bytes))
        await in_thread(lambda: to.write_bytes(content))

    async def chat_info(self, where: Address) -> ChatInfo:
        return ChatInfo(where, "dm", where.chat)

    async def create_thread(self, where: Address, name: str) -> Address | None:
        return None

    async def offer_commands(self, menu: Sequence[tuple[str, str]]) -> None: ...


class _Server(uvicorn.Server):
    """The gateway's own handlers of signals stay."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@asynccontextmanager
async def open_api(
    settings: ApiSettings,
    kit: Kit,
    gateway: Gateway,
    monitor: Monitor,
    remove_files: Callable[[SessionId], None],
) -> AsyncGenerator[ApiPlatform]:
    """Listens until the end of the context. Raises `Refused`."""
    folder = kit.home
    key = await in_thread(lambda: read_or_make_key(folder / "link.key"))
    uploads = Uploads(folder / "uploads")
    keep_s = gateway.state.settings.keep_days * 24 * 3600
    await in_thread(lambda: uploads.prune(kit.clock.now() - keep_s))
    await _keep_server_key(settings, gateway.state.host.store, kit.clock)
    await gateway.state.gatekeeper.refresh()
    account = hashlib.sha256(key).hexdigest()[:16]  # tells homes apart, whatever their ports and folders
    platform = ApiPlatform(account, uploads, kit.clock)
    server = ApiServer(
        settings,
        ApiRequests(gateway, platform),
        OPERATIONS,
        links=FileLinks(key),
        uploads=uploads,
        monitor=monitor,
        remove_files=remove_files,
    )
    listening = _listen(settings)
    config = uvicorn.Config(
        server,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=settings.behind_proxy,
        limit_concurrency=count_allowed_connections(),
        timeout_graceful_shutdown=CLOSING_S,
        ssl_certfile=settings.tls_cert or None,
        ssl_keyfile=settings.tls_key or None,
    )
    try:
        config.load()
    except OSError as fault:
        listening.close()
        raise Refused(f"api.tls_cert or api.tls_key cannot be read: {fault.strerror or fault}.") from fault
    http = _Server(config)
    serving = asyncio.create_task(http.serve(sockets=[listening]), name="http api")
    serving.add_done_callback(lambda _: platform.has_ended.set())
    try:
        while not http.started and not serving.done():  # noqa: ASYNC110  (it tells nobody)
            await asyncio.sleep(STARTED_LOOK_S)
        platform.port = listening.getsockname()[1]
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        platform.url = f"{settings.scheme}://{host}:{platform.port}/v1"
        log.info("programs reach the API at %s", platform.url)
        yield platform
    finally:
        http.should_exit = True
        await server.close()
        await asyncio.wait([serving])


def count_allowed_connections() -> int:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if allowed == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, allowed // OPEN_FILES_SHARE)


def _listen(settings: ApiSettings) -> socket.socket:
    """Raises `Refused`."""
    try:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        # With the protocol named: only then does asyncio send what it has at once, and answers do not take 40 ms more.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as fault:
        raise Refused(f"api.host is {settings.host!r}, which is not an address here.") from fault
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # clients that are gone are noticed
        listening.bind(address)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as fault:
        listening.close()
        raise Refused(
            f"Cannot listen on {settings.host}, port {settings.port}: {fault.strerror}. Set api.port to another."
        ) from fault
    return listening


async def _keep_server_key(settings: ApiSettings, store: Store, clock: Clock) -> None:
    """The token of API_SERVER_KEY is there as long as that is set."""
    known = next((one for one in await store.api_tokens.list() if one.name == SERVER_KEY_NAME), None)
    digest = digest_of(settings.key.reveal()) if settings.key != NO_SECRET else ""
    if known is not None and known.digest == digest:
        return
    if known is not None:
        await store.api_tokens.revoke(SERVER_KEY_NAME)
    if digest:
        await store.api_tokens.add(ApiToken(name=SERVER_KEY_NAME, digest=digest, created_at=clock.now()))
