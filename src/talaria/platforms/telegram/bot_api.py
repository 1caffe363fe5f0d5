"""Telegram's Bot API over aiohttp: one attempt per call, with a clear outcome, and what its refusals mean.

No client library is used: they drop the status of a refusal, or repeat a call (docs/adr/0045).
"""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote

import msgspec

from talaria.net import tls
from talaria.net.urls import proxy_for
from talaria.platforms.base import (
    AccessLost,
    Address,
    ChatMoved,
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
    open_session,
    resolve_doubt,
)

with tls.skip_certificates():
    import aiohttp

CONNECT_S = 10.0
UPLOAD_S = 300.0
_BROKEN = (aiohttp.ClientError, OSError, TimeoutError)
_JSON = {"Content-Type": "application/json"}
_UNREADABLE = (msgspec.MsgspecError, RecursionError, ValueError)
_GONE = (
    "chat not found",
    "user not found",
    "peer_id_invalid",
    "user is deactivated",
    "chat was deactivated",
    "bot is not a member",
    "bot was blocked",
    "bot was kicked",
    "no rights to send",
    "not enough rights to send",
    "chat_write_forbidden",
    "chat_restricted",
    "message thread not found",
    "topic_deleted",
    "topic_closed",
)
"""Found in the description of a 400 that is about the chat, not the message."""

T = TypeVar("T")


class Declined(Exception):
    """Telegram answered with an error."""

    def __init__(
        self, status: int, words: str, *, retry_after_s: float | None = None, moved_to: int | None = None
    ) -> None:
        super().__init__(words)
        self.status = status
        self.words = words
        self.retry_after_s = retry_after_s
        self.moved_to = moved_to

    def mentions(self, *phrases: str) -> bool:
        said = self.words.lower()
        return any(phrase in said for phrase in phrases)


FAULTS = (Declined, PlatformFailure)
"""What a call may raise."""


class Upload(msgspec.Struct, frozen=True):
    """A file sent with a call."""

    field: str
    content: BinaryIO
    name: str
    mime: str


class _Parameters(msgspec.Struct, frozen=True):
    retry_after: float | None = None
    migrate_to_chat_id: int | None = None


class _Answer(msgspec.Struct, frozen=True):
    ok: bool
    result: msgspec.Raw = msgspec.Raw(b"null")
    description: str = ""
    error_code: int = 0
    parameters: _Parameters = _Parameters()


class BotApi:
    """The Bot API for one bot, over pooled connections."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str, token: str, timeout_s: float) -> None:
        self._session = session
        self._calls_url = f"{base_url}/bot{token}/"
        self._files_url = f"{base_url}/file/bot{token}/"
        self._options: dict[str, Any] = {"proxy": proxy_for(base_url), "allow_redirects": False}
        self._timeout_s = timeout_s

    async def call(
        self,
        method: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        upload: Upload | None = None,
        timeout_s: float | None = None,
    ) -> msgspec.Raw:
        """The result, not decoded. Parameters that are None are left out. Raises `Declined` and `PlatformFailure`."""
        limit_s = timeout_s or (UPLOAD_S if upload else self._timeout_s)
        timeout = aiohttp.ClientTimeout(total=limit_s, sock_connect=min(CONNECT_S, limit_s / 2))
        given = {name: value for name, value in (parameters or {}).items() if value is not None}
        data = msgspec.json.encode(given) if upload is None else _form(given, upload)
        try:
            async with self._session.post(
                self._calls_url + method,
                data=data,
                headers=_JSON if upload is None else None,
                timeout=timeout,
                **self._options,
            ) as response:
                status, body = response.status, await response.read()
        except _BROKEN as fault:
            raise explain_no_answer("Telegram", fault) from None  # the cause would show the URL, which has the token
        answer = _read(body) or _read(replace_lone_surrogates(body))
        is_good = 200 <= status < 300
        if answer is None:
            raise _unclear() if is_good else Declined(status, f"HTTP {status}")
        if answer.ok and is_good:
            return answer.result
        raise Declined(
            answer.error_code if is_good else status,
            answer.description,
            retry_after_s=answer.parameters.retry_after,
            moved_to=answer.parameters.migrate_to_chat_id,
        )

    async def ask(
        self, form: type[T], method: str, parameters: Mapping[str, Any] | None = None, *, upload: Upload | None = None
    ) -> T:
        """Like `call`, with the result decoded as `form`."""
        result = await self.call(method, parameters, upload=upload)
        try:
            return msgspec.json.decode(result, type=form)
        except _UNREADABLE:
            raise _unclear() from None

    async def download(self, path: str) -> AsyncGenerator[bytes]:
        """The contents of a file in chunks. Raises `Declined` and `PlatformFailure`."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=self._timeout_s)
        try:
            async with self._session.get(self._files_url + quote(path), timeout=timeout, **self._options) as response:
                if response.status != 200:
                    raise Declined(response.status, "no such file")
                async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                    yield chunk
        except _BROKEN as fault:
            raise explain_no_answer("Telegram", fault) from None  # the cause would show the URL, which has the token


