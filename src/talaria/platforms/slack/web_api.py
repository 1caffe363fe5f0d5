"""Slack's Web API: the SDK's methods by name, what we read of their answers, and what a failure means: who must act,
and whether it may have been done. The SDK repeats nothing by itself."""

import logging
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import aiohttp
import msgspec
from slack_sdk.errors import SlackApiError
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

FAULTS = (SlackApiError, aiohttp.ClientError, TimeoutError, OSError, msgspec.ValidationError)
"""All that a call may raise."""

_LATER = frozenset({
    "ratelimited", "rate_limited", "message_limit_exceeded", "request_timeout", "team_added_to_org",
    "org_login_required", "external_channel_migrating",
})  # fmt: skip
_PERHAPS_DONE = frozenset({"internal_error", "fatal_error", "service_unavailable", "update_failed"})
"""Slack says of these that part of it may have succeeded, or says nothing."""
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


class NotUnderstood(Rejected):
    """Surely not taken in this form; plain text may be."""


def failure(fault: Exception) -> PlatformFailure:
    if isinstance(fault, SlackApiError):
        return _to_failure(fault)
    if isinstance(fault, msgspec.ValidationError):
        return Unsure("Slack's answer cannot be read.")
    return explain_no_answer("Slack", fault)


def _to_failure(fault: SlackApiError) -> PlatformFailure:
    answer = cast("Any", fault.response)  # a response of aiohttp when the body is no JSON
    data = getattr(answer, "data", None)
    body = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    status: int = getattr(answer, "status_code", 0) or getattr(answer, "status", 0)
    return _by_word(
        str(body.get("error") or ""), status, body, parse_retry_after(answer.headers.get("Retry-After", ""))
    )


def _by_word(word: str, status: int, body: dict[str, Any], retry_after_s: float | None) -> PlatformFailure:
    if status == 429 or word in _LATER:
        return NotTaken(f"Slack asks to wait ({word or status}).", retry_after_s=retry_after_s)
    if not word or status >= 500 or word in _PERHAPS_DONE:
        return Unsure(f"Slack failed ({word or status}).")
    if word == "missing_scope":
        needed = body.get("needed") or "a scope"
        return Refused(f"The Slack app lacks {needed}: add it under OAuth & Permissions and install the app again.")
    if word in _NO_ENTRY:
        return Refused(f"Slack does not let us in ({word}): check SLACK_BOT_TOKEN and SLACK_APP_TOKEN.")
    if word in _CHAT_LOST:
        return AccessLost(f"Slack does not let us write there any more ({word}).")
    if word in _NOT_UNDERSTOOD:
        return NotUnderstood(f"Slack does not understand the message ({word}).")
    return Rejected(f"Slack does not take it ({word}).")


class Done(msgspec.Struct, frozen=True):
    pass


class Identity(msgspec.Struct, frozen=True):
    team_id: str
    user_id: str


class Opened(msgspec.Struct, frozen=True):
    url: str


class Posted(msgspec.Struct, frozen=True):
    ts: str


class Ticket(msgspec.Struct, frozen=True):
    """To upload one file."""

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


class FoundPerson(msgspec.Struct, frozen=True):
    user: SlackMember


class SlackChannel(msgspec.Struct, frozen=True):
    id: str
    user: str = ""
    """Of a direct message: with whom."""


class FoundChannel(msgspec.Struct, frozen=True):
    channel: SlackChannel


class Following(msgspec.Struct, frozen=True):
    next_cursor: str = ""


class SlackPage(msgspec.Struct, frozen=True):
    response_metadata: Following | None = None

    @property
    def next_cursor(self) -> str:
        return self.response_metadata.next_cursor if self.response_metadata else ""


class Channels(SlackPage, frozen=True):
    channels: tuple[SlackChannel, ...] = ()


class Messages(SlackPage, frozen=True):
    messages: tuple[dict[str, Any], ...] = ()
    """Each is decoded for itself: one that is odd does not spoil the others."""


_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=10)

T = TypeVar("T", bound=msgspec.Struct)


def sdk_log() -> logging.Logger:
    """What the SDK logs may hold tickets and what people say; what matters of it reaches us as an exception."""
    log = logging.getLogger(f"{__name__}.sdk")
    log.setLevel(logging.CRITICAL)
    return log


class Web:
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
        self.client.proxy = proxy_for(settings.api_url)  # the SDK's own reading of the environment knows no NO_PROXY

    async def write(self, method: str, answer: type[T], **arguments: Any) -> T:
        """The answer of `chat_postMessage` and the like. Raises `PlatformFailure`."""
        try:
            told = await getattr(self.client, method)(**arguments)
            return msgspec.convert(told.data, answer)
        except FAULTS as fault:
            raise failure(fault) from fault

    async def read(self, method: str, answer: type[T], **arguments: Any) -> T:
        """As `write`, of a method that nobody notices: never `Unsure`."""
        try:
            return await self.write(method, answer, **arguments)
        except Unsure as lost:
            raise resolve_doubt(lost) from lost


@asynccontextmanager
async def open_web(settings: SlackSettings) -> AsyncGenerator[Web]:
    trusted = await load_certificates()
    async with open_session(trusted, _TIMEOUT) as session:
        yield Web(settings, session, trusted)
