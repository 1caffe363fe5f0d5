"""`talaria mcp`: list, try and add MCP servers, and trust a project's `.mcp.json`."""

import asyncio
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from talaria.app.listed_servers import find_servers
from talaria.app.settings import Settings
from talaria.cli import context
from talaria.cli.command_name import runnable
from talaria.cli.command_output import json_option, print_json, yes_option
from talaria.cli.command_tree import ListingGroup
from talaria.cli.notices import say, show
from talaria.cli.safe import brief, visible
from talaria.config import edit
from talaria.core.aio import in_thread
from talaria.core.clock import SystemClock
from talaria.core.errors import BadInput, OperatorError
from talaria.tools.mcp import project_servers
from talaria.tools.mcp.offers import listing_file, read_listing
from talaria.tools.mcp.server_entries import SandboxNeeds, ServerEntry
from talaria.tools.mcp.servers import open_servers

ABOUT_CHARS = 90
OUTSIDE = "outside the sandbox, with all your permissions"


class ServerRow(msgspec.Struct, frozen=True):
    name: str
    place: str
    source: str
    status: str
    tools: int | None
    is_sandboxed: bool | None
    """None if it runs elsewhere."""


class ServerTrial(msgspec.Struct, frozen=True):
    """The result of connecting to a server."""

    tools: dict[str, str]
    """Their descriptions by name."""
    notices: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    """Hosts that it tried to reach and the sandbox refused."""
    problem: str = ""


def _needs_options(function: Callable[..., None]) -> Callable[..., None]:
    """What a server may use on this machine."""
    for option, metavar, about in (
        ("--write", "FOLDER", "A folder it may change."),
        ("--read", "PATH", "Another file or folder it may read."),
        ("--network", "HOST", "A host it may reach, such as api.acme.com or *.acme.com; * means any."),
    ):
        function = click.option(option, multiple=True, metavar=metavar, help=about)(function)
    return function


command = ListingGroup("mcp", help="List, add and try MCP servers: programs that provide tools.")


@command.command("list", help="List all servers, and how many tools each had last.")
@json_option
@click.pass_context
def list_servers(ctx: click.Context, as_json: bool) -> None:
    settings = context.settings(ctx)
    chosen = _choose_servers(settings)
    configured = settings.config.all_mcp_servers
    found = find_servers(configured, settings.home, settings.environment)
    sandboxes = found.sandboxes(settings.home, SystemClock(), settings.config)
    rows: list[ServerRow] = []
    for name, entry in chosen.entries.items():
        listing = read_listing(listing_file(settings.home, name, entry))
        known = len(listing.offers) if listing is not None and listing.is_known else None
        source = "config.yaml" if name in configured else project_servers.FILE
        status = "enabled" if entry.enabled else "disabled"
        is_sandboxed = None if entry.command is None else sandboxes.confine(name, entry) is not None
        rows.append(ServerRow(name, entry.place, source, status, known, is_sandboxed))
    if as_json:
        print_json({"servers": rows, "notices": chosen.notices})
        return
    for row in rows:
        tools = "tools unknown" if row.tools is None else f"{row.tools} tools"
        outside = ", outside the sandbox" if row.is_sandboxed is False else ""
        show(f"{row.status:<9} {row.name}  {row.place}  ({row.source}, {tools}{outside})")
    if not rows:
        say("No MCP servers yet; `talaria mcp add NAME -- COMMAND …` or `talaria mcp add NAME --url URL` adds one.")
    for notice in chosen.notices:
        say(f"! {notice}")


@command.command("test", help="Connect to a server and list its tools.")
@click.argument("name")
@json_option
@click.pass_context
def test(ctx: click.Context, name: str, as_json: bool) -> None:
    settings = context.settings(ctx)
    began = time.monotonic()
    trial = asyncio.run(try_server(settings, name, _find_server(settings, name)))
    if trial.refused and not as_json and sys.stdin.isatty() and name in settings.config.all_mcp_servers:
        say(f"{name} tried to reach {', '.join(trial.refused)}, which the sandbox refused.")
        if click.confirm("Allow?", default=False, err=True):
            _grant(settings, name, network=trial.refused)
            settings = context.settings(ctx)
            began = time.monotonic()
            trial = asyncio.run(try_server(settings, name, _find_server(settings, name)))
    seconds = time.monotonic() - began
    if trial.problem:
        raise OperatorError(trial.problem)
    if as_json:
        facts = {"seconds": round(seconds, 3), "tools": trial.tools, "notices": trial.notices}
        print_json({"ok": True, "server": name, **facts, "refused": trial.refused})
        return
    show(f"{name} answers; {len(trial.tools)} tools, {seconds:.1f} s.")
    for tool, about in trial.tools.items():
        show(f"  {tool}  {brief(about, ABOUT_CHARS)}")
    for notice in trial.notices:
        say(f"! {notice}")
    if trial.refused:
        options = " ".join(f"--network {host}" for host in trial.refused)
        say(f"! The sandbox refused {', '.join(trial.refused)}. To allow it: talaria mcp sandbox {name} {options}")


