"""What can be set for Discord, under `gateway.platforms.discord`."""

from collections.abc import Iterable

from talaria.core.errors import BadConfig
from talaria.core.secret import Secret
from talaria.platforms.base import PlatformSettings

_WHERE = "gateway.platforms.discord"
_HOW = (
    "In Discord, switch on Settings → Advanced → Developer Mode; then right-click the person or the channel and "
    "choose Copy ID."
)


class DiscordSettings(PlatformSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    token: Secret
    """Of the bot, from the developer portal."""
    api_url: str = "https://discord.com/api/v10"
    gateway_url: str = ""
    """Empty: the one that the API names."""


SETTINGS = DiscordSettings


def is_snowflake(text: str) -> bool:
    """An id of Discord's: it is never given to anybody else."""
    return text.isascii() and text.isdigit() and len(text) <= 20


def check(settings: DiscordSettings) -> None:
    """Raises `BadConfig`."""
    _check_ids("allowed_users", settings.allowed_users)
    _check_ids("admin_users", settings.admin_users)
    _check_ids("allowed_chats", settings.allowed_chats)
    _check_ids("home_channel", settings.home_channel.split(":") if settings.home_channel else ())
    if not settings.token.reveal().isascii() or not settings.token.reveal().isprintable():
        raise BadConfig(f"{_WHERE}.token holds signs that no token has: copy it again from the developer portal.")
    if not settings.api_url.startswith(("https://", "http://")):
        raise BadConfig(f"{_WHERE}.api_url must begin with https://.")
    if settings.gateway_url and not settings.gateway_url.startswith(("wss://", "ws://")):
        raise BadConfig(f"{_WHERE}.gateway_url must begin with wss://.")


def _check_ids(setting: str, given: Iterable[str]) -> None:
    for text in given:
        if not is_snowflake(text):
            raise BadConfig(f"{_WHERE}.{setting}: {text!r} is no id, and names can change hands. {_HOW}")
