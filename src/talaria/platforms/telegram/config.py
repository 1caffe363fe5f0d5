"""The settings of `gateway.platforms.telegram`, and what is wrong with them."""

import re
from typing import Annotated

import msgspec

from talaria.core.errors import BadConfig
from talaria.core.secret import NO_SECRET, Secret
from talaria.platforms.base import PlatformSettings
from talaria.platforms.id_settings import IdForm, check_ids

_WHERE = "gateway.platforms.telegram"
_TOKEN = re.compile(r"\d+:[\w-]+", re.ASCII)
_SECRET = re.compile(r"[\w-]{16,256}", re.ASCII)
_PERSON = IdForm(re.compile(r"\d+", re.ASCII), "a person's looks like 123456789; @userinfobot tells people theirs")
_CHAT = IdForm(re.compile(r"-?\d+", re.ASCII), "a group's begins with -, like -1001234567890")
_PLACE = IdForm(re.compile(r"-?\d+(:\d+)?", re.ASCII), "/sethome in a chat sets it")


class TelegramWebhookSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Telegram comes to us: to `url`, behind which somebody with a certificate passes it on to where we listen."""

    url: str
    secret_token: Secret
    """Only who knows it is heard."""
    listen_host: str = "127.0.0.1"
    listen_port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 8443


class TelegramSettings(PlatformSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    token: Secret = NO_SECRET
    base_url: str = "https://api.telegram.org"
    """Of the Bot API; a server of one's own works as well."""
    poll_s: Annotated[int, msgspec.Meta(ge=1, le=50)] = 50
    """How long Telegram may hold a question for news before it answers that there are none."""
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """How long to wait for any other answer."""
    webhook: TelegramWebhookSettings | None = None
    """In place of asking for news."""


SETTINGS = TelegramSettings


def check(settings: TelegramSettings) -> None:
    """Raises `BadConfig`."""
    if not _TOKEN.fullmatch(settings.token.reveal()):
        raise BadConfig(f"{_WHERE}.token is not what @BotFather gives out, which looks like 123456:ABC-def.")
    if not settings.base_url.startswith(("https://", "http://")):
        raise BadConfig(f"{_WHERE}.base_url must begin with https://.")
    check_ids("telegram", settings, person=_PERSON, chat=_CHAT, place=_PLACE)
    if settings.webhook is not None and not _SECRET.fullmatch(settings.webhook.secret_token.reveal()):
        raise BadConfig(f"{_WHERE}.webhook.secret_token must be 16 to 256 letters, digits, _ or -.")
