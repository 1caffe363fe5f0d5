"""The platforms of plugins, as the gateway uses them: like those of ours."""

import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from talaria.compat.hermes.aliases.gateway_config import PlatformConfig
from talaria.compat.hermes.aliases.hermes_cli_config import load_config
from talaria.compat.hermes.platforms.adapted import AdaptedPlatform, Tell
from talaria.compat.hermes.platforms.adapter import BasePlatformAdapter
from talaria.compat.hermes.platforms.adapter_settings import PluginSettings, config_of, missing, secrets_in, settings_of
from talaria.compat.hermes.platforms.send_outcomes import to_safe_line
from talaria.core.clock import Clock
from talaria.core.plugin_calls import PluginError, as_text, contain, run_within
from talaria.platforms.base import Kit, Platform, Refused
from talaria.plugins.contributions import OfferedPlatform
from talaria.plugins.registered import PlatformEntry

CHECK_S = 5.0
MAKE_S = 30.0


@dataclass(frozen=True, slots=True)
class PluginPlatform:
    entry: PlatformEntry
    environment: Mapping[str, str]
    tell: Tell
    problem: str = ""
    """Why it cannot be used here; empty if it can."""
    seed: Mapping[str, Any] | None = None
    """What the plugin reads in the environment; None if that does not set it up."""

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def label(self) -> str:
        return self.entry.label

    @property
    def is_set_up(self) -> bool:
        """By the environment alone, without a word in config.yaml."""
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
            config = await run_within(partial(_config, self, settings), CHECK_S, kit.clock)
            adapter = await _make_adapter(self.entry, config, kit.clock)
        except PluginError as fault:
            self.tell("making the adapter", fault)
            raise Refused(f"{cannot}: making its adapter {to_safe_line(str(fault))}.") from fault
        if not isinstance(adapter, BasePlatformAdapter):
            raise Refused(f"{cannot}: its plugin makes no adapter of the settings.")
        account, secrets = _account(self, config), tuple(secrets_in(config))
        platform = AdaptedPlatform(self.entry, adapter, account, kit.clock, self.tell, secrets)
        try:
            await platform.connect()
            yield platform
        finally:
            await platform.close()


async def plugin_platforms(
    offered: Mapping[str, OfferedPlatform], environment: Mapping[str, str], clock: Clock
) -> dict[str, PluginPlatform]:
    """Each asked whether it can be used, and whether the environment sets it up."""
    return {name: await _ask(one, environment, clock) for name, one in offered.items()}


async def _ask(offered: OfferedPlatform, environment: Mapping[str, str], clock: Clock) -> PluginPlatform:
    entry = offered.entry

    def tell(what: str, fault: PluginError) -> None:
        offered.problems.add(offered.plugin.key, f"{what} of its platform {entry.name}", fault)

    platform = PluginPlatform(entry, environment, tell)
    try:
        is_usable = await run_within(lambda: bool(entry.check_fn()), CHECK_S, clock)
        seed = await run_within(lambda: _mapping(entry.env_enablement_fn), CHECK_S, clock)
    except PluginError as fault:
        tell("the check", fault)
        return replace(platform, problem=f"its check {fault}")
    return replace(platform, problem="" if is_usable else _unusable(platform), seed=seed)


def _unusable(platform: PluginPlatform) -> str:
    unset = ", ".join(missing(platform.entry, platform.environment))
    words = ("its plugin says that something is missing", f"{unset} may have to be set" if unset else "")
    hint = as_text(platform.entry.install_hint).rstrip(".")
    return "; ".join(word for word in (*words, hint) if word)


def _mapping(ask: Any, *facts: Any) -> dict[str, Any] | None:
    answer = ask(*facts) if ask is not None else None
    return dict(cast("Mapping[str, Any]", answer)) if isinstance(answer, Mapping) else None


def _config(offered: PluginPlatform, settings: PluginSettings) -> PlatformConfig:
    """Off the event loop: it runs code of theirs."""
    entry, given = offered.entry, dict(settings.given)
    translated = _mapping(entry.apply_yaml_config_fn, load_config(), given) if entry.apply_yaml_config_fn else None
    config = config_of(entry, settings, offered.seed or {}, translated or {})
    if entry.validate_config is not None and not entry.validate_config(config):
        unset = ", ".join(missing(entry, offered.environment))
        raise PluginError(f"needs more settings{f': {unset}' if unset else ''}")
    return config


async def _make_adapter(entry: PlatformEntry, config: PlatformConfig, clock: Clock) -> object:
    """In a thread; some want to see the event loop while they are made."""
    try:
        return await run_within(lambda: entry.adapter_factory(config), MAKE_S, clock)
    except PluginError as fault:
        if not isinstance(fault.__cause__, RuntimeError) or "event loop" not in str(fault):
            raise
    return contain(lambda: entry.adapter_factory(config))


def _account(offered: PluginPlatform, config: PlatformConfig) -> str:
    """Adapters do not tell which account they use: what lets them in stands for it."""
    facts = (config.token, config.api_key, *(offered.environment.get(name) for name in offered.entry.required_env))
    known = "\0".join(as_text(fact) for fact in facts if fact)
    return hashlib.sha256(known.encode()).hexdigest()[:16] if known else offered.name
