"""The one connection to the homeserver: nio's client with our time limits, its responses as values or failures, the
login, and files in the content repository.

The login is made once and kept, because the server recognises repeated messages by the device that sends them.
"""

import hashlib
import logging
import os
import re
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any, TypeVar

import aiofiles
import aiohttp
import msgspec
import nio  # pyright: ignore[reportMissingTypeStubs]
import unpaddedbase64
from Crypto.Cipher import AES
from Crypto.Util import Counter
from nio.crypto import ENCRYPTION_ENABLED  # pyright: ignore[reportMissingTypeStubs]

from talaria.core.aio import in_thread
from talaria.core.fs import read_bytes, replace_file
from talaria.platforms.base import (
    PICTURES,
    AccessLost,
    Attachment,
    File,
    NotTaken,
    PlatformFailure,
    Refused,
    Rejected,
    Unsure,
)
from talaria.platforms.http_sessions import (
    CHUNK_BYTES,
    explain_no_answer,
    format_quote,
    load_certificates,
    resolve_doubt,
    save,
)
from talaria.platforms.matrix.config import MatrixSettings
from talaria.platforms.matrix.room_events import Media

TRANSPORT = (aiohttp.ClientError, TimeoutError, OSError)
"""What a request may raise."""
API = "/_matrix/client"
SERVER = "the Matrix server"
REQUEST_S = 60.0
CONNECT_S = 10.0
SILENCE_S = 120.0
"""The limit for a pause in a transfer, which may take any time in total."""
_MAX_LOGIN_BYTES = 65_536
_LOGGED_OUT = frozenset({"M_UNKNOWN_TOKEN", "M_MISSING_TOKEN"})
_NO_ENTRY = frozenset({
    "M_USER_DEACTIVATED", "M_USER_SUSPENDED", "M_USER_LOCKED", "M_CONSENT_NOT_GIVEN", "M_RESOURCE_LIMIT_EXCEEDED",
})  # fmt: skip
_MXC = re.compile(r"mxc://([\w.:\[\]-]+)/([\w-]+)", re.ASCII)
_MSGTYPES = {**dict.fromkeys(PICTURES, "m.image"), "audio": "m.audio", "video": "m.video"}

log = logging.getLogger(__name__)
A = TypeVar("A")


class LoggedOut(Refused):
    """The server no longer knows our login; a password makes a new one."""


class AlreadySo(Rejected):
    """It was done before."""


def explain_refusal(status: int, errcode: str, words: str, retry_after_s: float | None) -> PlatformFailure:
    """What a response that is not a success means."""
    said = format_quote(errcode or str(status), words)
    if status == 429 or errcode == "M_LIMIT_EXCEEDED":
        return NotTaken(f"The Matrix server asks us to slow down ({said}).", retry_after_s=retry_after_s)
    if errcode in _LOGGED_OUT:
        return LoggedOut(
            f"The Matrix server no longer knows our login ({said}). Set MATRIX_PASSWORD or a new MATRIX_ACCESS_TOKEN."
        )
    if status == 401 or errcode in _NO_ENTRY:
        return Refused(f"The Matrix server does not let us in ({said}).")
    if status >= 500 or status < 400:  # a success that cannot be read does not count as one
        return Unsure(f"The Matrix server failed ({said}).")
    if errcode == "M_DUPLICATE_ANNOTATION":
        return AlreadySo(f"The Matrix server already has this ({said}).")
    if status == 403:
        return AccessLost(f"The Matrix server does not let us into this room ({said}).")
    return Rejected(f"The Matrix server does not accept this ({said}).")


class _Error(msgspec.Struct, frozen=True):
    errcode: str = ""
    error: str = ""


