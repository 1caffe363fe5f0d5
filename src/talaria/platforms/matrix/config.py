"""The settings of `gateway.platforms.matrix`, and what is wrong with them."""

import re
from collections.abc import Iterable, Iterator
from typing import Literal
from urllib.parse import urlsplit

from talaria.core.errors import BadConfig
from talaria.core.secret import NO_SECRET, Secret
from talaria.platforms.base import PlatformSettings

_WHERE = "gateway.platforms.matrix"
_PERSON = re.compile(r"@[^:\s]+:\S+")
_ROOM = re.compile(r"!\S+")
_HOW_PERSON = "a full id looks like @name:server.org and is in the person's profile"
_HOW_ROOM = "a room's id looks like !abc:server.org and is in its settings under Advanced; an alias can be moved"


class MatrixSettings(PlatformSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    homeserver: str = ""
    """`https://server.org`."""
    user_id: str = ""
    """Of the bot's account: `@name:server.org`."""
    password: Secret = NO_SECRET
    """Used once: the login is kept."""
    access_token: Secret = NO_SECRET
    """In place of the password: of a device that nobody else uses."""
    device_name: str = "Talaria"
    encryption: Literal["auto", "off"] = "auto"
    """`auto`: rooms that are encrypted are read and written if the package for it is there."""


SETTINGS = MatrixSettings


def check(settings: MatrixSettings) -> None:
    """Raises `BadConfig`."""
    for complaint in _complaints(settings):
        raise BadConfig(complaint)


def _complaints(settings: MatrixSettings) -> Iterator[str]:
    address = urlsplit(settings.homeserver)
    if address.scheme not in {"http", "https"} or not address.netloc:
        yield f"{_WHERE}.homeserver: {settings.homeserver!r} is no address like https://server.org."
    if not _PERSON.fullmatch(settings.user_id):
        yield f"{_WHERE}.user_id: {settings.user_id!r} is no id like @name:server.org."
    if not settings.password and not settings.access_token:
        yield f"{_WHERE} needs a password (MATRIX_PASSWORD) or an access_token (MATRIX_ACCESS_TOKEN)."
    yield from _no_ids("allowed_users", settings.allowed_users, _PERSON, _HOW_PERSON)
    yield from _no_ids("admin_users", settings.admin_users, _PERSON, _HOW_PERSON)
    yield from _no_ids("allowed_chats", settings.allowed_chats, _ROOM, _HOW_ROOM)
    yield from _no_ids("home_channel", filter(None, [settings.home_channel]), _ROOM, _HOW_ROOM)


def _no_ids(name: str, ids: Iterable[str], form: re.Pattern[str], how: str) -> Iterator[str]:
    return (f"{_WHERE}.{name}: {wrong!r} is not an id: {how}." for wrong in ids if not form.fullmatch(wrong))
