"""What can be used right now: providers with their keys or addresses, their models, and which one is the default."""

import asyncio
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

import msgspec

from talaria.app.connections import Connections, local_choice
from talaria.app.settings import Settings
from talaria.config import routes
from talaria.config.schema import Config, LimitsConfig, ProviderConfig
from talaria.config.selection import DEMO, ModelChoice, choose, endpoint
from talaria.core.clock import SystemClock
from talaria.core.errors import MissingCredential, OperatorError, TalariaError
from talaria.providers import server_discovery
from talaria.providers.base import Endpoint, Prices
from talaria.providers.catalog import ProviderFacts, catalog
from talaria.providers.demo import ENDPOINT as DEMO_ENDPOINT
from talaria.providers.upstream import Upstream


class ProviderState(msgspec.Struct, frozen=True):
    name: str
    is_usable: bool | None
    """None if that was not checked."""
    state: str
    """Why it is usable, or why not, as a clause."""
    keys: int
    default_model: str | None


class Default(msgspec.Struct, frozen=True):
    """The model that is used by default. Without a provider, only a check of this machine would tell."""

    provider: str | None = None
    model: str | None = None
    """`provider:model`."""
    is_stand_in: bool = False
    fallbacks: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    problem: str | None = None
    """Why it cannot be used."""


class KnownModel(msgspec.Struct, frozen=True):
    name: str
    window: int | None = None
    prices: Prices | None = None
    is_listed: bool | None = None
    """Whether the endpoint itself lists it. None if it was not asked or did not answer."""


class Models(msgspec.Struct, frozen=True):
    provider: ProviderState
    models: Sequence[KnownModel]
    problem: str | None = None
    """Why the endpoint's own list is missing."""


async def providers(settings: Settings, *, is_live: bool) -> list[ProviderState]:
    """From the catalog and config.yaml; usable ones first."""
    states = await _states(names(settings.config), settings, is_live=is_live)
    return sorted(states, key=lambda state: not state.is_usable)


async def default(settings: Settings, *, is_live: bool) -> Default:
    try:
        choice = choose(settings.config, settings.environment)
        if choice is None and is_live:
            choice = await local_choice(settings.config, settings.environment, SystemClock())
    except OperatorError as error:
        return Default(problem=str(error))
    if choice is None:
        return Default(DEMO, DEMO_ENDPOINT.label, is_stand_in=True) if is_live else Default()
    if choice.provider == DEMO:
        return Default(DEMO, DEMO_ENDPOINT.label)
    try:
        primary = endpoint(choice, settings.config, settings.environment)
        planned = routes.plan(primary, settings.config, settings.environment)
    except OperatorError as error:
        return Default(choice.provider, problem=str(error))
    fallbacks = tuple(fallback.label for fallback in planned.route.endpoints[1:])
    return Default(choice.provider, primary.label, fallbacks=fallbacks, left_out=planned.left_out)


async def overview(settings: Settings, *, is_live: bool) -> tuple[list[ProviderState], Default]:
    return await asyncio.gather(providers(settings, is_live=is_live), default(settings, is_live=is_live))


async def models(name: str, settings: Settings, *, is_live: bool) -> Models:
    """The models of one provider. Raises `BadConfig` if there is no provider of that name."""
    if name not in names(settings.config):
        _reach(name, settings)  # raises, and suggests the nearest name
    state = (await _states([name], settings, is_live=is_live))[0]
    known = list_known_models(name, settings.config)
    if not is_live:
        return Models(state, known)
    reached = _try_reach(name, settings)
    if isinstance(reached, OperatorError):
        return Models(state, known, str(reached))
    if not state.is_usable:
        return Models(state, known, f"{name} was not asked: {state.state}.")
    clock = SystemClock()
    try:
        async with Connections(settings.home, clock) as connections:
            upstream = Upstream(connections.provider, clock)
            key = await upstream.keys(reached).take(reached.model)
            listed = await upstream.provider(reached).models(key)
    except TalariaError as error:
        return Models(state, known, str(error))
    if not listed:
        return Models(state, known, f"{name} does not list its models.")
    ours = [msgspec.structs.replace(model, is_listed=model.name in listed) for model in known]  # we know more of these
    others = sorted({*listed} - {model.name for model in known})
    return Models(state, [*ours, *(KnownModel(other, is_listed=True) for other in others)])