async def try_server(settings: Settings, name: str, entry: ServerEntry) -> ServerTrial:
    wanted, clock = {name: msgspec.structs.replace(entry, enabled=True)}, SystemClock()
    found = await in_thread(lambda: find_servers(settings.config.all_mcp_servers, settings.home, settings.environment))
    sandboxes = found.sandboxes(settings.home, clock, settings.config)
    async with open_servers(wanted, settings.home, clock, settings.environment, sandboxes) as servers:
        await servers.first_tries()
        problem, refused = servers.problem(name), servers.find_refused_hosts(name)
        if problem:
            return ServerTrial({}, refused=refused, problem=f"The MCP server {name} {problem}.")
        tools = {tool.spec.name: tool.spec.description for tool in servers.tools()}
        return ServerTrial(tools, servers.notices, refused)


@command.command("trust", help="Agree to this folder's `.mcp.json` as it is now.")
@yes_option
@click.pass_context
def trust(ctx: click.Context, yes: bool) -> None:
    settings = context.settings(ctx)
    found = project_servers.find(Path.cwd())
    if found is None:
        raise BadInput(f"There is no {project_servers.FILE} in {Path.cwd()}.")
    if project_servers.is_trusted(found, settings.home):
        show(f"You have already agreed to {found.file}.")
        return
    show(f"{found.file} starts or reaches:")
    for name, entry in project_servers.entries(found, settings.environment).items():
        show(visible(f"  {name}: {entry.place}"))
        if handed := [*entry.env, *entry.headers]:
            show(visible(f"    and gets: {', '.join(handed)}"))
        if entry.command is not None:
            folder = Path(entry.cwd or ".").resolve()
            elsewhere = "" if folder == found.file.parent else f"; starts in {folder} and reads it"
            show(visible(f"    in the sandbox: {_format_needs(entry.needs)}{elsewhere}"))
    if not yes:
        if not sys.stdin.isatty():
            raise BadInput("Nobody can be asked to agree. Check the file, then run: talaria mcp trust --yes")
        click.confirm("Agree?", abort=True)
    project_servers.trust(found, settings.home)
    show("Agreed. If the file changes, you will be asked again.")


@command.command("add", help="Add a server to config.yaml. Give a COMMAND with its arguments, or --url.")
@click.argument("name")
@click.argument("command_line", metavar="[-- COMMAND [ARGUMENT]...]", nargs=-1)
@click.option("--url", help="Its address, if it is reached over HTTP.")
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="A variable for its process; stored in .env.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="An HTTP header; stored in .env.")
@_needs_options
@click.option("--no-sandbox", "is_outside", is_flag=True, help=f"Run it {OUTSIDE}.")
@click.pass_context
def add(
    ctx: click.Context,
    name: str,
    command_line: tuple[str, ...],
    url: str | None,
    env: tuple[str, ...],
    headers: tuple[str, ...],
    network: tuple[str, ...],
    read: tuple[str, ...],
    write: tuple[str, ...],
    is_outside: bool,
) -> None:
    settings = context.settings(ctx)
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise BadInput(f"{name!r} cannot be a server's name: use letters, digits, - and _.")
    if name in settings.config.all_mcp_servers:
        raise BadInput(f"There is already a server {name}; change it in config.yaml.")
    if bool(command_line) == bool(url):
        raise BadInput("Give either a command (after --) or --url.")
    if (url or is_outside) and (network or read or write):
        raise BadInput("--network, --read and --write only apply to a command in the sandbox.")
    entry: dict[str, Any] = {"url": url}
    needs = SandboxNeeds(network=network, read=_absolute(read), write=_absolute(write))
    if not url:
        if needs == SandboxNeeds() and not is_outside and sys.stdin.isatty():
            say("It will run in the sandbox: it can read this folder, but reach and change only what you list now.")
            hosts = click.prompt("Hosts it must reach (*: any, Enter: none)", default="", show_default=False, err=True)
            folders = click.prompt("Folders it may change (Enter: none)", default="", show_default=False, err=True)
            needs = SandboxNeeds(network=tuple(hosts.split()), write=_absolute(shlex.split(folders)))
        # relative paths in the command mean the folder where it was added
        entry = {"command": command_line[0], "args": list(command_line[1:]), "cwd": str(Path.cwd())}
        entry["sandbox"] = False if is_outside else _section(needs)
    for key, given in (("env", env), ("headers", headers)):
        for item in given:
            variable, equals, value = item.partition("=")
            if not equals or not variable:
                raise BadInput(f"{item!r} is not NAME=VALUE.")
            if "${" not in value:  # it may be secret, so it goes to .env, and a reference to config.yaml
                stored = re.sub(r"\W", "_", f"MCP_{name}_{variable}").upper()
                edit.set_value(settings.home, stored, value)
                value = f"${{{stored}}}"
            entry.setdefault(key, {})[variable] = value
    edit.set_value(settings.home, f"mcp_servers.{name}", msgspec.json.encode(entry).decode())
    if not url:
        show(f"{name} runs {OUTSIDE if is_outside else _format_sandbox(needs)}.")
    show(runnable(f"Added {name}. Try it: talaria mcp test {name}"))


