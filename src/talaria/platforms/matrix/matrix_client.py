"""The one connection to the homeserver: nio's client, with our time limits, and its answers as values or failures."""

import logging
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import nio  # pyright: ignore[reportMissingTypeStubs]
from nio.crypto import ENCRYPTION_ENABLED  # pyright: ignore[reportMissingTypeStubs]

from talaria.platforms.base import PlatformFailure, Unsure
from talaria.platforms.failures import harmless, silence
from talaria.platforms.matrix import failures
from talaria.platforms.matrix.config import MatrixSettings

API = "/_matrix/client"
SERVER = "the Matrix server"
REQUEST_S = 60.0
CONNECT_S = 10.0
SILENCE_S = 120.0
"""Of a transfer, which may take any time in all."""

log = logging.getLogger(__name__)
A = TypeVar("A")


class MatrixClient(nio.AsyncClient):
    has_stumbled = False
    """What nio knows of the rooms may be incomplete."""

    async def send(
        self,
        method: str,
        path: str,
        data: Any = None,
        headers: dict[str, str] | None = None,
        trace_context: Any = None,
        timeout: float | None = None,
    ) -> aiohttp.ClientResponse:
        total = REQUEST_S if timeout is None else timeout or None
        limits: Any = aiohttp.ClientTimeout(total=total, sock_connect=CONNECT_S, sock_read=total or SILENCE_S)
        return await super().send(method, path, data, headers, trace_context, limits)

    async def receive_response(self, response: nio.Response) -> None:
        """One event that nio cannot digest must not keep us from all others, nor a refusal make us forget our login."""
        token = self.access_token
        try:
            await super().receive_response(response)
        except Exception:
            log.exception("nio failed at an answer of the Matrix server")
            self.has_stumbled = True
        if isinstance(response, nio.ErrorResponse):
            self.access_token = token

    @property
    def authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.access_token}"}


def make_client(settings: MatrixSettings, home: Path) -> MatrixClient:
    logging.getLogger("nio").setLevel(logging.CRITICAL)  # its warnings quote messages
    is_encrypting = ENCRYPTION_ENABLED and settings.encryption == "auto"
    config = nio.AsyncClientConfig(
        max_limit_exceeded=0, max_timeouts=0, request_timeout=REQUEST_S, encryption_enabled=is_encrypting
    )
    return MatrixClient(settings.homeserver.rstrip("/"), settings.user_id, store_path=str(home), config=config)


async def close(client: MatrixClient) -> None:
    await client.close()
    if client.store is not None:
        client.store.database.close()


async def answered(work: Awaitable[object], kind: type[A]) -> A:
    """Raises `PlatformFailure`."""
    try:
        answer = await work
    except failures.TRANSPORT as fault:
        raise silence(SERVER, fault) from fault
    if isinstance(answer, kind) and _status(answer) < 400:
        return answer
    raise _refused(answer)


async def read(work: Awaitable[object], kind: type[A]) -> A:
    """As `answered`, of a request that changes nothing that anybody sees: it is never `Unsure`."""
    try:
        return await answered(work, kind)
    except Unsure as failure:
        raise harmless(failure) from failure


def _refused(answer: object) -> PlatformFailure:
    if not isinstance(answer, nio.ErrorResponse):
        return failures.refusal(_status(answer), "", "", None)
    after_ms: object = answer.retry_after_ms
    retry_after_s = after_ms / 1000 if isinstance(after_ms, int | float) else None
    return failures.refusal(_status(answer), answer.status_code or "", answer.message, retry_after_s)


def _status(answer: object) -> int:
    transport = answer.transport_response if isinstance(answer, nio.Response) else None
    return transport.status if isinstance(transport, aiohttp.ClientResponse) else 0
