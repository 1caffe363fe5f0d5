"""`talaria plugins`: list, install, enable and remove plugins, and choose the context engine and memory provider."""

import json
import shlex
import shutil
import sys
from collections.abc import Iterable

import click

from talaria.app.settings import Settings, read_settings_leniently
from talaria.cli import context
from talaria.cli.command_name import runnable
from talaria.cli.command_output import json_option, print_json
from talaria.cli.notices import Progress, say, show
from talaria.cli.plugin_view import (
    Kind,
    about,
    choices,
    enabling_names,
    find_key,
    find_keys,
    find_plugin,
    find_plugins,
    inspect_plugins,
    next_steps,
    rows,
)
from talaria.cli.safe import brief
from talaria.compat.hermes.moving_in import move_in
from talaria.config import edit, paths
from talaria.config.schema import BUILTIN_ENGINE
from talaria.config.secrets import is_safe_mode
from talaria.core.errors import BadInput
from talaria.core.fs import read_text
from talaria.plugins import consent
from talaria.plugins.consent import PluginConsent
from talaria.plugins.discovery import FoundPlugin
from talaria.plugins.installing import AFTER, install_plugin
from talaria.plugins.plugin_host import Choice

SHOWN_CHARS = 4_000
ABOUT_CHARS = 100
_SETTING: dict[Kind, str] = {"engine": "context.engine", "memory": "memory.provider"}
_TITLE: dict[Kind, str] = {"engine": "Context engine", "memory": "Memory provider"}


@click.group("plugins", help="List, install, enable and choose plugins.", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_plugins)
        if sys.stdin.isatty():
            ctx.invoke(choose, kind="engine")
            ctx.invoke(choose, kind="memory")


@command.command("list", help="List all plugins, and whether they could be loaded.")
@json_option
@click.pass_context
def list_plugins(ctx: click.Context, as_json: bool) -> None:
    settings = context.lenient_settings(ctx)
    listed, offered = inspect_plugins(settings, lambda extensions: (list(rows(extensions)), choices(extensions)))
    if as_json:
        print_json({"plugins": listed, "choices": offered})
        return
    if not listed:
        say(f"No plugins yet; `talaria plugins install PATH|GIT-URL` installs one in {settings.home / 'plugins'}.")
    for row in listed:
        show(f"{row.status:<10}  {row.name} {row.version}  ({row.source})  {brief(row.description, ABOUT_CHARS)}")
        show(*(runnable(f"            ! {problem}") for problem in row.problems))
    for kind, known in offered.items():
        chosen = _read_chosen(settings, kind)
        marks = ", ".join(f"{name}{' (chosen)' if name == chosen else ''}" for name, _ in known)
        if marks:
            show(f"{_TITLE[kind]}: {marks}")


@command.command("info", help="Show how a plugin describes itself, and what it adds.")
@click.argument("name")
@click.pass_context
def info(ctx: click.Context, name: str) -> None:
    settings = context.lenient_settings(ctx)
    show(*inspect_plugins(settings, lambda extensions: list(about(find_plugin(extensions, name)))))


@command.command(
    "install", help="Copy a plugin into the home, from a folder or a Git repository. It is not enabled yet."
)
@click.argument("source", metavar="PATH|GIT-URL")
@click.option("--force", is_flag=True, help="Replace the plugin if it is already installed.")
@click.option("--enable", "is_enabling", is_flag=True, help="Enable it, too.")
@click.pass_context
def install(ctx: click.Context, source: str, force: bool, is_enabling: bool) -> None:
    home = context.home(ctx)
    say(f"Fetching {source} …")
    with Progress(f"Installing {source}"):
        folder, manifest = install_plugin(source, home / "plugins", replace=force)
    show(f"Installed {manifest.name} {manifest.version} into {folder}.")
    after = read_text(folder / AFTER, SHOWN_CHARS)
    if after:
        show(after.strip())
    if manifest.packages:
        show(f"It needs: {sys.executable} -m pip install {shlex.join(manifest.packages)}")
    for need in manifest.requires_env:
        show(f"It needs {need.name} ({need.description or need.url or 'see its README'}):")
        show(runnable(f"  talaria config set {shlex.quote(need.name)} …"))
    if is_enabling:
        ctx.invoke(enable, name=manifest.name)
    else:
        show(runnable(f"Check its code, then run: talaria plugins enable {shlex.quote(manifest.name)}"))


@command.command("enable", help="Agree to a plugin as it is now. From then on, its code is loaded.")
@click.argument("name")
@click.pass_context
def enable(ctx: click.Context, name: str) -> None:
    settings = context.lenient_settings(ctx)
    _check_editable(settings, name)
    found = _find_plugin(settings, name)
    if is_safe_mode(settings.environment):
        raise BadInput(f"Plugins are not loaded in safe mode, so {found.key} cannot be enabled now.")
    if found.names & set(settings.config.plugins.disabled):
        raise BadInput(f"Plugin {found.key} is listed under plugins.disabled in config.yaml; remove it there first.")
    if found.problem or not found.places:
        raise BadInput(f"Plugin {found.key} cannot be enabled: it {found.problem or 'has no code'}.")
    moving = move_in(settings.home)  # before the first consent: later, unknown files in the home may be a plugin's
    if moving.obstacle:
        raise BadInput(f"No plugin can be enabled now: {moving.obstacle}.")
    for notice in moving.notices:
        say(notice)
    file, enabled = paths.consents_file(settings.home), settings.config.plugins.enabled
    before = consent.read(file)
    try:
        content = consent.content_of(found.places)
    except (OSError, consent.TooMuch) as fault:
        raise BadInput(f"Plugin {found.key} cannot be enabled: it cannot be read: {fault}.") from fault
    consent.write(file, {**before, found.key: PluginConsent(content)})
    if found.key not in enabled:
        edit.set_value(settings.home, "plugins.enabled", _as_yaml_list([*enabled, found.key]))
    plugin = inspect_plugins(
        read_settings_leniently(settings.home), lambda extensions: extensions.host.plugins[found.key]
    )
    if plugin.status == "failed":
        consent.write(file, before)
        edit.set_value(settings.home, "plugins.enabled", _as_yaml_list(enabled))
        raise BadInput(f"Plugin {found.key} is not enabled: it {plugin.problems[0]}.")
    show(f"Enabled {found.key}.")
    show(*map(runnable, next_steps(plugin)))


