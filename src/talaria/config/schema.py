"""Every setting of config.yaml, its type and its default. Unknown keys are errors."""

from typing import Any

import msgspec

from talaria.model.secret import NO_SECRET, Secret
from talaria.net.timeouts import Timeouts
from talaria.providers.base import Effort, Prices, WireName


class TimeoutsConfig(Timeouts, frozen=True, forbid_unknown_fields=True):
    pass


class PricesConfig(Prices, frozen=True, forbid_unknown_fields=True):
    pass


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    default: str | None = None
    """A model, or `provider:model`."""
    provider: str | None = None
    base_url: str | None = None
    api_key: Secret = NO_SECRET
    wire: WireName | None = None
    context_length: int | None = None
    max_tokens: int | None = None
    reasoning_effort: Effort | None = None


class ModelEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is known of one model; a setting here replaces the catalog's."""

    context_length: int | None = None
    max_tokens: int | None = None
    prices: PricesConfig | None = None


class ProviderConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An own provider, or changes to one of the catalog."""

    base_url: str | None = None
    api_key: Secret = NO_SECRET
    wire: WireName | None = None
    headers: dict[str, str] = {}
    timeouts: TimeoutsConfig | None = None
    default_model: str | None = None
    models: dict[str, ModelEntry] = {}


class AgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    max_turns: int = 60
    """Rounds of tool calls per turn."""
    max_tokens: int | None = None
    max_cost_usd: float | None = None
    max_seconds: float | None = None


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    model: ModelConfig = ModelConfig()
    providers: dict[str, ProviderConfig] = {}
    agent: AgentConfig = AgentConfig()


def decode_secret(type: type, value: Any) -> Any:
    """msgspec's hook for our own types."""
    if type is not Secret:
        raise NotImplementedError
    if not isinstance(value, str):
        raise TypeError("Expected `str`")
    return Secret(value)
