"""The settings of `gateway.platforms.telegram`, and what is wrong with them."""

import re
from collections.abc import Iterator
from typing import Annotated

import msgspec

from talaria.core.errors import BadConfig
from talaria.core.secret import NO_SECRET, Secret
from talaria.platforms.base import PlatformSettings

_WHERE = "gateway.platforms.telegram"
_TOKEN = re.compile(r"\d+:[\w-]+", re.ASCII)
_SECRET = re.compile(r"[\w-]{16,256}", re.ASCII)
_PERSON = re.compile(r"\d+", re.ASCII)
_CHAT = re.compile(r"-?\d+", re.ASCII)
_CHANNEL = re.compile(r"-?\d+(:\d+)?", re.ASCII)


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
    for complaint in _complaints(settings):
        raise BadConfig(complaint)


def _complaints(settings: TelegramSettings) -> Iterator[str]:
    if not _TOKEN.fullmatch(settings.token.reveal()):
        yield f"{_WHERE}.token is not what @BotFather gives out, which looks like 123456:ABC-def."
    if not settings.base_url.startswith(("https://", "http://")):
        yield f"{_WHERE}.base_url must begin with https://."
    for name, ids in (("allowed_users", settings.allowed_users), ("admin_users", settings.admin_users)):
        yield from (
            _no_id(name, wrong, "@userinfobot tells people theirs") for wrong in ids if not _PERSON.fullmatch(wrong)
        )
    groups = (wrong for wrong in settings.allowed_chats if not _CHAT.fullmatch(wrong))
    yield from (_no_id("allowed_chats", wrong, "that of a group begins with -") for wrong in groups)
    if settings.home_channel and not _CHANNEL.fullmatch(settings.home_channel):
        yield _no_id("home_channel", settings.home_channel, "/sethome in a chat sets it")
    if settings.webhook is not None and not _SECRET.fullmatch(settings.webhook.secret_token.reveal()):
        yield f"{_WHERE}.webhook.secret_token must be 16 to 256 letters, digits, _ or -."


def _no_id(name: str, wrong: str, where_from: str) -> str:
    why = "names change hands on Telegram, so only ids count"
    return f"{_WHERE}.{name} has {wrong!r}: {why}, like 123456789; {where_from}."