def _form(parameters: Mapping[str, Any], upload: Upload) -> aiohttp.FormData:
    """A file is only taken in a form."""
    form = aiohttp.FormData(quote_fields=False)
    for name, value in parameters.items():
        form.add_field(name, value if isinstance(value, str) else msgspec.json.encode(value).decode())
    form.add_field(upload.field, upload.content, filename=upload.name, content_type=upload.mime)
    return form


@asynccontextmanager
async def connect(base_url: str, token: str, timeout_s: float) -> AsyncGenerator[BotApi]:
    async with open_session(await load_certificates(base_url)) as session:
        yield BotApi(session, base_url, token, timeout_s)


def replace_lone_surrogates(body: bytes) -> bytes:
    """A lone surrogate is legal in JSON, but cannot be decoded here: a question mark replaces it."""
    try:
        return json.dumps(json.loads(body), ensure_ascii=False).encode("utf-8", "replace")
    except (RecursionError, ValueError):
        return body


def to_connection_failure(error: Declined | PlatformFailure) -> NotTaken | Refused:
    """For calls that no message depends on: reconnect, at once or after somebody has acted."""
    failure = resolve_doubt(explain_refusal(error) if isinstance(error, Declined) else error)
    return failure if isinstance(failure, NotTaken | Refused) else Refused(str(failure))


def _unclear() -> Unsure:
    return Unsure("Telegram's answer cannot be read.")


def _read(body: bytes) -> _Answer | None:
    try:
        return msgspec.json.decode(body, type=_Answer)
    except _UNREADABLE:
        return None


def explain_refusal(error: Declined, where: Address | None = None) -> PlatformFailure:
    """`where`: the chat that the call was about."""
    said = format_quote(str(error.status), error.words)
    match error.status:
        case 429:
            return NotTaken(f"Telegram asks us to slow down ({said}).", retry_after_s=error.retry_after_s)
        case 401 | 404:
            return Refused(
                f"Telegram does not know the bot's token ({said}). @BotFather shows the right one; "
                "set it as TELEGRAM_BOT_TOKEN in .env."
            )
        case 409 if error.mentions("webhook"):
            return Refused(
                f"This Telegram bot's messages go to a webhook ({said}). Stop the program that set it, or give this "
                "one a bot of its own."
            )
        case 409:
            return Refused(
                f"Another program reads this Telegram bot's messages ({said}). Stop it, or give this one a bot of its "
                "own: two programs with the same token take messages from each other."
            )
        case status if status < 400:
            return Refused(f"Telegram was not found there ({said}). Check gateway.platforms.telegram.base_url.")
        case status if status >= 500:
            return Unsure(f"Telegram failed ({said}).")
        case status:
            if where is not None and error.moved_to is not None:
                to = Address(where.platform, str(error.moved_to), where.thread)
                return ChatMoved(f"The group {where} has become {to}.", to)
            if where is not None and (status == 403 or error.mentions(*_GONE)):
                return AccessLost(f"Nothing can be sent to {where} any more ({said}).")
            return Rejected(f"Telegram does not accept this ({said}).")
