"""`agent.usage_pricing`: what vendors count, in buckets that do not overlap, and what that costs where we are sure."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, cast

import msgspec

from talaria.agent.budget import cost_usd
from talaria.compat.hermes.aliases.hermes_cli_config import cfg_get, load_config
from talaria.context.engine import CanonicalUsage
from talaria.core.messages import Usage
from talaria.providers.base import Prices
from talaria.providers.catalog import catalog
from talaria.providers.wire_parts import clamp_count


@dataclass(frozen=True, slots=True)
class CostResult:
    amount_usd: Decimal | None = None
    """None: nobody knows."""
    status: Literal["estimated", "unknown"] = "unknown"
    source: str = "none"
    label: str = "n/a"


def normalize_usage(
    response_usage: object, *, provider: str | None = None, api_mode: str | None = None
) -> CanonicalUsage:
    """From OpenAI's two shapes, Anthropic's, or our own; a mapping or an object."""
    raw = response_usage
    if _field(raw, "cache_read_tokens") is not None:
        return _ours(raw)
    if _field(raw, "prompt_tokens") is not None:
        return _openai(raw, "prompt_tokens", "completion_tokens")
    is_anthropic = "anthropic" in (provider or "", (api_mode or "").partition("_")[0])
    if is_anthropic or any(_field(raw, name) is not None for name in _ANTHROPIC_CACHE):
        return _anthropic(raw)
    return _openai(raw, "input_tokens", "output_tokens")


_ANTHROPIC_CACHE = ("cache_read_input_tokens", "cache_creation_input_tokens")


def _openai(raw: object, prompt: str, output: str) -> CanonicalUsage:
    """Some that speak OpenAI's language pass Anthropic's counts of the cache on."""
    of_prompt, of_output = _field(raw, f"{prompt}_details"), _field(raw, f"{output}_details")
    read, written = (_count(raw, name) for name in _ANTHROPIC_CACHE)
    read = _count(of_prompt, "cached_tokens") or read
    written = _count(of_prompt, "cache_write_tokens") or written
    new = clamp_count(_count(raw, prompt) - read - written)
    return CanonicalUsage(new, _count(raw, output), read, written, _count(of_output, "reasoning_tokens"))


def _anthropic(raw: object) -> CanonicalUsage:
    names = ("input_tokens", "output_tokens", *_ANTHROPIC_CACHE)
    thinking = _count(_field(raw, "output_tokens_details"), "thinking_tokens")
    return CanonicalUsage(*(_count(raw, name) for name in names), reasoning_tokens=thinking)


def _ours(raw: object) -> CanonicalUsage:
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
    return CanonicalUsage(*(_count(raw, name) for name in names))


def _field(raw: object, name: str) -> Any:
    return cast("Mapping[str, Any]", raw).get(name) if isinstance(raw, Mapping) else getattr(raw, name, None)


def _count(raw: object, name: str) -> int:
    value = _field(raw, name)
    return clamp_count(value) if isinstance(value, int) else 0


def estimate_usage_cost(
    model_name: str,
    usage: CanonicalUsage,
    *,
    provider: str | None = None,
    base_url: str | None = None,
    api_key: str | None = None,  # noqa: ARG001
) -> CostResult:
    """By the prices of the settings, else of the catalog if the call went to the provider's own address."""
    own = _own_prices(provider or "", model_name)
    prices = own or _catalog_prices(provider or "", model_name, base_url or "")
    counted = Usage(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
    amount = cost_usd(counted, prices)
    if amount is None:
        return CostResult()
    return CostResult(Decimal(str(amount)), "estimated", "settings" if own else "catalog", f"~${amount:.4f}")


def _own_prices(provider: str, model: str) -> Prices | None:
    given = cfg_get(load_config(), "providers", provider, "models", model, "prices")
    return msgspec.convert(given, Prices) if given else None


def _catalog_prices(provider: str, model: str, base_url: str) -> Prices | None:
    facts = catalog().get(provider)
    if facts is None or (base_url and base_url.rstrip("/") != facts.base_url.rstrip("/")):
        return None
    return facts.models[model].prices if model in facts.models else None
