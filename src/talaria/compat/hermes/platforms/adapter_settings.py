"""The section of config.yaml of a plugin's platform: what all platforms have in common is ours, the rest its own."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from talaria.compat.hermes.aliases.gateway_config import HomeChannel, Platform, PlatformConfig
from talaria.core.errors import BadConfig
from talaria.core.plugin_calls import as_text
from talaria.platforms.base import Address, PlatformSettings
from talaria.plugins.registered import PlatformEntry

_LISTS = ("allowed_users", "admin_users", "allowed_chats")
_SECRET = ("token", "secret", "password", "key")
_TRUE = ("1", "true", "yes", "on")


class SecretSettings(dict[str, Any]):
    """It may hold secrets, so it does not print itself."""

    def __repr__(self) -> str:
        return "Given(•••)" if self else "Given()"


class PluginSettings(PlatformSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    given: SecretSettings = SecretSettings()
    """The section as it stands."""


def settings_of(
    entry: PlatformEntry, raw: Mapping[str, Any], seed: Mapping[str, Any], environment: Mapping[str, str]
) -> PluginSettings:
    """The environment fills what `raw` lacks; `seed` is what the plugin makes of it. Raises `BadConfig`."""
    common = {name: value for name, value in raw.items() if name in PlatformSettings.__struct_fields__}
    for name in _LISTS:
        if isinstance(common.get(name), list):
            common[name] = [_id(value) for value in common[name]]
    users = environment.get(entry.allowed_users_env, "").split(",")
    common.setdefault("allowed_users", [user.strip() for user in users if user.strip()])
    common.setdefault("allow_all_users", environment.get(entry.allow_all_env, "").strip().lower() in _TRUE)
    homes = (raw.get("home_channel"), seed.get("home_channel"), environment.get(entry.cron_deliver_env_var))
    common["home_channel"] = next((_place(entry.name, home) for home in homes if home), "")
    try:
        return msgspec.structs.replace(msgspec.convert(common, PluginSettings), given=SecretSettings(raw))
    except msgspec.ValidationError as problem:
        raise BadConfig(f"gateway.platforms.{entry.name}: {problem}") from problem


def config_of(
    entry: PlatformEntry, settings: PluginSettings, seed: Mapping[str, Any], translated: Mapping[str, Any]
) -> PlatformConfig:
    """As the adapter is given it. What the environment says counts most, as in Hermes."""
    own = {name: value for name, value in settings.given.items() if name not in ("extra", "enabled", "home_channel")}
    extra = {**own, **_mapping(settings.given.get("extra")), **translated, **seed}
    extra.pop("home_channel", None)
    return PlatformConfig(
        enabled=True,
        token=extra.get("token"),
        api_key=extra.get("api_key"),
        home_channel=_home(entry.name, settings.home_channel),
        reply_to_mode=as_text(extra.get("reply_to_mode") or "first"),
        extra=extra,
    )


def _id(value: object) -> object:
    """YAML makes numbers of most of them."""
    return as_text(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _place(platform: str, home: object) -> str:
    """`CHAT` or `CHAT:THREAD`, from that or as Hermes writes it."""
    if not isinstance(home, Mapping):
        return as_text(home)
    told = cast("Mapping[str, Any]", home)
    where = Address(platform, as_text(told.get("chat_id") or ""), as_text(told.get("thread_id") or ""))
    return str(where).partition(":")[2] if where.chat else ""


def _home(platform: str, place: str) -> HomeChannel | None:
    if not place:
        return None
    try:
        where = Address.parse(f"{platform}:{place}")
    except ValueError as problem:
        raise BadConfig(f"gateway.platforms.{platform}.home_channel: {problem}.") from problem
    return HomeChannel(Platform(platform), where.chat, thread_id=where.thread or None)


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def secrets_in(config: PlatformConfig) -> Iterable[str]:
    """Told by the names of the settings that hold them; the longest first, as one may be the beginning of another."""
    named = ((name, value) for name, value in config.extra.items() if any(sign in name.lower() for sign in _SECRET))
    values = {config.token, config.api_key, *(value for _, value in named if isinstance(value, str))}
    return sorted((value for value in values if value), key=len, reverse=True)


def missing(entry: PlatformEntry, environment: Mapping[str, str]) -> Iterable[str]:
    """Which variables it names that are not set; some of them may stand in config.yaml under other names."""
    return (name for name in entry.required_env if not environment.get(name))
