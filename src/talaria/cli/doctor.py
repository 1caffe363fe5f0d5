"""`talaria doctor`: looks at everything that must be right, and says what to do about what is not."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import click

from talaria import __version__
from talaria.cli import exits, surroundings
from talaria.cli.finding import Finding
from talaria.cli.render import print_json
from talaria.cli.safe import printable
from talaria.compose import Settings, open_application, open_store, read_settings
from talaria.config import paths
from talaria.config.selection import DEMO
from talaria.model.errors import TalariaError
from talaria.tools.mcp.entries import ServerEntry


@click.command("doctor", help="Check that everything is in order.")
@click.option("--security", is_flag=True, help="Try to break out of the sandbox, and look at what else keeps you safe.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(ctx: click.Context, security: bool, as_json: bool) -> int:
    home = surroundings.home(ctx)
    findings: list[Finding] = []
    for finding in _security(home) if security else _examine(home):
        findings.append(finding)
        if not as_json:  # as they come: it may take a while
            word = {"ok": "PASS", "warn": "WARN", "fail": "FAIL"}[finding.verdict] if security else finding.verdict
            click.echo(printable(f"{word:>4}  {finding.subject}: {finding.text}"))
    if as_json:
        print_json(findings)
    return exits.BAD_INPUT if any(finding.verdict == "fail" for finding in findings) else exits.DONE


def _security(home: Path) -> Iterator[Finding]:
    from talaria.cli.security import examine  # noqa: PLC0415  (only who asks for it pays for it)

    yield from examine(read_settings(home))


def _examine(home: Path) -> Iterator[Finding]:
    yield Finding("talaria", "ok", f"{__version__} on Python {sys.version.split()[0]}")
    yield _home(home)
    if os.geteuid() == 0:
        yield Finding("user", "warn", "running as root: what is not confined has every right on this machine")
    try:
        settings = read_settings(home)
        file = paths.config_file(home)
        yield Finding("settings", "ok", str(file) if file.exists() else f"the defaults ({file} is not there)")
    except TalariaError as error:
        settings = None
        yield Finding("settings", "fail", str(error))
    yield _examined("store", lambda: _store(home))
    if settings is not None:
        yield _examined("model", lambda: _model(settings))
        yield _sandbox(settings)
    if settings is not None and settings.config.wants_plugins:
        yield from _plugins(settings)
    if settings is not None and settings.config.all_mcp_servers:
        yield from _mcp(settings)
    if settings is not None:
        yield from _gateway(settings)


def _gateway(settings: Settings) -> Iterator[Finding]:
    from talaria.cli.gateway_findings import examine  # noqa: PLC0415

    yield from examine(settings)


def _sandbox(settings: Settings) -> Finding:
    from talaria.tools.sandbox.choosing import Choosing  # noqa: PLC0415

    sandbox = Choosing(settings.config.terminal).sandbox
    told = f"{sandbox.level}: {sandbox.about}; `talaria doctor --security` tries it"
    return Finding("sandbox", "warn" if sandbox.level == "none" else "ok", told)


def _home(home: Path) -> Finding:
    nearest = next(folder for folder in (home, *home.parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return Finding("home", "fail", f"{nearest} is no writable folder; make it one, or set TALARIA_HOME to another")
    return Finding("home", "ok", str(home))


def _examined(subject: str, look: Callable[[], Coroutine[Any, Any, Finding]]) -> Finding:
    try:
        return asyncio.run(look())
    except TalariaError as error:
        return Finding(subject, "fail", str(error))


async def _store(home: Path) -> Finding:
    async with open_store(home) as store:
        problems = await store.check()
        waiting = await store.journal.interrupted()
    if problems:
        return Finding("store", "fail", f"{paths.database_file(home)} is damaged: {problems}; restore a backup")
    note = f"; {len(waiting)} interrupted conversation(s) wait" if waiting else ""
    return Finding("store", "ok", f"SQLite {store.sqlite_version}{note}")


def _plugins(settings: Settings) -> Iterator[Finding]:
    """Loaded as a conversation would load them."""
    from talaria.cli.plugin_view import looked  # noqa: PLC0415  (who has none does not wait for it)

    try:
        loaded, problems = looked(settings, lambda some: ([one.key for one in some.host.loaded], some.problems()))
    except TalariaError as error:
        yield Finding("plugins", "fail", str(error))
        return
    yield Finding("plugins", "ok", f"loaded: {', '.join(loaded) or 'none'}")
    yield from (Finding(f"plugin {key}" if key else "plugins", "warn", problem) for key, problem in problems)


def _mcp(settings: Settings) -> Iterator[Finding]:
    """Each server that is named, tried."""
    for name, entry in settings.config.all_mcp_servers.items():
        if entry.enabled:
            yield _examined(f"mcp {name}", lambda name=name, entry=entry: _server(settings, name, entry))


async def _server(settings: Settings, name: str, entry: ServerEntry) -> Finding:
    from talaria.cli.mcp import tried  # noqa: PLC0415

    tools, notices = await tried(settings, name, entry)
    return Finding(f"mcp {name}", "warn" if notices else "ok", " ".join(notices) or f"answers; {len(tools)} tools")


async def _model(settings: Settings) -> Finding:
    async with open_application(settings) as app:
        primary = app.route.primary
        await app.upstream.provider(primary).models(await app.upstream.keys(primary).take(primary.model))
    if app.is_stand_in:
        return Finding("model", "warn", "demo: no API key and no local model server found")
    if primary.provider == DEMO:
        return Finding("model", "ok", "demo, a scripted stand-in, as you asked for")
    if app.left_out:
        return Finding("model", "warn", f"{primary.label} answers at {primary.base_url}; {' '.join(app.left_out)}")
    standing_in = "".join(f", then {fallback.label}" for fallback in app.route.fallbacks)
    return Finding("model", "ok", f"{primary.label} answers at {primary.base_url}{standing_in}")