async def usable_models(settings: Settings) -> list[str]:
    """`provider:model` of every provider that can be used, as far as it lists them."""
    usable = [one.name for one in await providers(settings, is_live=True) if one.is_usable]
    listed = await asyncio.gather(*(models(name, settings, is_live=True) for name in usable), return_exceptions=True)
    found = [
        f"{name}:{model.name}"
        for name, some in zip(usable, listed, strict=True)
        if isinstance(some, Models)
        for model in some.models
    ]
    return list(dict.fromkeys(found))


def default_model(name: str, config: Config) -> str | None:
    return config.providers.get(name, ProviderConfig()).default_model or _facts(name).default_model


def names(config: Config) -> list[str]:
    return list(dict.fromkeys((*catalog(), *config.providers, DEMO)))


def _facts(name: str) -> ProviderFacts:
    return catalog().get(name) or ProviderFacts(name, name, "")


def _reach(name: str, settings: Settings) -> Endpoint:
    """Where and how a provider is called, for any model. Raises `BadConfig`, `MissingCredential`."""
    if name == DEMO:
        return DEMO_ENDPOINT
    config = msgspec.structs.replace(settings.config, limits=LimitsConfig())  # cost limits need a model's price
    return endpoint(ModelChoice(name, "any"), config, settings.environment)


async def _states(names: Iterable[str], settings: Settings, *, is_live: bool) -> list[ProviderState]:
    reached = {name: _try_reach(name, settings) for name in names}
    answering: set[str] | None = None
    if is_live:
        local = [
            ProviderFacts(name, name, found.base_url)
            for name, found in reached.items()
            if isinstance(found, Endpoint) and _is_local(found)
        ]
        answering = {facts.name for facts in await server_discovery.open_ports(local)}
    states: list[ProviderState] = []
    for name, found in reached.items():
        is_usable, clause = _judge_usability(name, found, answering)
        keys = len(found.keys) if isinstance(found, Endpoint) else 0
        model = DEMO_ENDPOINT.model if name == DEMO else default_model(name, settings.config)
        states.append(ProviderState(name, is_usable, clause, keys, model))
    return states


def _try_reach(name: str, settings: Settings) -> Endpoint | OperatorError:
    try:
        return _reach(name, settings)
    except OperatorError as error:
        return error


def _is_local(endpoint: Endpoint) -> bool:
    """A server on this machine, so its port shows whether it is running."""
    return _facts(endpoint.provider).is_local or urlsplit(endpoint.base_url).hostname in server_discovery.HERE


def _judge_usability(
    name: str, reached: Endpoint | OperatorError, answering: set[str] | None
) -> tuple[bool | None, str]:
    if isinstance(reached, MissingCredential):
        return False, f"needs {_facts(name).keys[0]}"
    if isinstance(reached, OperatorError):
        return False, "needs an http(s) base_url"
    if name == DEMO:
        return True, "a scripted stand-in"
    if _is_local(reached):
        place = urlsplit(reached.base_url).netloc
        if answering is None:
            return None, f"not checked at {place}"
        return (True, f"answers at {place}") if name in answering else (False, f"nothing listens at {place}")
    if reached.key_command:
        return True, "key from a command"
    count = len(reached.keys)
    return True, f"{count} key{'s' if count > 1 else ''}" if count else "needs no key"


def list_known_models(name: str, config: Config) -> list[KnownModel]:
    """From config.yaml and the catalog; config.yaml takes precedence."""
    catalogued, own = _facts(name).models, config.providers.get(name, ProviderConfig()).models
    found: list[KnownModel] = []
    for model in dict.fromkeys((*own, *catalogued)):
        facts, entry = catalogued.get(model), own.get(model)
        window = (entry and entry.context_length) or (facts and facts.window)
        found.append(KnownModel(model, window, (entry and entry.prices) or (facts and facts.prices)))
    return found
