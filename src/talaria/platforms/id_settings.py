"""Ids in the settings of chat services. Names can change hands there, so only ids count."""

import re

import msgspec

from talaria.core.errors import BadConfig
from talaria.platforms.base import PlatformSettings


class IdForm(msgspec.Struct, frozen=True):
    pattern: re.Pattern[str]
    hint: str
    """Where one is found: the end of a sentence."""


def check_ids(platform: str, settings: PlatformSettings, *, person: IdForm, chat: IdForm, place: IdForm) -> None:
    """`place`: a chat, perhaps with a thread. Raises `BadConfig`."""
    for name, ids, form in (
        ("allowed_users", settings.allowed_users, person),
        ("admin_users", settings.admin_users, person),
        ("allowed_chats", settings.allowed_chats, chat),
        ("home_channel", filter(None, [settings.home_channel]), place),
    ):
        for id in ids:
            if form.pattern.fullmatch(id) is None:
                where = f"gateway.platforms.{platform}.{name}"
                raise BadConfig(f"{where}: {id!r} is not an id, and names can change hands: {form.hint}.")
