"""The settings under `gateway.platforms.discord`, and their validation."""

import re

from talaria.core.errors import BadConfig
from talaria.core.secret import Secret
from talaria.platforms.base import IdForm, PlatformSettings, check_ids

_WHERE = "gateway.platforms.discord"
_HOW = (
    "in Discord, switch on Settings → Advanced → Developer Mode; then right-click the person or the channel and "
    "choose Copy ID"
)
_ONE = IdForm(re.compile(r"[0-9]{1,20}"), _HOW)
_PLACE = IdForm(re.compile(r"[0-9]{1,20}(:[0-9]{1,20})?"), _HOW)


class DiscordSettings(PlatformSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    token: Secret
    """The bot's token, from the developer portal."""
    api_url: str = "https://discord.com/api/v10"
    gateway_url: str = ""
    """If empty, Discord's API names it."""


SETTINGS = DiscordSettings


def is_snowflake(text: str) -> bool:
    """Whether this is an id of Discord's."""
    return _ONE.pattern.fullmatch(text) is not None


def check(settings: DiscordSettings) -> None:
    """Raises `BadConfig`."""
    check_ids("discord", settings, person=_ONE, chat=_ONE, place=_PLACE)
    if not settings.token.reveal().isascii() or not settings.token.reveal().isprintable():
        raise BadConfig(f"{_WHERE}.token is not a token: copy it again from the developer portal.")
    if not settings.api_url.startswith(("https://", "http://")):
        raise BadConfig(f"{_WHERE}.api_url must begin with https://.")
    if settings.gateway_url and not settings.gateway_url.startswith(("wss://", "ws://")):
        raise BadConfig(f"{_WHERE}.gateway_url must begin with wss://.")
