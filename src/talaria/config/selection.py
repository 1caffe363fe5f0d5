"""Which model: from the command line, config.yaml, the keys at hand. Pure: told from values, looks nowhere itself."""

from collections.abc import Mapping
from difflib import get_close_matches

import msgspec

from talaria.config.schema import Config, ProviderConfig
from talaria.model.errors import BadConfig, MissingCredential
from talaria.model.secret import NO_SECRET, Secret
from talaria.net.timeouts import Timeouts
from talaria.providers.base import Endpoint, WireName
from talaria.providers.catalog import ModelFacts, ProviderFacts, catalog

DEMO = "demo"
LOCAL_TIMEOUTS = Timeouts(connect_s=5.0, read_s=1800.0)


class Choice(msgspec.Struct, frozen=True):
    """A provider and, unless its default or first one is meant, a model."""

    provider: str
    model: str | None = None


def choose(config: Config, environment: Mapping[str, str], wanted: str | None = None) -> Choice | None:
    """None: nothing is configured and no key is there, so a local server may be looked for."""
    named = wanted or config.model.default
    provider, model = _split(named, config) if named is not None else (None, None)
    if named == DEMO or (provider is None and config.model.provider == DEMO):
        return Choice(DEMO)
    chosen = provider or _configured(config) or _provider_at_hand(config, environment)
    if chosen is None:
        return Choice("custom", model) if model else None
    return Choice(chosen, model)


def _configured(config: Config) -> str | None:
    """The provider that the settings under `model:` are about; None: whichever is chosen."""
    general = config.model
    by_default = _split(general.default, config)[0] if general.default else None
    return general.provider or by_default or ("custom" if general.base_url else None)


def _split(named: str, config: Config) -> tuple[str | None, str]:
    """`provider:model`; a colon inside a model's name (`qwen3:8b`) is part of it."""
    provider, colon, model = named.partition(":")
    if not colon:
        return None, named
    known = [*catalog(), *config.providers, DEMO]
    if provider in known:
        return provider, model
    near = get_close_matches(provider, known, 1, cutoff=0.8)
    if near:
        raise BadConfig(f"There is no provider {provider!r} (in {named!r}); did you mean {near[0]!r}?")
    return None, named


def _provider_at_hand(config: Config, environment: Mapping[str, str]) -> str | None:
    for name, own in config.providers.items():
        if own.api_key:
            return name
    for facts in catalog().values():
        if not facts.is_local and facts.name != "custom" and any(environment.get(key) for key in facts.keys):
            return facts.name
    return None


def endpoint(choice: Choice, config: Config, environment: Mapping[str, str]) -> Endpoint:
    """Raises `BadConfig`, `MissingCredential` with what to set and where."""
    facts, own = _facts(choice.provider, config)
    is_chosen = _configured(config) in (None, choice.provider)  # else its address and key are somebody else's
    general = config.model
    model = choice.model or own.default_model or facts.default_model
    if model is None:
        raise BadConfig(f"No model is set for {facts.label}: set model.default in config.yaml, or use -m.")
    base_url = (is_chosen and general.base_url) or own.base_url or _from(environment, facts.base_url_names)
    base_url = base_url or facts.base_url
    if not base_url.startswith(("http://", "https://")):
        raise BadConfig(
            f"The address of {facts.label} is missing or not http(s): set model.base_url in config.yaml, "
            "or name a provider that is known (-m provider:model)."
        )
    known, override = _known(facts, model), own.models.get(model)
    return Endpoint(
        provider=choice.provider,
        model=model,
        base_url=base_url.rstrip("/"),
        wire=(is_chosen and general.wire) or own.wire or _wire(facts, base_url),
        key=_key(facts, own, general.api_key if is_chosen else NO_SECRET, environment, base_url),
        headers=tuple(own.headers.items()),
        window=(is_chosen and general.context_length) or (override and override.context_length) or known.window,
        max_output=(is_chosen and general.max_tokens) or (override and override.max_tokens) or known.max_output,
        prices=(override and override.prices) or known.prices,
        timeouts=own.timeouts or (LOCAL_TIMEOUTS if facts.is_local else Timeouts()),
    )


def _facts(name: str, config: Config) -> tuple[ProviderFacts, ProviderConfig]:
    own = config.providers.get(name)
    facts = catalog().get(name)
    if facts is None and own is None:
        known = [*catalog(), *config.providers, DEMO]
        near = get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(known)}."
        raise BadConfig(f"There is no provider {name!r} (model.provider in config.yaml, or -m); {hint}")
    return facts or ProviderFacts(name, name, ""), own or ProviderConfig()


def _known(facts: ProviderFacts, model: str) -> ModelFacts:
    """By exact name, or by the name without a date (`claude-sonnet-4-5-20250929`)."""
    if model in facts.models:
        return facts.models[model]
    dated = [name for name in facts.models if model.startswith(f"{name}-2")]
    return facts.models[dated[0]] if dated else ModelFacts()


def _wire(facts: ProviderFacts, base_url: str) -> WireName:
    """Another address than the vendor's own is a compatible server: those speak chat completions."""
    if facts.wire == "openai_responses" and base_url.rstrip("/") != facts.base_url:
        return "openai_chat"
    return facts.wire


def _key(
    facts: ProviderFacts, own: ProviderConfig, given: Secret, environment: Mapping[str, str], base_url: str
) -> Secret:
    key = given or own.api_key or Secret(_from(environment, facts.keys) or "")
    if key or facts.is_local or facts.name == "custom" or not facts.keys or base_url.rstrip("/") != facts.base_url:
        return key
    raise MissingCredential(
        f"{facts.label} needs an API key: put {facts.keys[0]}=… into .env (`talaria config set {facts.keys[0]} …`). "
        f"Keys are made at {facts.signup}."
    )


def _from(environment: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environment[name] for name in names if environment.get(name)), None)
