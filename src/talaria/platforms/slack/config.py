"""The settings under `gateway.platforms.slack`, and their validation."""

import re
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from talaria.core.errors import BadConfig
from talaria.core.secret import NO_SECRET, Secret
from talaria.platforms.base import IdForm, PlatformSettings, check_ids

API_URL = "https://slack.com/api/"

_IN_DETAILS = "a channel's begins with C, G or D; it is at the bottom of the channel's details"
_PERSON = IdForm(
    re.compile(r"[UW][A-Z0-9]+"), "a person's begins with U or W; it is in their profile under ⋮, Copy member ID"
)
_CHANNEL = IdForm(re.compile(r"[CGD][A-Z0-9]+"), _IN_DETAILS)
_PLACE = IdForm(re.compile(r"[CGD][A-Z0-9]+(:\d+\.\d+)?"), _IN_DETAILS)


class SlackSettings(PlatformSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    bot_token: Secret = NO_SECRET
    """`xoxb-…`, for the Web API."""
    app_token: Secret = NO_SECRET
    """`xapp-…`, for Socket Mode."""
    api_url: str = API_URL
    ping_s: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    """The interval between pings."""


SETTINGS = SlackSettings


def check(settings: SlackSettings) -> None:
    """Raises `BadConfig`."""
    _check_token("bot_token", settings.bot_token, "xoxb-")
    _check_token("app_token", settings.app_token, "xapp-")
    check_ids("slack", settings, person=_PERSON, chat=_CHANNEL, place=_PLACE)
    address = urlsplit(settings.api_url)
    if address.scheme not in {"http", "https"} or not address.netloc:
        raise BadConfig(f"gateway.platforms.slack.api_url: {settings.api_url!r} is not an address like {API_URL}.")


def _check_token(name: str, token: Secret, prefix: str) -> None:
    if not token.reveal().startswith(prefix):
        raise BadConfig(f"gateway.platforms.slack.{name} (SLACK_{name.upper()}) must begin with {prefix}.")
