"""What went wrong with a call of Slack's Web API → who must act, and whether it may have been done."""

from typing import Any, cast

import aiohttp
import msgspec
from slack_sdk.errors import SlackApiError

from talaria.platforms.base import AccessLost, NotTaken, PlatformFailure, Refused, Rejected, Unsure
from talaria.platforms.failures import pause_s, silence

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
        return _answered(fault)
    if isinstance(fault, msgspec.ValidationError):
        return Unsure("Slack's answer cannot be read.")
    return silence("Slack", fault)


def _answered(fault: SlackApiError) -> PlatformFailure:
    answer = cast("Any", fault.response)  # a response of aiohttp when the body is no JSON
    data = getattr(answer, "data", None)
    body = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    status: int = getattr(answer, "status_code", 0) or getattr(answer, "status", 0)
    return _by_word(str(body.get("error") or ""), status, body, pause_s(answer.headers.get("Retry-After", "")))


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
