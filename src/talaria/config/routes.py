"""Fallbacks and auxiliary models: routes from the settings. Pure, like `selection`."""

from collections.abc import Mapping

import msgspec

from talaria.config.schema import Config, Fallback, ModelConfig
from talaria.config.selection import DEMO, ModelChoice, check_colon, endpoint, general_for, split
from talaria.core.errors import BadConfig, MissingCredential
from talaria.providers.base import Endpoint, Route


class Planned(msgspec.Struct, frozen=True):
    route: Route
    left_out: tuple[str, ...] = ()
    """Why fallbacks and auxiliary models cannot be used, a sentence for each."""


def plan(primary: Endpoint, config: Config, environment: Mapping[str, str]) -> Planned:
    """The primary with its fallbacks. Raises `BadConfig` for a fallback that is specified wrongly."""
    found: list[Endpoint] = []
    left_out: list[str] = []
    entries: list[Fallback] = []
    for fallback in config.fallbacks:
        if not isinstance(fallback, str):
            entries.append(fallback)
            continue
        provider, model = split(fallback, config)
        if provider is None:
            check_colon(fallback, None, config, {})
            raise BadConfig(
                f"The fallback {fallback!r} does not name its provider: write provider:model under fallback_providers."
            )
        entries.append(Fallback(provider=provider, model=model))
    for entry in entries:
        try:
            found.append(_endpoint(entry, primary.provider, config, environment))
        except MissingCredential as missing:
            left_out.append(f"The fallback {entry.provider} is left out: {missing}")
    main = Route(primary, tuple(found))
    tasks = config.auxiliary
    for named in dict.fromkeys((tasks.default, tasks.title, tasks.summary, tasks.judge)):
        if named is None:
            continue
        try:
            _auxiliary_endpoint(named, main, config, environment)
        except MissingCredential as missing:
            left_out.append(f"The auxiliary model {named} is left out: {missing}")
    return Planned(main, tuple(left_out))


def auxiliary(named: str | None, main: Route, config: Config, environment: Mapping[str, str]) -> Route:
    """`named` first, then the main route; only that if there is no key for `named`."""
    if named is None:
        return main
    try:
        return Route(_auxiliary_endpoint(named, main, config, environment), main.endpoints)
    except MissingCredential:
        return main


def _auxiliary_endpoint(named: str, main: Route, config: Config, environment: Mapping[str, str]) -> Endpoint:
    provider, model = split(named, config)
    if provider is None:
        check_colon(named, main.primary.provider, config, environment)
    entry = Fallback(provider=provider or main.primary.provider, model=model)
    return _endpoint(entry, main.primary.provider, config, environment)


def _endpoint(entry: Fallback, main_provider: str, config: Config, environment: Mapping[str, str]) -> Endpoint:
    """The address and key under `model:` belong to the main provider, and are sent nowhere else."""
    if entry.provider == DEMO:
        raise BadConfig("The demo model cannot be a fallback: it would only seem to answer.")
    main = general_for(entry.provider, config) if entry.provider == main_provider else ModelConfig()
    is_elsewhere = entry.base_url is not None
    general = ModelConfig(
        base_url=entry.base_url if is_elsewhere else main.base_url,
        wire=None if is_elsewhere else main.wire,
        api_key=entry.api_key if is_elsewhere else entry.api_key or main.api_key,
    )
    found = endpoint(ModelChoice(entry.provider, entry.model), config, environment, general)
    if not is_elsewhere:
        return found
    keys = (entry.api_key,) if entry.api_key else ()  # the provider's own keys are for its own address
    return msgspec.structs.replace(found, keys=keys, key_command=None)
