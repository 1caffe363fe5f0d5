"""The settings of Slack, and what is wrong with them."""

import re
from collections.abc import Iterable
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from talaria.core.errors import BadConfig
from talaria.core.secret import NO_SECRET, Secret
from talaria.platforms.base import PlatformSettings

API_URL = "https://slack.com/api/"

_PERSON = re.compile(r"[UW][A-Z0-9]+")
_CHANNEL = re.compile(r"[CGD][A-Z0-9]+")
_PLACE = re.compile(r"[CGD][A-Z0-9]+(:\d+\.\d+)?")

_HOW_PERSON = "a person's id begins with U or W; it is in their profile under ⋮, Copy member ID"
_HOW_CHANNEL = "a channel's id begins with C, G or D; it is at the foot of the channel's details"


class SlackSettings(PlatformSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    bot_token: Secret = NO_SECRET
    """`xoxb-…`, to act."""
    app_token: Secret = NO_SECRET
    """`xapp-…`, to be told what happens."""
    api_url: str = API_URL
    ping_s: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    """How often the line is tested."""


SETTINGS = SlackSettings


def check(settings: SlackSettings) -> None:
    """Raises `BadConfig`."""
    _check_token("bot_token", settings.bot_token, "xoxb-")
    _check_token("app_token", settings.app_token, "xapp-")
    _check_ids("allowed_users", settings.allowed_users, _PERSON, _HOW_PERSON)
    _check_ids("admin_users", settings.admin_users, _PERSON, _HOW_PERSON)
    _check_ids("allowed_chats", settings.allowed_chats, _CHANNEL, _HOW_CHANNEL)
    _check_ids("home_channel", filter(None, [settings.home_channel]), _PLACE, _HOW_CHANNEL)
    address = urlsplit(settings.api_url)
    if address.scheme not in {"http", "https"} or not address.netloc:
        raise BadConfig(f"gateway.platforms.slack.api_url: {settings.api_url!r} is no address like {API_URL}.")


def _check_token(name: str, token: Secret, prefix: str) -> None:
    if not token.reveal().startswith(prefix):
        raise BadConfig(f"gateway.platforms.slack.{name} (SLACK_{name.upper()}) must begin with {prefix}.")


def _check_ids(name: str, ids: Iterable[str], form: re.Pattern[str], how: str) -> None:
    for id in ids:
        if form.fullmatch(id) is None:
            raise BadConfig(f"gateway.platforms.slack.{name}: {id!r} is not an id. Names can change hands: {how}.")
