"""Every setting of config.yaml, its type and its default. Unknown keys are errors."""

from typing import Annotated, Any

import msgspec

from talaria.model.secret import NO_SECRET, Secret
from talaria.net.timeouts import Timeouts
from talaria.providers.base import Effort, Prices, WireName

Count = Annotated[int, msgspec.Meta(ge=1)]
Amount = Annotated[float, msgspec.Meta(gt=0)]
Price = Annotated[float, msgspec.Meta(ge=0)]


class TimeoutsConfig(Timeouts, frozen=True, forbid_unknown_fields=True):
    connect_s: Amount = Timeouts().connect_s
    read_s: Amount = Timeouts().read_s


class PricesConfig(Prices, frozen=True, forbid_unknown_fields=True):
    input: Price
    output: Price
    cache_read: Price | None = None
    cache_write: Price | None = None


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    default: str | None = None
    """A model, or `provider:model`."""
    provider: str | None = None
    base_url: str | None = None
    api_key: Secret = NO_SECRET
    wire: WireName | None = None
    context_length: Count | None = None
    max_tokens: Count | None = None
    reasoning_effort: Effort | None = None
    streaming: bool = True
    """Whether answers are asked for word by word, or whole."""


class ModelEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is known of one model; a setting here replaces the catalog's."""

    context_length: Count | None = None
    max_tokens: Count | None = None
    prices: PricesConfig | None = None


class ProviderConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An own provider, or changes to one of the catalog."""

    base_url: str | None = None
    api_key: Secret = NO_SECRET
    wire: WireName | None = None
    headers: dict[str, Secret] = {}
    """Secret, because some endpoints take their key in one."""
    timeouts: TimeoutsConfig | None = None
    default_model: str | None = None
    models: dict[str, ModelEntry] = {}
    streaming: bool | None = None
    """In place of `model.streaming`."""


class AgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    max_turns: Count = 60
    """Rounds of tool calls per turn."""
    max_tokens: Count | None = None
    max_cost_usd: Amount | None = None
    max_seconds: Amount | None = None


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
