"""`talaria plugins`: what there is, what is enabled, and which of a kind is chosen."""

import asyncio
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal, TypeVar

import click
import msgspec

from talaria.cli import exits, surroundings
from talaria.cli.notices import say
from talaria.cli.render import print_json, told
from talaria.cli.safe import printable
from talaria.compose import Settings, builtin_names
from talaria.config import edit, paths
from talaria.config.schema import BUILTIN_ENGINE
from talaria.extensions import Extensions, open_extensions
from talaria.files import read_text
from talaria.model.clock import SystemClock
from talaria.model.errors import BadInput
from talaria.plugins import consent
from talaria.plugins.choices import Choice, engine_choices, memory_choices
from talaria.plugins.consent import Consent
from talaria.plugins.discovery import Found, discover, places
from talaria.plugins.host import Plugin
from talaria.plugins.installing import AFTER, installed
from talaria.runtime.builtin_commands import BUILTIN
from talaria.runtime.commands import Commands

SHOWN_CHARS = 4_000
ABOUT_CHARS = 100
T = TypeVar("T")
Kind = Literal["engine", "memory"]
_SETTING: dict[Kind, str] = {"engine": "context.engine", "memory": "memory.provider"}
_TITLE: dict[Kind, str] = {"engine": "Context engine", "memory": "Memory provider"}


class Row(msgspec.Struct, frozen=True):
    """A plugin as it is listed."""

    name: str
    version: str
    source: str
    status: str
    description: str
    problems: tuple[str, ...]


@click.group("plugins", help="List, install, enable and choose plugins.", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_plugins)
        if sys.stdin.isatty():
            ctx.invoke(choose, kind="engine")
            ctx.invoke(choose, kind="memory")


