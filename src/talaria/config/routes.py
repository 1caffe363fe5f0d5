"""Which models stand in for which: routes from the settings. Pure, as `selection` is."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from talaria.config.schema import Config, Fallback, ModelConfig
from talaria.config.selection import DEMO, ModelChoice, check_colon, endpoint, general_for, split
from talaria.core.errors import BadConfig, MissingCredential
from talaria.providers.base import Endpoint, Route


class Planned(msgspec.Struct, frozen=True):
    route: Route
    left_out: tuple[str, ...] = ()
    """Why each fallback and each auxiliary model that cannot be used is none, as sentences."""


def plan(primary: Endpoint, config: Config, environment: Mapping[str, str]) -> Planned:
    """The primary with its fallbacks. Raises `BadConfig` for a fallback that is written wrong."""
    found: list[Endpoint] = []
    left_out: list[str] = []
    for entry in _entries(config):
        try:
            found.append(_endpoint(entry, primary.provider, config, environment))
        except MissingCredential as missing:
            left_out.append(f"The fallback {entry.provider} is left out: {missing}")
    main = Route(primary, tuple(found))
    return Planned(main, (*left_out, *_missing_helpers(main, config, environment)))


def _missing_helpers(main: Route, config: Config, environment: Mapping[str, str]) -> Iterator[str]:
    helpers = config.auxiliary
    for named in dict.fromkeys((helpers.default, helpers.title, helpers.summary, helpers.judge)):
        if named is None:
            continue
        try:
            _helper(named, main, config, environment)
        except MissingCredential as missing:
            yield f"The auxiliary model {named} is left out: {missing}"


def auxiliary(named: str | None, main: Route, config: Config, environment: Mapping[str, str]) -> Route:
    """`named` first, the main route behind it; that alone if `named` has no key."""
    if named is None:
        return main
    try:
        return Route(_helper(named, main, config, environment), main.endpoints)
    except MissingCredential:
        return main


def _helper(named: str, main: Route, config: Config, environment: Mapping[str, str]) -> Endpoint:
    provider, model = split(named, config)
    if provider is None:
        check_colon(named, main.primary.provider, config, environment)
    entry = Fallback(provider=provider or main.primary.provider, model=model)
    return _endpoint(entry, main.primary.provider, config, environment)


def _entries(config: Config) -> Sequence[Fallback]:
    return [_parse_fallback(entry, config) if isinstance(entry, str) else entry for entry in config.fallbacks]


def _parse_fallback(named: str, config: Config) -> Fallback:
    provider, model = split(named, config)
    if provider is None:
        check_colon(named, None, config, {})
        raise BadConfig(f"The fallback {named!r} names no provider: write provider:model under fallback_providers.")
    return Fallback(provider=provider, model=model)


def _endpoint(entry: Fallback, main_provider: str, config: Config, environment: Mapping[str, str]) -> Endpoint:
    """The address and key under `model:` are the main provider's, and go nowhere else."""
    if entry.provider == DEMO:
        raise BadConfig("The demo model is no fallback: it would only seem to answer.")
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
    keys = (entry.api_key,) if entry.api_key else ()  # the provider's own are for its own address
    return msgspec.structs.replace(found, keys=keys, key_command=None)
