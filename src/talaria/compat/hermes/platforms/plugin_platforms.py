"""The platforms of plugins, made usable for the gateway like our own.

In their section of config.yaml, what all platforms have in common is ours; the rest is the adapter's.
"""

import hashlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import msgspec

from talaria.compat.hermes.aliases.hermes_cli_config import load_config
from talaria.compat.hermes.aliases.hermes_gateway import HomeChannel, PlatformConfig
from talaria.compat.hermes.aliases.hermes_gateway import Platform as PlatformName
from talaria.compat.hermes.platforms.adapted import AdaptedPlatform, Tell
from talaria.compat.hermes.platforms.adapter import BasePlatformAdapter
from talaria.compat.hermes.platforms.send_outcomes import to_safe_line
from talaria.core.clock import Clock
from talaria.core.errors import BadConfig
from talaria.core.plugin_calls import PluginError, contain, run_within
from talaria.core.text import as_text
from talaria.platforms.base import Address, Kit, Platform, PlatformSettings, Refused
from talaria.plugins.contributions import OfferedPlatform
from talaria.plugins.registered import PlatformEntry

CHECK_S = 5.0
MAKE_S = 30.0
_LISTS = ("allowed_users", "admin_users", "allowed_chats")
_SECRET = ("token", "secret", "password", "key")
_TRUE = ("1", "true", "yes", "on")


class SecretSettings(dict[str, Any]):
    """They may include secrets, so they do not print themselves."""

    def __repr__(self) -> str:
        return "SecretSettings(•••)" if self else "SecretSettings()"


