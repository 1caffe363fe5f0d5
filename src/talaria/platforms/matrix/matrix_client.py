"""The one connection to the homeserver: nio's client, with our time limits, and its answers as values or failures.

Our login is made once and kept, because the server knows our messages again by the device that sent them.
"""

import logging
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec
import nio  # pyright: ignore[reportMissingTypeStubs]
from nio.crypto import ENCRYPTION_ENABLED  # pyright: ignore[reportMissingTypeStubs]

from talaria.core.aio import in_thread
from talaria.core.fs import read_bytes, replace_file
from talaria.platforms.base import AccessLost, NotTaken, PlatformFailure, Refused, Rejected, Unsure
from talaria.platforms.http_sessions import explain_no_answer, format_quote, load_certificates, resolve_doubt
from talaria.platforms.matrix.config import MatrixSettings

TRANSPORT = (aiohttp.ClientError, TimeoutError, OSError)
"""All that a request may raise."""

_LOGGED_OUT = frozenset({"M_UNKNOWN_TOKEN", "M_MISSING_TOKEN"})
_NO_ENTRY = frozenset({
    "M_USER_DEACTIVATED", "M_USER_SUSPENDED", "M_USER_LOCKED", "M_CONSENT_NOT_GIVEN", "M_RESOURCE_LIMIT_EXCEEDED",
})  # fmt: skip


class LoggedOut(Refused):
    """The server does not know our login any more; a password makes a new one."""


class AlreadySo(Rejected):
    """It was done before."""


def refusal(status: int, errcode: str, words: str, retry_after_s: float | None) -> PlatformFailure:
    """Of an answer that is no success."""
    said = format_quote(errcode or str(status), words)
    if status == 429 or errcode == "M_LIMIT_EXCEEDED":
        return NotTaken(f"The Matrix server asks to slow down ({said}).", retry_after_s=retry_after_s)
    if errcode in _LOGGED_OUT:
        return LoggedOut(
            f"The Matrix server does not know our login any more ({said}). "
            "Set MATRIX_PASSWORD or a new MATRIX_ACCESS_TOKEN."
        )
    if status == 401 or errcode in _NO_ENTRY:
        return Refused(f"The Matrix server does not let us in ({said}).")
    if status >= 500 or status < 400:  # a success that cannot be read is none
        return Unsure(f"The Matrix server is in trouble ({said}).")
    if errcode == "M_DUPLICATE_ANNOTATION":
        return AlreadySo(f"The Matrix server has this already ({said}).")
    if status == 403:
        return AccessLost(f"The Matrix server does not let us into this room ({said}).")
    return Rejected(f"The Matrix server does not take this ({said}).")


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


async def make_client(settings: MatrixSettings, home: Path) -> MatrixClient:
    logging.getLogger("nio").setLevel(logging.CRITICAL)  # its warnings quote messages
    is_encrypting = ENCRYPTION_ENABLED and settings.encryption == "auto"
    config = nio.AsyncClientConfig(
        max_limit_exceeded=0, max_timeouts=0, request_timeout=REQUEST_S, encryption_enabled=is_encrypting
    )
    trusted: Any = await load_certificates(settings.homeserver)
    url = settings.homeserver.rstrip("/")
    return MatrixClient(url, settings.user_id, store_path=str(home), config=config, ssl=trusted)


async def close(client: MatrixClient) -> None:
    await client.close()
    if client.store is not None:
        client.store.database.close()


async def await_answer(work: Awaitable[object], kind: type[A]) -> A:
    """Raises `PlatformFailure`."""
    try:
        answer = await work
    except TRANSPORT as fault:
        raise explain_no_answer(SERVER, fault) from fault
    if isinstance(answer, kind) and _status(answer) < 400:
        return answer
    raise _to_failure(answer)


async def read(work: Awaitable[object], kind: type[A]) -> A:
    """As `await_answer`, of a request that changes nothing that anybody sees: it is never `Unsure`."""
    try:
        return await await_answer(work, kind)
    except Unsure as failure:
        raise resolve_doubt(failure) from failure


def _to_failure(answer: object) -> PlatformFailure:
    if not isinstance(answer, nio.ErrorResponse):
        return refusal(_status(answer), "", "", None)
    after_ms: object = answer.retry_after_ms
    retry_after_s = after_ms / 1000 if isinstance(after_ms, int | float) else None
    return refusal(_status(answer), answer.status_code or "", answer.message, retry_after_s)


def _status(answer: object) -> int:
    transport = answer.transport_response if isinstance(answer, nio.Response) else None
    return transport.status if isinstance(transport, aiohttp.ClientResponse) else 0


_MAX_BYTES = 65_536


class Login(msgspec.Struct, frozen=True):
    homeserver: str
    """A token is shown to nobody else."""
    user_id: str
    device_id: str
    access_token: str


async def log_in(client: MatrixClient, settings: MatrixSettings, home: Path) -> None:
    """Raises `NotTaken`, `Refused`."""
    file = home / "login.json"
    known = await in_thread(lambda: _read(file))
    if known is not None and (known.homeserver, known.user_id) != (client.homeserver, settings.user_id):
        known = None
    token = settings.access_token.reveal() or (known.access_token if known is not None else "")
    try:
        login = await _resume(client, settings, token) if token else await _new(client, settings, known)
    except LoggedOut:
        if not settings.password:
            raise
        login = await _new(client, settings, known)
    if login != known:
        try:
            await in_thread(lambda: _write(file, login))
        except OSError as fault:
            raise NotTaken(f"The Matrix login cannot be kept in {file}: {fault.strerror}.") from fault


async def _resume(client: MatrixClient, settings: MatrixSettings, token: str) -> Login:
    client.access_token = token
    who = await read(client.whoami(), nio.WhoamiResponse)
    if who.user_id != settings.user_id:
        raise Refused(
            f"The Matrix token is for {who.user_id}, and gateway.platforms.matrix.user_id is {settings.user_id}."
        )
    if not who.device_id:
        raise Refused(
            "The Matrix token belongs to no device: without one, messages could be sent twice. Use a password."
        )
    client.restore_login(who.user_id, who.device_id, token)
    return Login(client.homeserver, who.user_id, who.device_id, token)


async def _new(client: MatrixClient, settings: MatrixSettings, known: Login | None) -> Login:
    client.access_token = ""
    client.device_id = known.device_id if known is not None else ""
    asking = client.login(settings.password.reveal(), settings.device_name)
    try:
        made = await read(asking, nio.LoginResponse)
    except AccessLost as fault:
        raise Refused(f"The Matrix server does not take the password of {settings.user_id}.") from fault
    if made.user_id != settings.user_id:
        raise Refused(f"The Matrix server calls us {made.user_id}: set that as gateway.platforms.matrix.user_id.")
    return Login(client.homeserver, made.user_id, made.device_id, made.access_token)


def _read(file: Path) -> Login | None:
    try:
        return msgspec.json.decode(read_bytes(file, _MAX_BYTES), type=Login)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(file: Path, login: Login) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(file, msgspec.json.encode(login), mode=0o600)
