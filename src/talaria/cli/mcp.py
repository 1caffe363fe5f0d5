"""`talaria mcp`: which servers there are, whether they answer, and what a project's `.mcp.json` may start."""

import asyncio
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from talaria.cli import surroundings
from talaria.cli.arguments import ListingGroup
from talaria.cli.confirming import yes_option
from talaria.cli.json_output import json_option, print_json
from talaria.cli.notices import say, show
from talaria.cli.safe import brief, visible
from talaria.config import edit
from talaria.model.clock import SystemClock
from talaria.model.errors import BadInput, OperatorError
from talaria.settings import Settings
from talaria.tools.mcp import cache, project
from talaria.tools.mcp.entries import ServerEntry
from talaria.tools.mcp.servers import open_servers

ABOUT_CHARS = 90


class Row(msgspec.Struct, frozen=True):
    """A server as it is listed."""

    name: str
    place: str
    source: str
    status: str
    tools: int | None


command = ListingGroup("mcp", help="List, add and try MCP servers: programs that bring tools.")


@command.command("list", help="Every server that is named, and how many tools it had last.")
@json_option
@click.pass_context
def list_servers(ctx: click.Context, as_json: bool) -> None:
    settings = surroundings.settings(ctx)
    chosen = _chosen(settings)
    rows = list(_rows(settings, chosen.entries))
    if as_json:
        print_json({"servers": rows, "notices": chosen.notices})
        return
    for row in rows:
        tools = "tools unknown" if row.tools is None else f"{row.tools} tools"
        show(f"{row.status:<9} {row.name}  {row.place}  ({row.source}, {tools})")
    if not rows:
        say("No MCP servers yet; `talaria mcp add NAME -- COMMAND …` or `talaria mcp add NAME --url URL` adds one.")
    for notice in chosen.notices:
        say(f"! {notice}")


@command.command("test", help="Connect to a server and list its tools.")
@click.argument("name")
@json_option
@click.pass_context
def test(ctx: click.Context, name: str, as_json: bool) -> None:
    settings = surroundings.settings(ctx)
    entry = _named(settings, name)
    began = time.monotonic()
    tools, notices = asyncio.run(tried(settings, name, entry))
    seconds = time.monotonic() - began
    if as_json:
        print_json({"ok": True, "server": name, "seconds": round(seconds, 3), "tools": tools, "notices": notices})
        return
    show(f"{name} answers; {len(tools)} tools, {seconds:.1f} s.")
    for tool, about in tools.items():
        show(f"  {tool}  {brief(about, ABOUT_CHARS)}")
    for notice in notices:
        say(f"! {notice}")


async def tried(settings: Settings, name: str, entry: ServerEntry) -> tuple[dict[str, str], tuple[str, ...]]:
    """Names and descriptions of its tools. Raises `OperatorError`."""
    wanted = {name: msgspec.structs.replace(entry, enabled=True)}
    async with open_servers(wanted, settings.home, SystemClock(), settings.environment) as servers:
        await servers.first_tries()
        problem = servers.problem(name)
        if problem:
            raise OperatorError(f"The MCP server {name} {problem}.")
        return {tool.spec.name: tool.spec.description for tool in servers.tools()}, servers.notices


@command.command("trust", help="Agree to the `.mcp.json` of this folder, as it is now.")
@yes_option
@click.pass_context
def trust(ctx: click.Context, yes: bool) -> None:
    settings = surroundings.settings(ctx)
    found = project.find(Path.cwd())
    if found is None:
        raise BadInput(f"There is no {project.FILE} in {Path.cwd()}.")
    if project.is_trusted(found, settings.home):
        show(f"You have already agreed to {found.file}.")
        return
    show(f"{found.file} starts or reaches:")
    for name, entry in project.entries(found, settings.environment).items():
        show(visible(f"  {name}: {entry.place}"))
        if handed := [*entry.env, *entry.headers]:
            show(visible(f"    and is handed: {', '.join(handed)}"))
    if not yes:
        if not sys.stdin.isatty():
            raise BadInput("Nobody is here to agree; look at the file, then: talaria mcp trust --yes")
        click.confirm("Agree?", abort=True)
    project.trust(found, settings.home)
    show("Agreed. If the file changes, you are asked again.")


@command.command("add", help="Name a server in config.yaml: a COMMAND with its arguments, or --url.")
@click.argument("name")
@click.argument("command_line", metavar="[-- COMMAND [ARGUMENT]...]", nargs=-1)
@click.option("--url", help="Where it is, if it is reached over HTTP.")
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="What its process sees; goes to .env.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Sent with each request; goes to .env.")
@click.pass_context
def add(
    ctx: click.Context,
    name: str,
    command_line: tuple[str, ...],
    url: str | None,
    env: tuple[str, ...],
    headers: tuple[str, ...],
) -> None:
    settings = surroundings.settings(ctx)
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise BadInput(f"{name!r} cannot name a server: use letters, digits, - and _.")
    if name in settings.config.all_mcp_servers:
        raise BadInput(f"There is already a server {name}; change it in config.yaml.")
    if bool(command_line) == bool(url):
        raise BadInput("Say either a command (behind --) or --url.")
    entry: dict[str, Any] = {"url": url}
    if not url:  # the folder is the one where its words meant something
        entry = {"command": command_line[0], "args": list(command_line[1:]), "cwd": str(Path.cwd())}
    for key, given in (("env", env), ("headers", headers)):
        if given:
            entry[key] = dict(_kept(settings.home, name, item) for item in given)
    edit.set_value(settings.home, f"mcp_servers.{name}", msgspec.json.encode(entry).decode())
    show(f"Added {name}. Try it: talaria mcp test {name}")


def _kept(home: Path, server: str, item: str) -> tuple[str, str]:
    """A value that may be secret goes to .env, and its place to config.yaml."""
    name, equals, value = item.partition("=")
    if not equals or not name:
        raise BadInput(f"{item!r} is not NAME=VALUE.")
    if "${" in value:
        return name, value
    variable = re.sub(r"\W", "_", f"MCP_{server}_{name}").upper()
    edit.set_value(home, variable, value)
    return name, f"${{{variable}}}"


def _chosen(settings: Settings) -> project.Chosen:
    return project.choose(settings.config.all_mcp_servers, Path.cwd(), settings.home, settings.environment)


def _named(settings: Settings, name: str) -> ServerEntry:
    chosen = _chosen(settings)
    entry = chosen.entries.get(name)
    if entry is None:
        known = ", ".join(chosen.entries) or "none"
        raise BadInput(" ".join([f"There is no MCP server {name!r}; there are: {known}.", *chosen.notices]))
    return entry


def _rows(settings: Settings, entries: Mapping[str, ServerEntry]) -> Iterator[Row]:
    configured = settings.config.all_mcp_servers
    for name, entry in entries.items():
        listing = cache.read(cache.file_for(settings.home, name, entry))
        known = len(listing.offers) if listing is not None and listing.is_known else None
        source = "config.yaml" if name in configured else project.FILE
        yield Row(name, entry.place, source, "enabled" if entry.enabled else "disabled", known)
