"""Which model to use: from the command line, config.yaml and the keys that are set. Pure: everything is an argument."""

from collections.abc import Mapping
from difflib import get_close_matches
from urllib.parse import urlsplit

import msgspec

from talaria.config.schema import Config, ModelConfig, ProviderConfig, TimeoutsConfig
from talaria.core.errors import BadConfig, MissingCredential
from talaria.core.secret import Secret
from talaria.net.web_settings import Timeouts
from talaria.providers.base import Caching, Endpoint, WireName, compaction_threshold
from talaria.providers.catalog import ModelFacts, ProviderFacts, catalog

DEMO = "demo"
LOCAL_TIMEOUTS = Timeouts(connect_s=5.0, first_byte_s=1800.0, chunk_s=600.0, total_s=7200.0)
MAX_NUMBERED_KEYS = 9
_AGGREGATORS = ("openrouter.ai", "nousresearch.com")
"""Hosts that pass requests on to others, whatever name they are configured under."""


class ModelChoice(msgspec.Struct, frozen=True):
    """A provider and a model; None: the provider's default, or the first one it lists."""

    provider: str
    model: str | None = None


def choose(config: Config, environment: Mapping[str, str], wanted: str | None = None) -> ModelChoice | None:
    """None: no model is configured and no key is set, so a local server may be looked for."""
    named = wanted or config.model.default
    provider, model = split(named, config) if named is not None else (None, None)
    if named == DEMO:
        return ModelChoice(DEMO)
    chosen = provider or _find_configured(config) or _provider_with_key(config, environment)
    if named is not None and provider is None:
        check_colon(named, chosen, config, environment)
    if provider is None and chosen == DEMO:
        return ModelChoice(DEMO)
    if chosen is None:
        return ModelChoice("custom", model) if model else None
    return ModelChoice(chosen, model)


def as_default(choice: ModelChoice, config: Config) -> dict[str, str]:
    """The settings, in the order to write them, that make this model the default.

    An address or a key under `model:` stays with the provider that it belongs to.
    """
    if choice.provider == DEMO:
        return {"model.default": DEMO}
    named = {"model.default": f"{choice.provider}:{choice.model or ''}"}
    general, owner = config.model, _find_configured(config)
    if owner is None or owner == choice.provider:
        return named
    if any((general.base_url, general.api_key, general.wire, general.context_length, general.max_tokens)):
        return named if general.provider else {"model.provider": owner, **named}
    return {**named, "model.provider": choice.provider} if general.provider else named


def _find_configured(config: Config) -> str | None:
    """The provider that the settings under `model:` belong to; None: whichever is chosen."""
    general = config.model
    by_default = split(general.default, config)[0] if general.default else None
    return general.provider or by_default or ("custom" if general.base_url else None)


def split(named: str, config: Config) -> tuple[str | None, str]:
    """`provider:model`; a colon inside a model's name (`qwen3:8b`) is part of it."""
    provider, colon, model = named.partition(":")
    if not colon:
        return None, named
    known = [*catalog(), *config.providers, DEMO]
    if provider in known:
        return provider, model
    if get_close_matches(provider, known, 1, cutoff=0.8):
        raise _unknown_provider(provider, f"in {named!r}", config)
    return None, named


def check_colon(named: str, provider: str | None, config: Config, environment: Mapping[str, str]) -> None:
    """Raises `BadConfig` if the part of `named` before a colon can only be meant as a provider.

    Vendors' own models have no colon in their names, except fine-tuned ones (`ft:gpt-5:…`). Models of
    aggregators and of people's own servers may have one (`qwen3:8b`, `deepseek/deepseek-r1:free`).
    """
    before, colon, _ = named.partition(":")
    if not colon or before == "ft":
        return
    if provider is not None and provider != DEMO:
        facts, own = _facts(provider, config)
        is_vendor = bool(facts.signup) and not facts.is_aggregator
        given = general_for(provider, config).base_url or own.base_url
        if not is_vendor or _address(facts, given, environment) != facts.base_url:
            return
    raise _unknown_provider(before, f"in {named!r}", config)


def _unknown_provider(name: str, where: str, config: Config) -> BadConfig:
    known = [*catalog(), *config.providers, DEMO]
    near = [repr(one) for one in get_close_matches(name, known, 3)]
    hint = f"did you mean {' or '.join(near)}?" if near else f"known providers: {', '.join(known)}."
    return BadConfig(f"There is no provider {name!r} ({where}); {hint}")


def _provider_with_key(config: Config, environment: Mapping[str, str]) -> str | None:
    for name, own in config.providers.items():
        if own.api_key or own.api_keys or own.key_command:
            return name
    for facts in catalog().values():
        if not facts.is_local and facts.name != "custom" and any(environment.get(key) for key in facts.keys):
            return facts.name
    return None


def check(config: Config, environment: Mapping[str, str]) -> None:
    """Raises what `endpoint` raises for the model that these settings choose."""
    choice = choose(config, environment)
    if choice is None:
        local_servers(config, environment)
    elif choice.provider != DEMO:
        endpoint(choice, config, environment)


