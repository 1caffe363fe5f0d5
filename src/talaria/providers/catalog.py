"""The providers we know, as data (`catalog.json`). Every entry can be overridden in config.yaml."""

from functools import cache
from pathlib import Path

import msgspec

from talaria.providers.base import Caching, Prices, WireName


class ModelFacts(msgspec.Struct, frozen=True):
    window: int | None = None
    max_output: int | None = None
    prices: Prices | None = None
    """Only where we are sure."""


class ProviderFacts(msgspec.Struct, frozen=True):
    name: str
    label: str
    base_url: str
    wire: WireName = "openai_chat"
    keys: tuple[str, ...] = ()
    """Environment names that may hold the API key."""
    base_url_names: tuple[str, ...] = ()
    """Environment names that may hold another address."""
    default_model: str | None = None
    is_local: bool = False
    start: str = ""
    """The command that starts such a server."""
    is_aggregator: bool = False
    caching: Caching = "off"
    """How its own address is told to cache a prompt."""
    cached_models: tuple[str, ...] = ("",)
    """Beginnings of the names of the models for which that holds."""
    signup: str = ""
    models: dict[str, ModelFacts] = {}


class _Catalog(msgspec.Struct, frozen=True):
    providers: tuple[ProviderFacts, ...]


@cache
def catalog() -> dict[str, ProviderFacts]:
    """By name, in the order in which keys are looked for on the first run."""
    content = Path(__file__).with_name("catalog.json").read_bytes()
    return {facts.name: facts for facts in msgspec.json.decode(content, type=_Catalog).providers}
