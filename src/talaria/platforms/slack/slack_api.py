"""Slack's Web API and Socket Mode, through the SDK.

The Web API: methods by their SDK names, what we read of their responses, and what a failure means: who must act, and
whether the call may have had an effect. The SDK retries nothing by itself.

Socket Mode: one connection, from its hello to its end. It does not reconnect; whoever opens the next one also fetches
what was missed in between.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar, cast

import aiohttp
import msgspec
from slack_sdk.errors import SlackApiError
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.web.async_client import AsyncWebClient

from talaria.net.urls import proxy_for
from talaria.platforms.base import AccessLost, NotTaken, PlatformFailure, Refused, Rejected, Unsure
from talaria.platforms.http_sessions import (
    explain_no_answer,
    load_certificates,
    open_session,
    parse_retry_after,
    resolve_doubt,
)
from talaria.platforms.slack.config import SlackSettings
from talaria.platforms.slack.incoming import decode

FAULTS = (SlackApiError, aiohttp.ClientError, TimeoutError, OSError, msgspec.ValidationError)
"""What a call may raise."""
MAX_TAKEN = 100
CONNECT_S = 10.0
_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=10)

_LATER = frozenset({
    "ratelimited", "rate_limited", "message_limit_exceeded", "request_timeout", "team_added_to_org",
    "org_login_required", "external_channel_migrating",
})  # fmt: skip
_PERHAPS_DONE = frozenset({"internal_error", "fatal_error", "service_unavailable", "update_failed"})
"""Slack documents that the call may have partly succeeded, or does not say."""
_NO_ENTRY = frozenset({
    "invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired", "not_allowed_token_type",
    "accesslimited", "enterprise_is_restricted", "team_access_not_granted", "two_factor_setup_required",
})  # fmt: skip
_CHAT_LOST = frozenset({
    "channel_not_found", "not_in_channel", "is_archived", "is_inactive", "no_permission", "access_denied",
    "ekm_access_denied",
    "user_not_found", "user_not_visible", "user_disabled", "user_not_in_channel", "cannot_dm_bot",
    "messages_tab_disabled", "restricted_action", "restricted_action_read_only_channel",
})  # fmt: skip
_NOT_UNDERSTOOD = frozenset({
    "invalid_blocks", "invalid_blocks_format", "invalid_arguments", "msg_blocks_too_long", "msg_too_long",
    "block_mismatch",
})  # fmt: skip

T = TypeVar("T", bound=msgspec.Struct)

log = logging.getLogger(__name__)


class NotUnderstood(Rejected):
    """Certainly refused in this form; plain text may be accepted."""


def to_failure(fault: Exception) -> PlatformFailure:
    if isinstance(fault, msgspec.ValidationError):
        return Unsure("Slack's answer cannot be read.")
    if not isinstance(fault, SlackApiError):
        return explain_no_answer("Slack", fault)
    answer = cast("Any", fault).response  # aiohttp's response if the body is not JSON
    data = getattr(answer, "data", None)
    body = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    status: int = getattr(answer, "status_code", 0) or getattr(answer, "status", 0)
    error = str(body.get("error") or "")
    if status == 429 or error in _LATER:
        retry_after_s = parse_retry_after(answer.headers.get("Retry-After", ""))
        return NotTaken(f"Slack asks us to wait ({error or status}).", retry_after_s=retry_after_s)
    if not error or status >= 500 or error in _PERHAPS_DONE:
        return Unsure(f"Slack failed ({error or status}).")
    if error == "missing_scope":
        needed = body.get("needed") or "a scope"
        return Refused(f"The Slack app lacks {needed}: add it under OAuth & Permissions and reinstall the app.")
    if error in _NO_ENTRY:
        return Refused(f"Slack does not let us in ({error}): check SLACK_BOT_TOKEN and SLACK_APP_TOKEN.")
    if error in _CHAT_LOST:
        return AccessLost(f"Slack no longer lets us write there ({error}).")
    if error in _NOT_UNDERSTOOD:
        return NotUnderstood(f"Slack does not understand the message ({error}).")
    return Rejected(f"Slack does not accept it ({error}).")


class Done(msgspec.Struct, frozen=True):
    pass


class Identity(msgspec.Struct, frozen=True):
    team_id: str
    user_id: str


class OpenedConnection(msgspec.Struct, frozen=True):
    url: str


class Posted(msgspec.Struct, frozen=True):
    ts: str


class UploadUrl(msgspec.Struct, frozen=True):
    """Where to upload one file."""

    upload_url: str
    file_id: str


class FileInfo(msgspec.Struct, frozen=True):
    url_private: str = ""
    url_private_download: str = ""

    @property
    def url(self) -> str:
        return self.url_private_download or self.url_private


class FoundFile(msgspec.Struct, frozen=True):
    file: FileInfo


class Profile(msgspec.Struct, frozen=True):
    display_name: str = ""


class SlackMember(msgspec.Struct, frozen=True):
    name: str = ""
    real_name: str = ""
    profile: Profile = Profile()


class FoundMember(msgspec.Struct, frozen=True):
    user: SlackMember


class SlackChannel(msgspec.Struct, frozen=True):
    id: str
    user: str = ""
    """In a direct message: the other person."""


class FoundChannel(msgspec.Struct, frozen=True):
    channel: SlackChannel


class ResponseMetadata(msgspec.Struct, frozen=True):
    next_cursor: str = ""


class SlackPage(msgspec.Struct, frozen=True):
    response_metadata: ResponseMetadata | None = None

    @property
    def next_cursor(self) -> str:
        return self.response_metadata.next_cursor if self.response_metadata else ""


class Channels(SlackPage, frozen=True):
    channels: tuple[SlackChannel, ...] = ()


class Messages(SlackPage, frozen=True):
    messages: tuple[dict[str, Any], ...] = ()
    """Decoded one by one, so that an odd one does not spoil the others."""


def sdk_log() -> logging.Logger:
    """Silences the SDK, which may log secrets and messages; failures reach us as exceptions anyway."""
    log = logging.getLogger(f"{__name__}.sdk")
    log.setLevel(logging.CRITICAL)
    return log


class WebApi:
    def __init__(self, settings: SlackSettings, session: aiohttp.ClientSession, trusted: ssl.SSLContext | None) -> None:
        self.session = session
        self.client = AsyncWebClient(
            settings.bot_token.reveal(),
            base_url=settings.api_url,
            session=session,
            ssl=trusted,
            retry_handlers=[],
            logger=sdk_log(),
        )
        self.client.proxy = proxy_for(settings.api_url)  # the SDK ignores NO_PROXY

    async def write(self, method: str, answer: type[T], **arguments: Any) -> T:
        """Calls `chat_postMessage` and the like. Raises `PlatformFailure`."""
        try:
            response = await getattr(self.client, method)(**arguments)
            return msgspec.convert(response.data, answer)
        except FAULTS as fault:
            raise to_failure(fault) from fault

    async def read(self, method: str, answer: type[T], **arguments: Any) -> T:
        """Like `write`, for a method without visible effect: never raises `Unsure`."""
        try:
            return await self.write(method, answer, **arguments)
        except Unsure as lost:
            raise resolve_doubt(lost) from lost


@asynccontextmanager
async def open_web_api(settings: SlackSettings) -> AsyncGenerator[WebApi]:
    trusted = await load_certificates()
    async with open_session(trusted, _TIMEOUT) as session:
        yield WebApi(settings, session, trusted)


class Envelope(msgspec.Struct, frozen=True):
    """What Slack sends in Socket Mode. One with an id must be acknowledged."""

    type: str = ""
    envelope_id: str = ""
    payload: msgspec.Raw = msgspec.Raw(b"{}")
    reason: str = ""
    """The reason for a disconnect."""
    num_connections: int = 1


class SlackSocket(SocketModeClient):
    """The SDK's client, except that it neither dispatches messages nor reconnects."""

    def __init__(self, settings: SlackSettings, web: WebApi) -> None:
        super().__init__(
            settings.app_token.reveal(), logger=sdk_log(), web_client=web.client, ping_interval=settings.ping_s
        )
        self._arrived = asyncio.Queue[str | None]()
        self._end: PlatformFailure | None = None
        self._proven_at: float | None = None

    async def enqueue_message(self, message: str) -> None:
        self._arrived.put_nowait(message)

    async def connect_to_new_endpoint(self, force: bool = False) -> None:  # noqa: ARG002  (the SDK's)
        self._arrived.put_nowait(None)  # called when the connection was closed, went stale or must be replaced

    async def receive_hello(self) -> Envelope:
        """Raises `NotTaken` and `Refused`."""
        envelope = _read(await self._arrived.get())
        if envelope.type != "hello":
            raise _to_end(envelope.reason)
        self._proven_at = self.last_ping_pong_time = time.time()  # else the SDK's first ping would count as answered
        return envelope

    async def take(self, patience_s: float) -> list[Envelope]:
        """What has arrived, in order; empty after `patience_s`. Raises `NotTaken` or `Refused` once the connection is
        lost."""
        if self._end is not None:
            raise self._end
        try:
            async with asyncio.timeout(patience_s):
                envelope = _read(await self._arrived.get())
        except TimeoutError:
            return []
        envelopes: list[Envelope] = []
        while envelope.type != "disconnect":
            envelopes.append(envelope)
            if self._arrived.empty() or len(envelopes) == MAX_TAKEN:
                return envelopes
            envelope = _read(self._arrived.get_nowait())
        self._end = _to_end(envelope.reason)
        if not envelopes:
            raise self._end
        return envelopes

    def was_just_proven(self) -> bool:
        """Whether Slack has answered a ping since the last call of this method."""
        before, self._proven_at = self._proven_at, self.last_ping_pong_time
        return self._proven_at != before

    async def acknowledge(self, envelope_id: str) -> None:
        with suppress(ConnectionError):  # Slack then sends it again
            await self.send_socket_mode_response({"envelope_id": envelope_id})


