"""The settings under `gateway.platforms.telegram`, and their validation."""

import re
from typing import Annotated

import msgspec

from talaria.core.errors import BadConfig
from talaria.core.secret import NO_SECRET, Secret
from talaria.platforms.base import IdForm, PlatformSettings, check_ids

_WHERE = "gateway.platforms.telegram"
_TOKEN = re.compile(r"\d+:[\w-]+", re.ASCII)
_SECRET = re.compile(r"[\w-]{16,256}", re.ASCII)
_PERSON = IdForm(re.compile(r"\d+", re.ASCII), "a person's looks like 123456789; @userinfobot tells people theirs")
_CHAT = IdForm(re.compile(r"-?\d+", re.ASCII), "a group's begins with -, like -1001234567890")
_PLACE = IdForm(re.compile(r"-?\d+(:\d+)?", re.ASCII), "/sethome in a chat sets it")


class TelegramWebhookSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Telegram posts updates to `url`, where a proxy with a certificate forwards them to the address we listen on."""

    url: str
    secret_token: Secret
    """Requests without it are refused."""
    listen_host: str = "127.0.0.1"
    listen_port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 8443


class TelegramSettings(PlatformSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    token: Secret = NO_SECRET
    base_url: str = "https://api.telegram.org"
    """The Bot API; your own Bot API server works, too."""
    poll_s: Annotated[int, msgspec.Meta(ge=1, le=50)] = 50
    """How long Telegram may hold a `getUpdates` call open while there are no updates."""
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """How long to wait for the answer to any other call."""
    webhook: TelegramWebhookSettings | None = None
    """Receive updates through a webhook rather than by long polling."""


SETTINGS = TelegramSettings


def check(settings: TelegramSettings) -> None:
    """Raises `BadConfig`."""
    if not _TOKEN.fullmatch(settings.token.reveal()):
        raise BadConfig(f"{_WHERE}.token is not a token from @BotFather, which looks like 123456:ABC-def.")
    if not settings.base_url.startswith(("https://", "http://")):
        raise BadConfig(f"{_WHERE}.base_url must begin with https://.")
    check_ids("telegram", settings, person=_PERSON, chat=_CHAT, place=_PLACE)
    if settings.webhook is not None and not _SECRET.fullmatch(settings.webhook.secret_token.reveal()):
        raise BadConfig(f"{_WHERE}.webhook.secret_token must be 16 to 256 letters, digits, _ or -.")