def endpoint(
    choice: ModelChoice, config: Config, environment: Mapping[str, str], general: ModelConfig | None = None
) -> Endpoint:
    """Raises `BadConfig` or `MissingCredential`, which say what to set and where. `general` replaces `config.model`."""
    facts, own = _facts(choice.provider, config)
    general = general or general_for(choice.provider, config)
    model = choice.model or own.default_model or facts.default_model
    if model is None:
        raise BadConfig(f"No model is set for {facts.label}: set model.default in config.yaml, or use -m.")
    base_url = _address(facts, general.base_url or own.base_url, environment)
    is_elsewhere = base_url != facts.base_url
    # OpenAI-compatible servers elsewhere speak chat completions
    usual_wire = "openai_chat" if facts.wire == "openai_responses" and is_elsewhere else facts.wire
    wire = general.wire or own.wire or usual_wire
    dated = (name for name in facts.models if model.startswith(f"{name}-2"))  # as in claude-sonnet-4-5-20250929
    known = facts.models.get(model) or facts.models.get(next(dated, "")) or ModelFacts()
    override = own.models.get(model)
    prices = (override and override.prices) or known.prices
    if config.limits.are_in_money and prices is None and not facts.is_local:
        raise BadConfig(
            f"No price is known for {model}: set providers.{choice.provider}.models.{model}.prices in config.yaml, "
            "or remove the limits on cost_usd."
        )
    host = urlsplit(base_url).hostname or ""
    window = general.context_length or (override and override.context_length) or known.window
    max_output = general.max_tokens or (override and override.max_tokens) or known.max_output
    return Endpoint(
        provider=choice.provider,
        model=model,
        base_url=base_url,
        wire=wire,
        keys=_keys(facts, own, general.api_key, environment, base_url),
        key_command=own.key_command,
        rotation=own.rotation,
        headers=tuple((name, value.reveal()) for name, value in own.headers.items()),
        window=window,
        compact_at=None if window is None else compaction_threshold(window, max_output, config.compression.threshold),
        max_output=max_output,
        prices=prices,
        timeouts=(own.timeouts or TimeoutsConfig()).over(LOCAL_TIMEOUTS if facts.is_local else Timeouts()),
        caching=own.prompt_caching or _caching(facts, wire, base_url, model),
        is_streaming=is_streaming(choice.provider, config),
        is_aggregator=facts.is_aggregator or any(host == name or host.endswith(f".{name}") for name in _AGGREGATORS),
    )


def general_for(provider: str, config: Config) -> ModelConfig:
    """The settings under `model:` if they belong to this provider, otherwise none."""
    return config.model if _find_configured(config) in (None, provider) else ModelConfig()


def is_streaming(provider: str, config: Config) -> bool:
    own = config.providers.get(provider, ProviderConfig()).streaming
    return config.model.streaming if own is None else own


def local_servers(config: Config, environment: Mapping[str, str]) -> list[ProviderFacts]:
    """Where a model server may be listening: the usual addresses, or those that were set instead."""
    local = [_facts(facts.name, config) for facts in catalog().values() if facts.is_local]
    return [msgspec.structs.replace(facts, base_url=_address(facts, own.base_url, environment)) for facts, own in local]


def _address(facts: ProviderFacts, given: str | None, environment: Mapping[str, str]) -> str:
    named = next((environment[name] for name in facts.base_url_names if environment.get(name)), None)
    base_url = (given or named or facts.base_url).rstrip("/")
    try:
        parts = urlsplit(base_url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number, or an unclosed bracket
        is_address = False
    if not is_address:
        raise BadConfig(
            f"The address of {facts.label} is missing or not http(s): set model.base_url in config.yaml"
            f"{''.join(f' or {name}' for name in facts.base_url_names)}, "
            "or name a known provider (-m provider:model)."
        )
    if urlsplit(base_url).username is not None:
        raise BadConfig(
            f"The address of {facts.label} contains a user name or password, but addresses are shown and stored. "
            "Put the secret under api_key, or in headers."
        )
    if facts.is_local and not urlsplit(base_url).path:  # people write http://host:11434
        return base_url + urlsplit(facts.base_url).path
    return base_url


def _facts(name: str, config: Config) -> tuple[ProviderFacts, ProviderConfig]:
    own = config.providers.get(name)
    facts = catalog().get(name)
    if facts is None and own is None:
        raise _unknown_provider(name, "model.provider in config.yaml, or -m", config)
    return facts or ProviderFacts(name, name, ""), own or ProviderConfig()


def _caching(facts: ProviderFacts, wire: WireName, base_url: str, model: str) -> Caching:
    if base_url == facts.base_url:
        return facts.caching if model.startswith(facts.cached_models) else "off"
    return "markers" if wire == "anthropic_messages" and not facts.is_local else "off"


def _keys(
    facts: ProviderFacts, own: ProviderConfig, given: Secret, environment: Mapping[str, str], base_url: str
) -> tuple[Secret, ...]:
    written = [key for key in (given, own.api_key, *own.api_keys) if key]
    name = next((name for name in facts.keys if environment.get(name)), None)
    if not written and name is not None:  # NAME, and NAME_2, NAME_3 … for more of them
        numbered = (name, *(f"{name}_{number}" for number in range(2, MAX_NUMBERED_KEYS + 1)))
        written = [Secret(environment[each]) for each in numbered if environment.get(each)]
    keys = tuple(dict.fromkeys(written))
    is_open = facts.is_local or facts.name == "custom" or not facts.keys or base_url != facts.base_url
    if keys or is_open or own.key_command:
        return keys
    raise MissingCredential(
        f"{facts.label} needs an API key: put {facts.keys[0]}=… into .env (`talaria config set {facts.keys[0]} …`). "
        f"Create one at {facts.signup}."
    )