@command.command("list", help="Every plugin that is there, and what became of it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def list_plugins(ctx: click.Context, as_json: bool = False) -> None:
    with told(as_json=as_json):
        settings = surroundings.settings(ctx)
        rows, choices = looked(settings, lambda extensions: (list(_rows(extensions)), _choices(extensions)))
    if as_json:
        print_json({"plugins": rows, "choices": choices})
        return
    if not rows:
        say(f"No plugins yet; `talaria plugins install PATH|GIT-URL` puts one into {settings.home / 'plugins'}.")
    for row in rows:
        about = shorten(row.description, ABOUT_CHARS, placeholder=" …")
        click.echo(printable(f"{row.status:<10}  {row.name} {row.version}  ({row.source})  {about}"))
        for problem in row.problems:
            click.echo(printable(f"            ! {problem}"))
    for kind, named in choices.items():
        chosen = _chosen(settings, kind)
        marks = ", ".join(f"{name}{' (chosen)' if name == chosen else ''}" for name, _ in named)
        if marks:
            click.echo(printable(f"{_TITLE[kind]}: {marks}"))


@command.command("info", help="What a plugin says of itself, and what it brings.")
@click.argument("name")
@click.pass_context
def info(ctx: click.Context, name: str) -> None:
    settings = surroundings.settings(ctx)
    for line in looked(settings, lambda extensions: list(_about(_named(extensions, name)))):
        click.echo(printable(line))


@command.command(
    "install", help="Copy a plugin from a folder or a Git repository into the home. It is not yet enabled."
)
@click.argument("source", metavar="PATH|GIT-URL")
@click.option("--force", is_flag=True, help="Put it in place of the one that is there.")
@click.option("--enable", "is_enabling", is_flag=True, help="Enable it, too.")
@click.pass_context
def install(ctx: click.Context, source: str, force: bool, is_enabling: bool) -> None:
    home = surroundings.home(ctx)
    say(f"Fetching {source} …")
    folder, manifest = installed(source, home / "plugins", replace=force)
    click.echo(printable(f"Installed {manifest.name} {manifest.version} into {folder}."))
    after = read_text(folder / AFTER, SHOWN_CHARS)
    if after:
        click.echo(printable(after.strip()))
    if manifest.packages:
        click.echo(printable(f"It needs: {sys.executable} -m pip install {' '.join(manifest.packages)}"))
    for need in manifest.requires_env:
        click.echo(printable(f"It needs {need.name} ({need.description or need.url or 'see its README'}):"))
        click.echo(f"  talaria config set {need.name} …")
    if is_enabling:
        ctx.invoke(enable, name=manifest.name)
    else:
        click.echo(f"Look at it, then: talaria plugins enable {manifest.name}")


@command.command("enable", help="Agree to a plugin as it is now: from now on its code is loaded.")
@click.argument("name")
@click.pass_context
def enable(ctx: click.Context, name: str) -> int:
    settings = surroundings.settings(ctx)
    found = _found(settings, name)
    place = found.place
    if found.problem or place is None:
        raise BadInput(f"Plugin {found.key} cannot be enabled: it {found.problem or 'has no code'}.")
    file, enabled = paths.consents_file(settings.home), settings.config.plugins.enabled
    before = consent.read(file)
    consent.write(file, {**before, found.key: Consent(consent.content_of(place))})
    if not {found.key, found.manifest.name} & set(enabled):
        edit.set_value(settings.home, "plugins.enabled", _flow([*enabled, found.key]))
    plugin = looked(surroundings.settings(ctx), lambda extensions: extensions.host.plugins[found.key])
    if plugin.status == "failed":
        consent.write(file, before)
        edit.set_value(settings.home, "plugins.enabled", _flow(enabled))
        raise BadInput(f"Plugin {found.key} is not enabled: it {plugin.problems[0]}.")
    click.echo(f"Enabled {found.key}.")
    for line in _next_steps(plugin):
        click.echo(printable(line))
    return exits.DONE


@command.command("disable", help="Do not load a plugin any more.")
@click.argument("name")
@click.pass_context
def disable(ctx: click.Context, name: str) -> None:
    settings = surroundings.settings(ctx)
    enabled = settings.config.plugins.enabled
    found = next((one for one in _all(settings).values() if name in (one.key, one.manifest.name)), None)
    names = {name} if found is None else {found.key, found.manifest.name}
    if not names & set(enabled):
        raise BadInput(f"Plugin {name} is not enabled.")
    edit.set_value(settings.home, "plugins.enabled", _flow([one for one in enabled if one not in names]))
    file = paths.consents_file(settings.home)
    agreed = consent.read(file)
    consent.write(file, {key: value for key, value in agreed.items() if key not in names})
    click.echo(f"Disabled {name}.")
    _let_go(settings, names)


@command.command("remove", help="Disable a plugin and delete its folder from the home.")
@click.argument("name")
@click.pass_context
def remove(ctx: click.Context, name: str) -> None:
    settings = surroundings.settings(ctx)
    found = _found(settings, name)
    if found.folder is None or not found.folder.is_relative_to(settings.home / "plugins"):
        raise BadInput(f"Plugin {found.key} is not in {settings.home / 'plugins'}; remove it where it came from.")
    if {found.key, found.manifest.name} & set(settings.config.plugins.enabled):
        ctx.invoke(disable, name=name)
    if found.folder.is_symlink():
        found.folder.unlink()
    else:
        shutil.rmtree(found.folder)
    click.echo(f"Removed {found.folder}.")


@command.command("choose", help="Choose the context engine or the memory provider.")
@click.argument("kind", type=click.Choice(["engine", "memory"]))
@click.argument("name", required=False)
@click.pass_context
def choose(ctx: click.Context, kind: Kind, name: str | None = None) -> None:
    settings = surroundings.settings(ctx)
    named = looked(settings, _choices)[kind]
    picked = name if name is not None else _picked(kind, named, _chosen(settings, kind))
    if picked is None or picked == _chosen(settings, kind):
        return
    if picked not in [known for known, _ in named]:
        known = ", ".join(known for known, _ in named) or "none"
        raise BadInput(f"There is no {_TITLE[kind].lower()} {picked!r}; there are: {known}.")
    edit.set_value(settings.home, _SETTING[kind], picked)
    click.echo(f"{_TITLE[kind]}: {picked}.")


def _picked(kind: Kind, named: list[Choice], chosen: str) -> str | None:
    """By number; None keeps what is chosen."""
    if not named or not sys.stdin.isatty():
        if named and kind:
            say(f"Say which: {', '.join(name for name, _ in named)}.")
        return None
    click.echo(f"{_TITLE[kind]}:")
    for number, (name, description) in enumerate(named, 1):
        click.echo(printable(f"  {number}  {name}{' (chosen)' if name == chosen else ''}  {description}"))
    answer = click.prompt("Number (Enter keeps it)", default="", show_default=False)
    if not answer.isdecimal() or not 1 <= int(answer) <= len(named):
        return None
    return named[int(answer) - 1][0]


def looked(settings: Settings, look: Callable[[Extensions], T]) -> T:
    """At the plugins, loaded as a conversation would load them."""

    async def run() -> T:
        commands = Commands(BUILTIN)
        async with open_extensions(
            settings.home, settings.config, settings.environment, Path.cwd(), SystemClock(), commands
        ) as extensions:
            extensions.settle(builtin_names())
            return look(extensions)

    return asyncio.run(run())


def _all(settings: Settings) -> dict[str, Found]:
    config = settings.config.plugins
    return discover(places(settings.home, Path.cwd(), settings.environment, with_project=config.project))


def _found(settings: Settings, name: str) -> Found:
    found = _all(settings)
    one = found.get(name) or next((one for one in found.values() if one.manifest.name == name), None)
    if one is None:
        raise BadInput(f"There is no plugin {name!r}; there are: {', '.join(found) or 'none'}.")
    return one


def _named(extensions: Extensions, name: str) -> Plugin:
    plugins = extensions.host.plugins
    one = plugins.get(name) or next((one for one in plugins.values() if one.name == name), None)
    if one is None:
        raise BadInput(f"There is no plugin {name!r}; there are: {', '.join(plugins) or 'none'}.")
    return one


def _rows(extensions: Extensions) -> Iterator[Row]:
    for plugin in extensions.host.plugins.values():
        about = plugin.found.manifest
        status, source = plugin.status, plugin.found.source
        yield Row(plugin.key, about.version, source, status, about.description, tuple(plugin.problems))


def _choices(extensions: Extensions) -> dict[Kind, list[Choice]]:
    return {"engine": engine_choices(extensions.host), "memory": memory_choices(extensions.host)}


def _chosen(settings: Settings, kind: Kind) -> str:
    config = settings.config
    return config.context.engine if kind == "engine" else config.memory.provider or ""


def _about(plugin: Plugin) -> Iterator[str]:
    about, brought = plugin.found.manifest, plugin.registered
    yield f"{plugin.key} {about.version}  {about.description}"
    yield f"author: {about.author or 'unknown'} · kind: {about.kind} · {plugin.found.source}: {plugin.found.place}"
    yield f"status: {plugin.status}"
    yield from (f"problem: {problem}" for problem in plugin.problems)
    parts = {
        "tools": [tool.spec.name for tool in brought.tools],
        "hooks": [name for name, _ in brought.hooks],
        "slash commands": [f"/{one.name}" for one in brought.commands],
        "commands": [f"talaria {one.name}" for one in brought.cli],
        "skills": [skill.name for skill in brought.skills],
        "context engine": [plugin.name] if brought.engine else [],
        "memory provider": [plugin.name] if brought.memory else [],
        "needs": [*(need.name for need in about.requires_env), *about.packages],
    }
    yield from (f"{title}: {', '.join(items)}" for title, items in parts.items() if items)


def _next_steps(plugin: Plugin) -> Iterator[str]:
    yield from (f"! {problem}" for problem in plugin.problems)
    if plugin.registered.engine is not None or plugin.found.category == "context_engine":
        name = plugin.registered.engine.name if plugin.registered.engine else plugin.name
        yield f"To use its context engine: talaria plugins choose engine {name}"
    if plugin.registered.memory is not None or plugin.found.manifest.kind == "exclusive":
        yield f"To use its memory: talaria plugins choose memory {plugin.name}"


def _let_go(settings: Settings, names: set[str]) -> None:
    """Of a choice that is gone with its plugin."""
    if settings.config.context.engine in names:
        edit.set_value(settings.home, "context.engine", BUILTIN_ENGINE)
        click.echo("The context engine is the built-in one again.")
    if settings.config.memory.provider in names:
        edit.set_value(settings.home, "memory.provider", "")


def _flow(names: Any) -> str:
    return msgspec.json.encode(list(names)).decode()
