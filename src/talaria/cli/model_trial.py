"""One short call to a model, to see whether it answers. No session and no fallback, but it is counted as spent."""

from contextlib import aclosing

import msgspec

from talaria.agent.budget import cost_usd
from talaria.agent.model_call import empty_answer_failure
from talaria.app.build import open_store
from talaria.app.connections import Connections, local_choice
from talaria.app.settings import Settings
from talaria.config.selection import DEMO, ModelChoice, choose, endpoint, is_streaming
from talaria.core.clock import SystemClock
from talaria.core.errors import Disconnected, ProviderFailure, Repair, RequestRejected
from talaria.core.ids import SessionId
from talaria.core.messages import NO_USAGE, Assistant, Usage, user
from talaria.providers.base import Endpoint, ModelRequest, Provider
from talaria.providers.demo import ENDPOINT as DEMO_ENDPOINT
from talaria.providers.message_history import History
from talaria.providers.upstream import Upstream
from talaria.store.base import Spent

TRIALS = SessionId("model-try")
"""Under this they are counted; no conversation has such an id."""
_PERSON = "local"
A_FEW_TOKENS = 16
"""Some endpoints refuse less, whichever wire they speak."""


class ModelTrial(msgspec.Struct, frozen=True):
    model: str
    """`provider:model`."""
    seconds: float
    usage: Usage | None
    """None: the endpoint did not tell."""
    cost_usd: float | None


async def run(settings: Settings, name: str | None) -> ModelTrial:
    """Of what `-m NAME` means; None: the default. Raises `BadConfig`, `MissingCredential`, `ProviderFailure`."""
    return await _run(await _endpoint(settings, name), settings)


async def _endpoint(settings: Settings, name: str | None) -> Endpoint:
    config, environment = settings.config, settings.environment
    choice = (
        choose(config, environment, name) or await local_choice(config, environment, SystemClock()) or ModelChoice(DEMO)
    )
    return DEMO_ENDPOINT if choice.provider == DEMO else endpoint(choice, config, environment)


async def _run(endpoint: Endpoint, settings: Settings) -> ModelTrial:
    clock = SystemClock()
    async with open_store(settings.home, clock) as store, Connections(settings.home, clock) as connections:
        upstream = Upstream(connections.provider, clock)
        provider = upstream.provider(endpoint)
        request = ModelRequest(
            system="",
            tools=(),
            history=History([user("Hi")]),
            session=TRIALS,
            is_streaming=is_streaming(endpoint.provider, settings.config),
            key=await upstream.keys(endpoint).take(endpoint.model),
            max_output=1,
        )
        began = clock.monotonic()
        answer = await _short_answer(provider, request)
        seconds = clock.monotonic() - began
        cost = cost_usd(answer.usage or NO_USAGE, endpoint.prices)
        await store.spending.add(TRIALS, [Spent(endpoint.label, _PERSON, "try", answer.usage or NO_USAGE, cost)])
    if not answer.parts and answer.stop != "length":  # one token may well be spent on thinking
        raise empty_answer_failure(answer, request, endpoint)
    return ModelTrial(endpoint.label, seconds, answer.usage, cost)


async def _short_answer(provider: Provider, request: ModelRequest) -> Assistant:
    """One token, or a few where that is refused."""
    try:
        return await _ask_with_repairs(provider, request)
    except RequestRejected as refusal:
        if refusal.kind != "format_error":
            raise
    return await _ask_with_repairs(provider, msgspec.structs.replace(request, max_output=A_FEW_TOKENS))


async def _ask_with_repairs(provider: Provider, request: ModelRequest) -> Assistant:
    """What an endpoint cannot take is left out, as in a conversation."""
    repairs: frozenset[Repair] = frozenset()
    while True:
        try:
            return await _answer(provider, msgspec.structs.replace(request, repairs=repairs))
        except ProviderFailure as failure:
            if failure.repair is None or failure.repair in repairs:
                raise
            repairs = frozenset((*repairs, failure.repair))


async def _answer(provider: Provider, request: ModelRequest) -> Assistant:
    async with aclosing(provider.stream(request)) as items:
        async for item in items:
            if isinstance(item, Assistant):
                return item
    raise Disconnected(f"{provider.endpoint.label} ended its answer without completing it.")