class MatrixClient(nio.AsyncClient):
    needs_full_state = False
    """What nio knows about the rooms may be incomplete."""

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
        """An event that nio cannot process must not hide all others, and an error must not make us forget our login."""
        token = self.access_token
        try:
            await super().receive_response(response)
        except Exception:
            log.exception("nio failed to process an answer of the Matrix server")
            self.needs_full_state = True
        if isinstance(response, nio.ErrorResponse):
            self.access_token = token

    @property
    def authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.access_token}"}

    async def request(self, method: str, path: str, content: bytes | None = None) -> bytes:
        """For endpoints that nio does not have, and that nobody notices: raises `PlatformFailure`, never `Unsure`."""
        headers = self.authorization if content is None else {**self.authorization, "Content-Type": "application/json"}
        try:
            async with await self.send(method, API + path, content, headers) as answer:
                status, body = answer.status, await answer.read()
        except TRANSPORT as fault:
            raise resolve_doubt(explain_no_answer(SERVER, fault)) from fault
        if status == 200:
            return body
        try:
            error = msgspec.json.decode(body, type=_Error)
        except msgspec.MsgspecError:
            error = _Error()
        raise resolve_doubt(explain_refusal(status, error.errcode, error.error, None))


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
    transport = answer.transport_response if isinstance(answer, nio.Response) else None
    status = transport.status if isinstance(transport, aiohttp.ClientResponse) else 0
    if isinstance(answer, kind) and status < 400:
        return answer
    if not isinstance(answer, nio.ErrorResponse):
        raise explain_refusal(status, "", "", None)
    after_ms: object = answer.retry_after_ms
    retry_after_s = after_ms / 1000 if isinstance(after_ms, int | float) else None
    raise explain_refusal(status, answer.status_code or "", answer.message, retry_after_s)


async def read(work: Awaitable[object], kind: type[A]) -> A:
    """Like `await_answer`, for a request without visible effect: never raises `Unsure`."""
    try:
        return await await_answer(work, kind)
    except Unsure as failure:
        raise resolve_doubt(failure) from failure


class Login(msgspec.Struct, frozen=True):
    homeserver: str
    """The token is sent to no other server."""
    user_id: str
    device_id: str
    access_token: str


async def log_in(client: MatrixClient, settings: MatrixSettings, home: Path) -> None:
    """Raises `NotTaken`, `Refused`."""
    file = home / "login.json"

    def load() -> Login | None:
        try:
            return msgspec.json.decode(read_bytes(file, _MAX_LOGIN_BYTES), type=Login)
        except (OSError, msgspec.MsgspecError):
            return None

    def store(login: Login) -> None:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(file, msgspec.json.encode(login), mode=0o600)

    known = await in_thread(load)
    if known is not None and (known.homeserver, known.user_id) != (client.homeserver, settings.user_id):
        known = None
    token = settings.access_token.reveal() or (known.access_token if known is not None else "")
    try:
        login = await _restore(client, settings, token) if token else await _log_in_anew(client, settings, known)
    except LoggedOut:
        if not settings.password:
            raise
        login = await _log_in_anew(client, settings, known)
    if login != known:
        try:
            await in_thread(lambda: store(login))
        except OSError as fault:
            raise NotTaken(f"The Matrix login cannot be saved to {file}: {fault.strerror}.") from fault


async def _restore(client: MatrixClient, settings: MatrixSettings, token: str) -> Login:
    client.access_token = token
    us = await read(client.whoami(), nio.WhoamiResponse)
    if us.user_id != settings.user_id:
        raise Refused(
            f"The Matrix token is for {us.user_id}, but gateway.platforms.matrix.user_id is {settings.user_id}."
        )
    if not us.device_id:
        raise Refused(
            "The Matrix token belongs to no device: without one, messages could be sent twice. Use a password."
        )
    client.restore_login(us.user_id, us.device_id, token)
    return Login(client.homeserver, us.user_id, us.device_id, token)


