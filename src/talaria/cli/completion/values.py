"""The values of a parameter, for the tab key: looked up in the home, without a network and without plugins' code."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import get_args, get_origin

import click
import msgspec
from click.shell_completion import CompletionItem

from talaria.app.settings import read_settings
from talaria.cli import context, model_status
from talaria.cli.gateway.send import platforms
from talaria.config import paths
from talaria.config.schema import Config
from talaria.config.selection import DEMO
from talaria.platforms.loader import EVERYWHERE, manifests
from talaria.providers.catalog import catalog

Found = Iterable[tuple[str, str]]
"""Values, each with a short help text."""
Find = Callable[[Path], Found]

MAX_SESSIONS = 50


def sessions(home: Path) -> Found:
    """Latest first: those with a title by it, then all by id."""
    if not paths.database_file(home).exists():
        return
    rows = context.with_store(home, lambda store: store.sessions.list(MAX_SESSIONS))
    yield from ((row.title, row.preview) for row in rows if row.title)
    yield from ((row.id, row.title or row.preview) for row in rows)


def tokens(home: Path) -> Found:
    if not paths.database_file(home).exists():
        return []
    known = context.with_store(home, lambda store: store.api_tokens.list())
    return [(one.name, ", ".join(one.scopes)) for one in known]


def models(home: Path) -> Found:
    config = read_settings(home).config
    for name in model_status.names(config):
        usual = model_status.default_model(name, config)
        known = dict.fromkeys(
            (*(model.name for model in model_status.list_known_models(name, config)), *filter(None, [usual]))
        )
        yield from ((f"{name}:{model}", "its default" if model == usual else "") for model in known)
    yield DEMO, "a scripted stand-in"


def providers(home: Path) -> Found:
    return [(name, "") for name in model_status.names(read_settings(home).config)]


def servers(home: Path) -> Found:
    return [(name, "") for name in read_settings(home).config.mcp_servers]


def profiles(_: Path) -> Found:
    return [(name, "") for name in ("default", *context.profiles())]


def targets(home: Path) -> Found:
    known = manifests()
    names = platforms(read_settings(home))
    return [(name, known[name].label if name in known else "from a plugin") for name in names]


def keys(_: Path) -> Found:
    """Settings, then secrets."""
    yield from _keys(Config)
    names = {key for facts in catalog().values() for key in facts.keys}
    names |= {*EVERYWHERE, *(name for one in manifests().values() for name in one.environment)}
    yield from ((name, "in .env") for name in sorted(names))


def _keys(struct: type[msgspec.Struct], prefix: str = "") -> Found:
    """Without settings under a name that people choose."""
    for field in msgspec.structs.fields(struct):
        types = (field.type, *get_args(field.type))
        inner = [one for one in types if isinstance(one, type) and issubclass(one, msgspec.Struct)]
        if get_origin(field.type) in (dict, Mapping):
            continue
        if not inner:
            yield f"{prefix}{field.encode_name}", ""
        for one in inner:
            yield from _keys(one, f"{prefix}{field.encode_name}.")


_VALUES: Mapping[str, Find] = {
    "chat model": models,
    "chat resume": sessions,
    "chat profile": profiles,
    "talaria profile": profiles,
    "sessions name": sessions,
    "rollback session": sessions,
    "model name": models,
    "model provider": providers,
    "mcp name": servers,
    "config key": keys,
    "profiles name": profiles,
    "api name": tokens,
    "pairing platform": targets,
    "send target": targets,
}
"""By command and parameter."""


def equip(command: click.Command | None, name: str = "") -> None:
    """Teaches its parameters, and those of its subcommands, their values."""
    if command is None:
        return
    name = name or command.name or ""
    for one in command.params:
        if find := _VALUES.get(f"{name} {one.name}"):
            one.type = _Values(find)
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        equip(inner, name)


class _Values(click.ParamType[str]):
    name = "text"

    def __init__(self, find: Find) -> None:
        self._find = find

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002  (click gives it)
        incomplete: str,
    ) -> list[CompletionItem[str]]:
        named = [one.params.get("profile") for one in (ctx, ctx.find_root())]
        home = context.home_of(next(filter(None, named), None))
        found = {value: about for value, about in self._find(home) if value.startswith(incomplete)}
        return [CompletionItem(value, help=about) for value, about in found.items() if value.isprintable()]
