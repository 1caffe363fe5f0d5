"""`talaria model`: which models there are, whether one answers, and which is the default."""

import asyncio
from collections.abc import Iterator, Sequence

import click
import msgspec

from talaria.app.settings import Settings
from talaria.cli import context, model_status, model_trial
from talaria.cli.command_output import json_option, print_json
from talaria.cli.command_tree import ListingGroup
from talaria.cli.model_status import Default, KnownModel, Models, ProviderState
from talaria.cli.model_trial import ModelTrial
from talaria.cli.notices import say, show
from talaria.config import paths
from talaria.config.edit import set_value
from talaria.config.selection import DEMO, ModelChoice, as_default, choose, endpoint
from talaria.core.errors import MissingCredential, ProviderFailure
from talaria.runtime.accounts import dollars

_GAP = "  "

command = ListingGroup("model", help="List and try models, and choose the default.")


@command.command("list", help="The providers, or the models of one.")
@click.argument("provider", required=False)
@json_option
@click.option("--live/--no-live", "is_live", default=True, help="Whether to look at ports and ask for lists.")
@click.pass_context
def list_models(ctx: click.Context, provider: str | None, as_json: bool, is_live: bool) -> None:
    settings = context.settings(ctx)
    if provider is None:
        asyncio.run(_list_providers(settings, as_json=as_json, is_live=is_live))
    else:
        asyncio.run(_list_models(provider, settings, as_json=as_json, is_live=is_live))


@command.command("try", help="Ask a model for one word, to see whether it answers. NAME is a model or provider:model.")
@click.argument("name", required=False)
@json_option
@click.pass_context
def try_(ctx: click.Context, name: str | None, as_json: bool) -> None:
    tried = asyncio.run(model_trial.run(context.settings(ctx), name))
    if as_json:
        print_json({"ok": True, **msgspec.structs.asdict(tried)})
    else:
        show(_as_text(tried))


@command.command("set", help="Make a model the default, once it answers. NAME is a model or provider:model.")
@click.argument("name")
@click.option("--no-try", "is_sure", is_flag=True, help="Do not try it first.")
@click.pass_context
def set_(ctx: click.Context, name: str, is_sure: bool) -> None:
    settings = context.settings(ctx)
    choice = _choose_named(settings, name) if is_sure else _proven(settings, name)
    written = as_default(choice, settings.config)
    for key, value in written.items():
        set_value(settings.home, key, value)
    file = paths.config_file(settings.home)
    say(f"The default is now {written['model.default']} ({' and '.join(written)} in {file}).")


def _proven(settings: Settings, name: str) -> ModelChoice:
    """The model that NAME means, after it has answered."""
    try:
        tried = asyncio.run(model_trial.run(settings, name))
    except (ProviderFailure, MissingCredential) as failure:
        insist = f"`talaria model set {name} --no-try` sets it all the same."
        failure.args = (f"{failure} Nothing was changed; {insist}",)
        raise
    say(_as_text(tried))
    provider, _, model = tried.model.partition(":")
    return ModelChoice(provider, model)


def _choose_named(settings: Settings, name: str) -> ModelChoice:
    """The model that NAME means. A key that is missing is only mentioned."""
    choice = choose(settings.config, settings.environment, name) or ModelChoice(DEMO)
    if choice.provider == DEMO:
        return choice
    try:
        endpoint(choice, settings.config, settings.environment)
    except MissingCredential as missing:
        say(str(missing))
    return ModelChoice(choice.provider, choice.model or model_status.default_model(choice.provider, settings.config))


def _as_text(tried: ModelTrial) -> str:
    usage, cost = tried.usage, tried.cost_usd
    tokens = "tokens not told" if usage is None else f"{usage.prompt:,} tokens in, {usage.output:,} out"
    price = "cost unknown" if cost is None else dollars(cost)
    return f"{tried.model} answered in {tried.seconds:.2f} s · {tokens} · {price}"


async def _list_providers(settings: Settings, *, as_json: bool, is_live: bool) -> None:
    found, default = await model_status.overview(settings, is_live=is_live)
    if as_json:
        rows = [{**msgspec.structs.asdict(row), "is_default": row.name == default.provider} for row in found]
        print_json({"default": default, "providers": rows})
        return
    cells = [(_mark_default(row.name, default.provider), row.state, _model_of(row, default)) for row in found]
    show(*_align(cells), "", *_about(default))


def _mark_default(name: str, default: str | None) -> str:
    return f"{'*' if name == default else ' '} {name}"


def _model_of(row: ProviderState, default: Default) -> str:
    """The one that is asked there."""
    if row.name == default.provider and default.model is not None:
        return default.model.removeprefix(f"{row.name}:")
    return row.default_model or ""


def _about(default: Default) -> Iterator[str]:
    if default.problem is not None:
        yield f"The default model cannot be used: {default.problem}"
    elif default.is_stand_in:
        yield "* The default is the demo model, a scripted stand-in: no API key and no local model server found."
    elif default.model is None:
        yield "No API key is there: the default is the first local model server that answers, else the demo model."
    else:
        standing_in = ", then ".join(default.fallbacks)
        yield f"* The default is {default.model}{f'; in its place, if need be: {standing_in}' if standing_in else ''}."
    yield from default.left_out


async def _list_models(name: str, settings: Settings, *, as_json: bool, is_live: bool) -> None:
    found = await model_status.models(name, settings, is_live=is_live)
    default = await model_status.default(settings, is_live=is_live)
    if as_json:
        print_json(found)
        return
    show(f"{name}: {found.provider.state}", *_align(_model_cells(found, default)))
    if found.problem is not None:
        say(found.problem)


def _model_cells(found: Models, default: Default) -> Sequence[Sequence[str]]:
    if not found.models:
        return ()
    usual = _model_of(found.provider, default)
    rows = [(_mark_default(model.name, usual), _window(model), _prices(model)) for model in found.models]
    has_facts = any(any(row[1:]) for row in rows)
    return [("  model", "window", "$ per million tokens"), *rows] if has_facts else [row[:1] for row in rows]


def _window(model: KnownModel) -> str:
    return "" if model.window is None else f"{model.window:,}"


def _prices(model: KnownModel) -> str:
    prices = model.prices
    if prices is None:
        return ""
    named = (("in", prices.input), ("out", prices.output))
    cached = (("cache read", prices.cache_read), ("cache write", prices.cache_write))
    return ", ".join(f"{price:g} {what}" for what, price in (*named, *cached) if price is not None)


def _align(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
