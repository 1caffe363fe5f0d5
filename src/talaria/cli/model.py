"""`talaria model`: list models, try one, and choose the default."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing

import click
import msgspec

from talaria.agent.budget import cost_usd
from talaria.agent.model_call import empty_answer_failure
from talaria.app.build import open_store
from talaria.app.connections import Connections, local_choice
from talaria.app.settings import Settings
from talaria.cli import context, model_status
from talaria.cli.command_output import json_option, print_json
from talaria.cli.command_tree import ListingGroup
from talaria.cli.model_status import Default, ProviderState
from talaria.cli.notices import say, show
from talaria.config import paths
from talaria.config.edit import set_value
from talaria.config.selection import DEMO, ModelChoice, as_default, choose, endpoint, is_streaming
from talaria.core.clock import SystemClock
from talaria.core.errors import Disconnected, MissingCredential, ProviderFailure, Repair, RequestRejected
from talaria.core.messages import NO_USAGE, Assistant, Usage, user
from talaria.providers.base import ModelRequest, Provider
from talaria.providers.demo import ENDPOINT as DEMO_ENDPOINT
from talaria.providers.message_history import History
from talaria.providers.upstream import Upstream
from talaria.runtime.accounts import TRIALS, dollars
from talaria.store.base import Spent

_PERSON = "local"
A_FEW_TOKENS = 16
"""Some endpoints refuse a lower limit, over any wire."""
_GAP = "  "

command = ListingGroup("model", help="List and try models, and choose the default.")


@command.command("list", help="List the providers, or the models of one.")
@click.argument("provider", required=False)
@json_option
@click.option(
    "--live/--no-live", "is_live", default=True, help="Whether to check local ports and ask providers for their models."
)
@click.pass_context
def list_models(ctx: click.Context, provider: str | None, as_json: bool, is_live: bool) -> None:
    settings = context.settings(ctx)
    if provider is None:
        states, default = asyncio.run(model_status.overview(settings, is_live=is_live))
        if as_json:
            rows = [{**msgspec.structs.asdict(row), "is_default": row.name == default.provider} for row in states]
            print_json({"default": default, "providers": rows})
            return
        cells = [(_mark_default(row.name, default.provider), row.state, _find_model(row, default)) for row in states]
        show(*_align(cells), "", *_describe_default(default))
        return
    found = asyncio.run(model_status.models(provider, settings, is_live=is_live))
    if as_json:
        print_json(found)
        return
    usual = _find_model(found.provider, asyncio.run(model_status.default(settings, is_live=is_live)))
    table: list[Sequence[str]] = []
    for model in found.models:
        window = "" if model.window is None else f"{model.window:,}"
        prices: Sequence[tuple[str, float | None]] = ()
        if (price := model.prices) is not None:
            prices = (("in", price.input), ("out", price.output))
            prices = (*prices, ("cache read", price.cache_read), ("cache write", price.cache_write))
        shown = ", ".join(f"{amount:g} {what}" for what, amount in prices if amount is not None)
        table.append((_mark_default(model.name, usual), window, shown))
    if any(any(row[1:]) for row in table):
        table.insert(0, ("  model", "window", "$ per million tokens"))
    show(f"{provider}: {found.provider.state}", *_align(table))
    if found.problem is not None:
        say(found.problem)


@command.command("try", help="Ask a model for one word, to see whether it answers. NAME is a model, or provider:model.")
@click.argument("name", required=False)
@json_option
@click.pass_context
def try_(ctx: click.Context, name: str | None, as_json: bool) -> None:
    trial = asyncio.run(try_model(context.settings(ctx), name))
    if as_json:
        print_json({"ok": True, **msgspec.structs.asdict(trial)})
    else:
        show(_format_trial(trial))


@command.command("set", help="Make a model the default if it answers. NAME is a model, or provider:model.")
@click.argument("name")
@click.option("--no-try", "is_sure", is_flag=True, help="Do not try it first.")
@click.pass_context
def set_(ctx: click.Context, name: str, is_sure: bool) -> None:
    settings = context.settings(ctx)
    if is_sure:
        choice = choose(settings.config, settings.environment, name) or ModelChoice(DEMO)
        if choice.provider != DEMO:
            try:
                endpoint(choice, settings.config, settings.environment)
            except MissingCredential as missing:  # only a warning: the key may be added later
                say(str(missing))
            model = choice.model or model_status.default_model(choice.provider, settings.config)
            choice = ModelChoice(choice.provider, model)
    else:
        try:
            trial = asyncio.run(try_model(settings, name))
        except (ProviderFailure, MissingCredential) as failure:
            insist = f"`talaria model set {name} --no-try` sets it anyway."
            failure.args = (f"{failure} Nothing was changed; {insist}",)
            raise
        say(_format_trial(trial))
        provider, _, model = trial.model.partition(":")
        choice = ModelChoice(provider, model)
    written = as_default(choice, settings.config)
    for key, value in written.items():
        set_value(settings.home, key, value)
    file = paths.config_file(settings.home)
    say(f"The default is now {written['model.default']} ({' and '.join(written)} in {file}).")


class ModelTrial(msgspec.Struct, frozen=True):
    model: str
    """`provider:model`."""
    seconds: float
    usage: Usage | None
    """None if the endpoint did not report it."""
    cost_usd: float | None


async def try_model(settings: Settings, name: str | None) -> ModelTrial:
    """Ask for one token, without a session or a fallback; the cost is counted.

    `name` is what `-m NAME` takes; None is the default. Raises `BadConfig`, `MissingCredential`, `ProviderFailure`.
    """
    config, environment, clock = settings.config, settings.environment, SystemClock()
    choice = choose(config, environment, name) or await local_choice(config, environment, clock) or ModelChoice(DEMO)
    chosen = DEMO_ENDPOINT if choice.provider == DEMO else endpoint(choice, config, environment)
    async with open_store(settings.home, clock) as store, Connections(settings.home, clock) as connections:
        upstream = Upstream(connections.provider, clock)
        provider = upstream.provider(chosen)
        request = ModelRequest(
            system="",
            tools=(),
            history=History([user("Hi")]),
            session=TRIALS,
            is_streaming=is_streaming(chosen.provider, config),
            key=await upstream.keys(chosen).take(chosen.model),
            max_output=1,
        )
        began = clock.monotonic()
        try:
            answer = await _ask_with_repairs(provider, request)
        except RequestRejected as refusal:
            if refusal.kind != "format_error":
                raise
            answer = await _ask_with_repairs(provider, msgspec.structs.replace(request, max_output=A_FEW_TOKENS))
        seconds = clock.monotonic() - began
        cost = cost_usd(answer.usage or NO_USAGE, chosen.prices)
        await store.spending.add(TRIALS, [Spent(chosen.label, _PERSON, "try", answer.usage or NO_USAGE, cost)])
    if not answer.parts and answer.stop != "length":  # the one token may have been spent on thinking
        raise empty_answer_failure(answer, request, chosen)
    return ModelTrial(chosen.label, seconds, answer.usage, cost)


async def _ask_with_repairs(provider: Provider, request: ModelRequest) -> Assistant:
    """As in a conversation, leave out what the endpoint does not accept."""
    repairs: frozenset[Repair] = frozenset()
    while True:
        try:
            repaired = msgspec.structs.replace(request, repairs=repairs)
            async with aclosing(provider.stream(repaired)) as items:
                async for item in items:
                    if isinstance(item, Assistant):
                        return item
            raise Disconnected(f"{provider.endpoint.label} ended its answer without completing it.")
        except ProviderFailure as failure:
            if failure.repair is None or failure.repair in repairs:
                raise
            repairs = frozenset((*repairs, failure.repair))


def _format_trial(trial: ModelTrial) -> str:
    usage, cost = trial.usage, trial.cost_usd
    tokens = "tokens unknown" if usage is None else f"{usage.prompt:,} tokens in, {usage.output:,} out"
    price = "cost unknown" if cost is None else dollars(cost)
    return f"{trial.model} answered in {trial.seconds:.2f} s · {tokens} · {price}"


def _mark_default(name: str, default: str | None) -> str:
    return f"{'*' if name == default else ' '} {name}"


def _find_model(row: ProviderState, default: Default) -> str:
    """The model that would be asked at this provider."""
    if row.name == default.provider and default.model is not None:
        return default.model.removeprefix(f"{row.name}:")
    return row.default_model or ""


def _describe_default(default: Default) -> Iterator[str]:
    if default.problem is not None:
        yield f"The default model cannot be used: {default.problem}"
    elif default.is_stand_in:
        yield "* The default is the demo model, a scripted stand-in: no API key and no local model server found."
    elif default.model is None:
        yield "No API key found: the default is the first local model server that answers, or else the demo model."
    else:
        fallbacks = f"; fallbacks: {', then '.join(default.fallbacks)}" if default.fallbacks else ""
        yield f"* The default is {default.model}{fallbacks}."
    yield from default.left_out


def _align(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