def _check_editable(settings: Settings, name: str) -> None:
    if any(problem.is_unreadable for problem in settings.problems):
        raise BadInput(
            f"{paths.config_file(settings.home)} cannot be edited until it is corrected, so {name} stays as it is. "
            "Until then, TALARIA_SAFE_MODE=1 talaria … runs without plugins."
        )


@command.command("disable", help="Stop loading a plugin.")
@click.argument("name")
@click.pass_context
def disable(ctx: click.Context, name: str) -> None:
    settings = context.lenient_settings(ctx)
    _check_editable(settings, name)
    enabled, found = settings.config.plugins.enabled, find_plugins(settings)
    keys = find_keys(name, found)
    key = keys[0] if len(keys) == 1 else name  # it may no longer be installed
    names = enabling_names(found[key], found) if key in found else {name}
    if not names & set(enabled):
        raise BadInput(f"Plugin {name} is not enabled.")
    edit.set_value(settings.home, "plugins.enabled", _as_yaml_list(one for one in enabled if one not in names))
    file = paths.consents_file(settings.home)
    agreed = consent.read(file)
    known = agreed.pop(key, PluginConsent(""))
    consent.write(file, agreed)
    show(f"Disabled {name}.")
    if settings.config.context.engine in names | {known.engine}:
        _choose(settings, "engine", BUILTIN_ENGINE)
        show("The context engine is the built-in one again.")
    if _read_chosen(settings, "memory") in names | {known.memory} - {""}:
        _choose(settings, "memory", "")
        show("No memory provider is chosen any more.")


@command.command("remove", help="Disable a plugin and delete its folder from the home.")
@click.argument("name")
@click.pass_context
def remove(ctx: click.Context, name: str) -> None:
    settings = context.lenient_settings(ctx)
    found = _find_plugin(settings, name)
    if found.folder is None and found.replaces is not None:
        found = found.replaces
    if found.folder is None or not found.folder.is_relative_to(settings.home / "plugins"):
        raise BadInput(f"Plugin {found.key} is not in {settings.home / 'plugins'}; remove it where it is installed.")
    if enabling_names(found, find_plugins(settings)) & set(settings.config.plugins.enabled):
        ctx.invoke(disable, name=found.key)
    if found.folder.is_symlink():
        found.folder.unlink()
    else:
        shutil.rmtree(found.folder)
    show(f"Removed {found.folder}.")


@command.command("choose", help="Choose the context engine or the memory provider.")
@click.argument("kind", type=click.Choice(["engine", "memory"]))
@click.argument("name", required=False)
@click.pass_context
def choose(ctx: click.Context, kind: Kind, name: str | None = None) -> None:
    settings = context.lenient_settings(ctx)
    offered, before = inspect_plugins(settings, choices)[kind], _read_chosen(settings, kind)
    picked = name if name is not None else _pick(kind, offered, before)
    if picked is None or picked == before:
        return
    if picked not in [known for known, _ in offered]:
        known = ", ".join(known for known, _ in offered) or "none"
        raise BadInput(f"There is no {_TITLE[kind].lower()} {picked!r}; choose one of: {known}.")
    _choose(settings, kind, picked)
    missing = inspect_plugins(read_settings_leniently(settings.home), lambda extensions: extensions.missing(kind))
    if missing:
        _choose(settings, kind, before)
        raise BadInput(f"{_TITLE[kind]} {picked} cannot be used: {missing}")
    show(f"{_TITLE[kind]}: {picked}.")


def _pick(kind: Kind, offered: list[Choice], chosen: str) -> str | None:
    """Ask the person to choose by number. None keeps the current choice."""
    if not offered or [name for name, _ in offered] == [chosen]:
        return None
    if not sys.stdin.isatty():
        say(f"Name one of these: {', '.join(name for name, _ in offered)}.")
        return None
    show(f"{_TITLE[kind]}:")
    for number, (name, description) in enumerate(offered, 1):
        show(f"  {number}  {name}{' (chosen)' if name == chosen else ''}  {description}")
    answer = click.prompt("Number (Enter keeps it)", default="", show_default=False)
    if not answer:
        return None
    if not answer.isdecimal() or not 1 <= int(answer) <= len(offered):
        raise BadInput(f"{answer!r} is not one of the numbers from 1 to {len(offered)}.")
    return offered[int(answer) - 1][0]


def _choose(settings: Settings, kind: Kind, name: str) -> None:
    """In quotes, because a name may look like a number or `true`."""
    edit.set_value(settings.home, _SETTING[kind], json.dumps(name, ensure_ascii=False) if name else "")


def _read_chosen(settings: Settings, kind: Kind) -> str:
    config = settings.config
    return config.context.engine if kind == "engine" else config.memory.provider or ""


def _find_plugin(settings: Settings, name: str) -> FoundPlugin:
    found = find_plugins(settings)
    return found[find_key(name, found)]


def _as_yaml_list(names: Iterable[str]) -> str:
    return json.dumps(list(names), ensure_ascii=False)