@asynccontextmanager
async def open_socket(settings: SlackSettings, web: WebApi) -> AsyncGenerator[SlackSocket]:
    """Raises `NotTaken` and `Refused`."""
    opened = await web.read("apps_connections_open", OpenedConnection, app_token=settings.app_token.reveal())
    socket = SlackSocket(settings, web)
    socket.wss_uri = opened.url
    socket.proxy = proxy_for(socket.wss_uri.replace("ws", "http", 1))
    try:
        try:
            async with asyncio.timeout(CONNECT_S):  # the SDK tries forever
                await socket.connect()
                hello = await socket.receive_hello()
        except TimeoutError as fault:
            raise NotTaken("Slack's Socket Mode cannot be reached.") from fault
        if hello.num_connections > 1:
            log.warning(
                "%d programs are connected with this Slack app: each gets some of the messages.", hello.num_connections
            )
        yield socket
    finally:
        await socket.close()


def _read(message: str | None) -> Envelope:
    return Envelope("disconnect") if message is None else decode(message, Envelope) or Envelope()


def _to_end(reason: str) -> PlatformFailure:
    if reason == "link_disabled":
        return Refused("Socket Mode is turned off for the Slack app: turn it on in the app's settings.")
    return NotTaken(f"The connection to Slack has ended ({reason or 'it broke'}).")