@command.command("sandbox", help="Run a server in the sandbox. The options add to what it may reach, read and change.")
@click.argument("name")
@_needs_options
@click.option("--off", "is_outside", is_flag=True, help=f"Run it {OUTSIDE}.")
@click.pass_context
def sandbox(
    ctx: click.Context,
    name: str,
    network: tuple[str, ...],
    read: tuple[str, ...],
    write: tuple[str, ...],
    is_outside: bool,
) -> None:
    settings = context.settings(ctx)
    if is_outside and (network or read or write):
        raise BadInput("Use --off alone: a server outside the sandbox can reach, read and change whatever you can.")
    if is_outside:
        edit.set_value(settings.home, f"{_setting(settings, name)}.sandbox", "false")
        show(f"{name} runs {OUTSIDE}.")
        return
    needs = _grant(settings, name, network, _absolute(read), _absolute(write))
    show(runnable(f"{name} runs {_format_sandbox(needs)}. Try it: talaria mcp test {name}"))


def _grant(
    settings: Settings, name: str, network: Sequence[str], read: Sequence[str] = (), write: Sequence[str] = ()
) -> SandboxNeeds:
    """Adds to what config.yaml grants a server."""
    setting = _setting(settings, name)
    before = settings.config.all_mcp_servers[name].needs
    needs = SandboxNeeds(
        network=tuple(dict.fromkeys((*before.hosts, *network))),
        read=tuple(dict.fromkeys((*before.read, *read))),
        write=tuple(dict.fromkeys((*before.write, *write))),
    )
    edit.set_value(settings.home, f"{setting}.sandbox", msgspec.json.encode(_section(needs)).decode())
    return needs


def _setting(settings: Settings, name: str) -> str:
    """The setting in config.yaml of a server that runs on this machine."""
    config = settings.config
    roots = {"mcp_servers": config.mcp_servers, "mcp.servers": config.mcp.servers, "mcpServers": config.mcpServers}
    root = next((root for root, entries in roots.items() if name in entries), None)
    if root is None:
        known = ", ".join(config.all_mcp_servers) or "none"
        raise BadInput(f"There is no MCP server {name!r} in config.yaml; known servers: {known}.")
    if roots[root][name].command is None:
        raise BadInput(f"{name} is reached over HTTP and runs elsewhere, so it cannot be put in the sandbox.")
    return f"{root}.{name}"


def _section(needs: SandboxNeeds) -> dict[str, list[str]]:
    """As in config.yaml, which always has `network`."""
    given = {"network": needs.hosts, "read": needs.read, "write": needs.write}
    return {key: [*values] for key, values in given.items() if values or key == "network"}


def _format_sandbox(needs: SandboxNeeds) -> str:
    return f"in the sandbox ({_format_needs(needs)})"


def _format_needs(needs: SandboxNeeds) -> str:
    given = {"reaches": needs.hosts, "reads": needs.read, "changes": needs.write}
    return "; ".join(
        f"{what} {', '.join(values) or 'nothing'}" for what, values in given.items() if what != "reads" or values
    )


def _absolute(paths: Sequence[str]) -> tuple[str, ...]:
    """Relative paths would later mean another folder."""
    return tuple(path if path.startswith("~") else str(Path.cwd() / path) for path in paths)


def _choose_servers(settings: Settings) -> project_servers.ChosenServers:
    return project_servers.choose(settings.config.all_mcp_servers, Path.cwd(), settings.home, settings.environment)


def _find_server(settings: Settings, name: str) -> ServerEntry:
    chosen = _choose_servers(settings)
    entry = chosen.entries.get(name)
    if entry is None:
        known = ", ".join(chosen.entries) or "none"
        raise BadInput(" ".join([f"There is no MCP server {name!r}; known servers: {known}.", *chosen.notices]))
    return entry