async def _log_in_anew(client: MatrixClient, settings: MatrixSettings, known: Login | None) -> Login:
    client.access_token = ""
    client.device_id = known.device_id if known is not None else ""
    asking = client.login(settings.password.reveal(), settings.device_name)
    try:
        made = await read(asking, nio.LoginResponse)
    except AccessLost as fault:
        raise Refused(f"The Matrix server does not accept the password of {settings.user_id}.") from fault
    if made.user_id != settings.user_id:
        raise Refused(f"The Matrix server calls us {made.user_id}: set that as gateway.platforms.matrix.user_id.")
    return Login(client.homeserver, made.user_id, made.device_id, made.access_token)


async def upload_file(client: MatrixClient, file: File, *, is_encrypted: bool) -> dict[str, Any]:
    """Returns the file's part of a message's content. Raises `NotTaken`, `Rejected`, `Refused`."""
    keys: dict[str, Any] | None = None
    async with AsyncExitStack() as stack:
        try:
            opened = await stack.enter_async_context(aiofiles.open(file.path, "rb"))
        except OSError as fault:
            raise Rejected(f"{file.name} cannot be read: {fault.strerror}.") from fault
        size = os.fstat(opened.fileno()).st_size

        async def upload() -> object:
            nonlocal keys
            name = None if is_encrypted else file.name
            answer, keys = await client.upload(opened, file.mime, name, encrypt=is_encrypted, filesize=size)
            return answer

        try:
            url = (await read(upload(), nio.UploadResponse)).content_uri
        except AccessLost as fault:
            raise Rejected(f"The Matrix server does not accept the file {file.name}.") from fault
    msgtype = _MSGTYPES.get(file.mime) or _MSGTYPES.get(file.mime.partition("/")[0], "m.file")
    info: dict[str, Any] = {"mimetype": file.mime, "size": size}
    if file.pixels is not None:
        info["w"], info["h"] = file.pixels
    where: dict[str, Any] = {"file": {**keys, "url": url}} if keys else {"url": url}
    return {"msgtype": msgtype, "filename": file.name, "info": info, **where}


async def download_file(client: MatrixClient, attachment: Attachment, to: Path, max_bytes: int) -> None:
    """Decrypts on the way. Raises `NotTaken`, `Rejected`, `Refused`."""
    media = msgspec.json.decode(attachment.ref, type=Media)
    mxc = _MXC.fullmatch(media.url)
    if mxc is None:
        raise Rejected(f"{attachment.name} has no valid address on a Matrix server.")
    path = f"{API}/v1/media/download/{mxc[1]}/{mxc[2]}"
    try:
        async with await client.send("GET", path, headers=client.authorization, timeout=0) as answer:
            if answer.status in {403, 404}:
                raise Rejected(f"{attachment.name} is gone from the Matrix server.")
            if answer.status != 200:
                raise resolve_doubt(explain_refusal(answer.status, "", "", None))
            chunks = answer.content.iter_chunked(CHUNK_BYTES)
            if media.key:
                async with aclosing(_decrypt(chunks, media, attachment.name)) as decrypted:
                    await save(decrypted, to, max_bytes)
            else:
                await save(chunks, to, max_bytes)
    except TRANSPORT as fault:
        raise resolve_doubt(explain_no_answer(SERVER, fault)) from fault


async def _decrypt(chunks: AsyncIterable[bytes], media: Media, name: str) -> AsyncGenerator[bytes]:
    """The hash is checked after the last chunk: only then is it known whether this is the right file."""
    try:
        start, key, expected = map(unpaddedbase64.decode_base64, (media.iv, media.key, media.sha256))
        counter = Counter.new(64, prefix=start[:8], initial_value=int.from_bytes(start[8:], "big"))
        cipher = AES.new(key, AES.MODE_CTR, counter=counter)
    except ValueError as fault:
        raise Rejected("The keys of an encrypted file are invalid.") from fault
    seen = hashlib.sha256()
    async for chunk in chunks:
        seen.update(chunk)
        yield cipher.decrypt(chunk)
    if seen.digest() != expected:
        raise Rejected(f"{name} was altered on its way.")