class PluginSettings(PlatformSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    given: SecretSettings = SecretSettings()
    """The whole section."""


@dataclass(frozen=True, slots=True)
class PluginPlatform:
    entry: PlatformEntry
    environment: Mapping[str, str]
    tell: Tell
    problem: str = ""
    """Why it cannot be used here; empty if it can."""
    seed: Mapping[str, Any] | None = None
    """What the plugin reads from the environment; None if that does not set it up."""

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def label(self) -> str:
        return self.entry.label

    @property
    def is_set_up(self) -> bool:
        """By the environment alone, without config.yaml."""
        return self.seed is not None

    def settings(self, raw: Mapping[str, Any]) -> PluginSettings:
        """Raises `BadConfig`."""
        return settings_of(self.entry, raw, self.seed or {}, self.environment)

    @asynccontextmanager
    async def open(self, settings: PluginSettings, kit: Kit) -> AsyncGenerator[Platform]:
        """Raises `Refused`, `NotTaken`, `BadConfig`."""
        cannot = f"{self.label} cannot be used"
        if self.problem:
            raise Refused(f"{cannot}: {self.problem}.")
        try:
            config = await run_within(partial(_make_config, self, settings), CHECK_S, kit.clock)
            adapter = await _make_adapter(self.entry, config, kit.clock)
        except PluginError as fault:
            self.tell("making the adapter", fault)
            raise Refused(f"{cannot}: making its adapter {to_safe_line(str(fault))}.") from fault
        if not isinstance(adapter, BasePlatformAdapter):
            raise Refused(f"{cannot}: its plugin makes something that is not an adapter.")
        # Adapters do not say which account they use: their credentials identify it.
        required = (self.environment.get(name) for name in self.entry.required_env)
        known = "\0".join(as_text(fact) for fact in (config.token, config.api_key, *required) if fact)
        account = hashlib.sha256(known.encode()).hexdigest()[:16] if known else self.name
        platform = AdaptedPlatform(self.entry, adapter, account, kit.clock, self.tell, secrets_in(config))
        try:
            await platform.connect()
            yield platform
        finally:
            await platform.close()


def _make_config(offered: PluginPlatform, settings: PluginSettings) -> PlatformConfig:
    """Off the event loop: it runs the plugin's code."""
    entry = offered.entry
    translate = entry.apply_yaml_config_fn
    translated = None if translate is None else _call(translate, load_config(), dict(settings.given))
    config = config_of(entry, settings, offered.seed or {}, translated or {})
    if entry.validate_config is not None and not entry.validate_config(config):
        unset = list_unset(entry, offered.environment)
        raise PluginError(f"needs more settings{f': {unset}' if unset else ''}")
    return config


async def _make_adapter(entry: PlatformEntry, config: PlatformConfig, clock: Clock) -> object:
    """In a thread, unless it wants an event loop while it is made."""
    try:
        return await run_within(lambda: entry.adapter_factory(config), MAKE_S, clock)
    except PluginError as fault:
        if not isinstance(fault.__cause__, RuntimeError) or "event loop" not in str(fault):
            raise
    return contain(lambda: entry.adapter_factory(config))


async def plugin_platforms(
    offered: Mapping[str, OfferedPlatform], environment: Mapping[str, str], clock: Clock
) -> dict[str, PluginPlatform]:
    """Asks each whether it can be used, and whether the environment sets it up."""
    return {name: await _check(one, environment, clock) for name, one in offered.items()}


async def _check(offered: OfferedPlatform, environment: Mapping[str, str], clock: Clock) -> PluginPlatform:
    entry = offered.entry

    def tell(what: str, fault: PluginError) -> None:
        offered.problems.add(offered.plugin.key, f"{what} of its platform {entry.name}", fault)

    platform = PluginPlatform(entry, environment, tell)
    try:
        is_usable = await run_within(lambda: bool(entry.check_fn()), CHECK_S, clock)
        seed = await run_within(lambda: _call(entry.env_enablement_fn), CHECK_S, clock)
    except PluginError as fault:
        tell("the check", fault)
        return replace(platform, problem=f"its check {fault}")
    problem = ""
    if not is_usable:
        unset = list_unset(entry, environment)
        hint = as_text(entry.install_hint).rstrip(".")
        clauses = ("its plugin says that something is missing", f"{unset} may have to be set" if unset else "", hint)
        problem = "; ".join(clause for clause in clauses if clause)
    return replace(platform, problem=problem, seed=seed)


def _call(function: Any, *facts: Any) -> dict[str, Any] | None:
    answer = function(*facts) if function is not None else None
    return dict(cast("Mapping[str, Any]", answer)) if isinstance(answer, Mapping) else None


def settings_of(
    entry: PlatformEntry, raw: Mapping[str, Any], seed: Mapping[str, Any], environment: Mapping[str, str]
) -> PluginSettings:
    """The environment fills in what `raw` lacks; `seed` is what the plugin reads from it. Raises `BadConfig`."""
    common = {name: value for name, value in raw.items() if name in PlatformSettings.__struct_fields__}
    for name in _LISTS:
        if isinstance(common.get(name), list):  # YAML reads most ids as numbers
            common[name] = [
                as_text(value) if isinstance(value, int) and not isinstance(value, bool) else value
                for value in common[name]
            ]
    users = environment.get(entry.allowed_users_env, "").split(",")
    common.setdefault("allowed_users", [user.strip() for user in users if user.strip()])
    common.setdefault("allow_all_users", environment.get(entry.allow_all_env, "").strip().lower() in _TRUE)
    homes = (raw.get("home_channel"), seed.get("home_channel"), environment.get(entry.cron_deliver_env_var))
    home = next((one for one in homes if one), "")
    if isinstance(home, Mapping):  # as Hermes writes it; ours is `CHAT` or `CHAT:THREAD`
        fields = cast("Mapping[str, Any]", home)
        where = Address(entry.name, as_text(fields.get("chat_id") or ""), as_text(fields.get("thread_id") or ""))
        home = str(where).partition(":")[2] if where.chat else ""
    common["home_channel"] = as_text(home)
    try:
        return msgspec.structs.replace(msgspec.convert(common, PluginSettings), given=SecretSettings(raw))
    except msgspec.ValidationError as problem:
        raise BadConfig(f"gateway.platforms.{entry.name}: {problem}") from problem


def config_of(
    entry: PlatformEntry, settings: PluginSettings, seed: Mapping[str, Any], translated: Mapping[str, Any]
) -> PlatformConfig:
    """What the adapter is given. The environment has the last word, as in Hermes."""
    given, nested = settings.given, settings.given.get("extra")
    extra = {name: value for name, value in given.items() if name not in ("extra", "enabled", "home_channel")}
    extra |= dict(cast("Mapping[str, Any]", nested)) if isinstance(nested, Mapping) else {}
    extra |= {**translated, **seed}
    extra.pop("home_channel", None)
    home: HomeChannel | None = None
    if settings.home_channel:
        try:
            where = Address.parse(f"{entry.name}:{settings.home_channel}")
        except ValueError as problem:
            raise BadConfig(f"gateway.platforms.{entry.name}.home_channel: {problem}.") from problem
        home = HomeChannel(PlatformName(entry.name), where.chat, thread_id=where.thread or None)
    return PlatformConfig(
        enabled=True,
        token=extra.get("token"),
        api_key=extra.get("api_key"),
        home_channel=home,
        reply_to_mode=as_text(extra.get("reply_to_mode") or "first"),
        extra=extra,
    )


def secrets_in(config: PlatformConfig) -> Sequence[str]:
    """Recognized by the names of the settings. The longest first, as one may be the beginning of another."""
    named = ((name, value) for name, value in config.extra.items() if any(part in name.lower() for part in _SECRET))
    values = {config.token, config.api_key, *(value for _, value in named if isinstance(value, str))}
    return sorted((value for value in values if value), key=len, reverse=True)


def list_unset(entry: PlatformEntry, environment: Mapping[str, str]) -> str:
    """The variables it names that are not set; some may be in config.yaml under other names."""
    return ", ".join(name for name in entry.required_env if not environment.get(name))
