"""`talaria import`: import your data from another program."""

import asyncio
import os
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from talaria.app.build import builtin_tools, open_store
from talaria.app.settings import read_settings
from talaria.cli import context, exits
from talaria.cli.command_name import runnable
from talaria.cli.command_output import json_option, print_json
from talaria.cli.notices import Progress, say, show
from talaria.compat.hermes_home.conversation_import import NoReceiver, StoreReceiver, import_conversations
from talaria.compat.hermes_home.report import Item, Verdict, mark_failed
from talaria.compat.hermes_home.takeover import Ours, import_files, locate
from talaria.config import paths
from talaria.core.clock import SystemClock
from talaria.core.errors import TalariaError
from talaria.tools.diffs import replace_surrogates
from talaria.tools.registry import Toolbox

LINE_COLUMNS = 100

_HEADINGS: dict[Verdict, tuple[str, str]] = {
    "taken": ("Imported:", "Would be imported:"),
    "there": ("Already there:", "Already there:"),
    "left": ("Not imported:", "Would not be imported:"),
}
"""The second is for a dry run."""


command = click.Group("import", help="Import your data from another program.")


@command.command(
    "hermes",
    help="Import settings, conversations, memories and skills. PATH is $HERMES_HOME or ~/.hermes by default.",
)
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Say what would happen, and change nothing.")
@click.option("--keys", "with_keys", is_flag=True, help="Import API keys and other secrets, too.")
@json_option
@click.pass_context
def hermes(ctx: click.Context, path: Path | None, is_dry_run: bool, with_keys: bool, as_json: bool) -> int:
    home = context.home(ctx)
    root = locate(path, os.environ, home)
    ours = Ours.read(home, read_settings(home).environment)
    items = import_files(root, ours, with_keys=with_keys, is_dry_run=is_dry_run)
    database = root / "state.db"
    if database.exists():
        try:
            items += asyncio.run(_move_conversations(database, home, is_dry_run=is_dry_run))
        except TalariaError as fault:  # listed with the rest, so that what was done so far is reported
            items.append(mark_failed(Item("conversations", database.name, "left"), fault))
    failure = next((item.failure for item in items if item.failure), None)
    if as_json:
        documents: dict[str, list[dict[str, str]]] = {verdict: [] for verdict in _HEADINGS}
        for item in items:
            reason = {"reason": replace_surrogates(item.reason)} if item.reason else {}
            documents[item.verdict].append({"kind": item.kind, "name": replace_surrogates(item.name), **reason})
        places = {"from": replace_surrogates(str(root)), "home": replace_surrogates(str(home))}
        print_json({"ok": failure is None, "dry_run": is_dry_run, **places, **documents})
    else:
        for verdict, headings in _HEADINGS.items():
            if lines := list(_format_items([item for item in items if item.verdict == verdict])):
                show(headings[is_dry_run], *map(runnable, lines))
        if is_dry_run:
            say("Nothing was changed.")
    return exits.code_for(failure) if failure else exits.DONE


async def _move_conversations(file: Path, home: Path, *, is_dry_run: bool) -> list[Item]:
    with Progress("Importing conversations") as progress:
        if is_dry_run:
            return await import_conversations(file, NoReceiver(paths.database_file(home)), progress)
        async with open_store(home) as store:
            toolbox = Toolbox(builtin_tools(store, read_settings(home), SystemClock()))
            return await import_conversations(file, StoreReceiver(store.sessions, toolbox, home), progress)


def _format_items(items: Sequence[Item]) -> Iterator[str]:
    """Groups items of one kind that share a reason. Reasons are not wrapped, because they may contain a command."""
    groups: dict[tuple[str, str], list[str]] = {}
    for item in items:
        groups.setdefault((item.kind, item.reason), []).append(item.name)
    for (kind, reason), names in groups.items():
        yield textwrap.fill(
            f"{kind}: {', '.join(names)}",
            LINE_COLUMNS,
            initial_indent="  ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        if reason:
            yield f"    → {reason}"
