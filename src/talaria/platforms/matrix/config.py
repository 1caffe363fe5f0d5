"""The settings under `gateway.platforms.matrix`, and their validation."""

import re
from typing import Literal
from urllib.parse import urlsplit

from talaria.core.errors import BadConfig
from talaria.core.secret import NO_SECRET, Secret
from talaria.platforms.base import IdForm, PlatformSettings, check_ids

_WHERE = "gateway.platforms.matrix"
_PERSON = IdForm(
    re.compile(r"@[^:\s]+:\S+"), "a person's full id looks like @name:server.org; it is in the person's profile"
)
_ROOM = IdForm(
    re.compile(r"!\S+"),
    "a room's looks like !abc:server.org and is in its settings under Advanced; an alias can change hands",
)


class MatrixSettings(PlatformSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    homeserver: str = ""
    """`https://server.org`."""
    user_id: str = ""
    """The bot's account: `@name:server.org`."""
    password: Secret = NO_SECRET
    """Used once, because the login is kept."""
    access_token: Secret = NO_SECRET
    """Instead of the password: the token of a device that nobody else uses."""
    device_name: str = "Talaria"
    encryption: Literal["auto", "off"] = "auto"
    """`auto`: encrypted rooms work if the package for encryption is installed."""


SETTINGS = MatrixSettings


def check(settings: MatrixSettings) -> None:
    """Raises `BadConfig`."""
    address = urlsplit(settings.homeserver)
    if address.scheme not in {"http", "https"} or not address.netloc:
        raise BadConfig(f"{_WHERE}.homeserver: {settings.homeserver!r} is not an address like https://server.org.")
    if not _PERSON.pattern.fullmatch(settings.user_id):
        raise BadConfig(f"{_WHERE}.user_id: {settings.user_id!r} is not an id like @name:server.org.")
    if not settings.password and not settings.access_token:
        raise BadConfig(f"{_WHERE} needs a password (MATRIX_PASSWORD) or an access_token (MATRIX_ACCESS_TOKEN).")
    check_ids("matrix", settings, person=_PERSON, chat=_ROOM, place=_ROOM)
