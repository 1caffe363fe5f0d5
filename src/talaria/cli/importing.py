"""`talaria import`: bring along what another program keeps."""

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
from talaria.tools.registry import Toolbox

LINE_COLUMNS = 100

_HEADS: dict[Verdict, tuple[str, str]] = {
    "taken": ("Taken over:", "Would be taken over:"),
    "there": ("Already there:", "Already there:"),
    "left": ("Not taken over:", "Would not be taken over:"),
}
"""In the past, and of a dry run."""


command = click.Group("import", help="Bring along what another program keeps.")


@command.command(
    "hermes", help="Take over settings, conversations, memories and skills from PATH ($HERMES_HOME, or ~/.hermes)."
)
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Say what would happen, and change nothing.")
@click.option("--keys", "with_keys", is_flag=True, help="Take API keys and other secrets, too.")
@json_option
@click.pass_context
def hermes(ctx: click.Context, path: Path | None, is_dry_run: bool, with_keys: bool, as_json: bool) -> int:
    home = context.home(ctx)
    root = locate(path, os.environ, home)
    ours = Ours.read(home, read_settings(home).environment)
    items = import_files(root, ours, with_keys=with_keys, is_dry_run=is_dry_run)
    if (root / "state.db").exists():
        items += _conversations(root / "state.db", home, is_dry_run=is_dry_run)
    _show(items, root, home, is_dry_run=is_dry_run, as_json=as_json)
    failure = next((item.failure for item in items if item.failure), None)
    return exits.code_for(failure) if failure else exits.DONE


def _conversations(file: Path, home: Path, *, is_dry_run: bool) -> list[Item]:
    """A store of ours that cannot be opened is told, too: what was done before it must not go unsaid."""
    try:
        return asyncio.run(_move_conversations(file, home, is_dry_run=is_dry_run))
    except TalariaError as fault:
        return [mark_failed(Item("conversations", file.name, "left"), fault)]


async def _move_conversations(file: Path, home: Path, *, is_dry_run: bool) -> list[Item]:
    with Progress("Importing conversations") as progress:
        if is_dry_run:
            return await import_conversations(file, NoReceiver(paths.database_file(home)), progress)
        async with open_store(home) as store:
            toolbox = Toolbox(builtin_tools(store, read_settings(home), SystemClock()))
            return await import_conversations(file, StoreReceiver(store.sessions, toolbox, home), progress)


def _show(items: Sequence[Item], root: Path, home: Path, *, is_dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(_document(items, root, home, is_dry_run=is_dry_run))
        return
    for verdict, heads in _HEADS.items():
        if lines := list(_lines([item for item in items if item.verdict == verdict])):
            show(heads[is_dry_run], *map(runnable, lines))
    if is_dry_run:
        say("Nothing was changed.")


def _lines(items: Sequence[Item]) -> Iterator[str]:
    """Things of a kind that share a reason stand together; a reason may hold a command, and is not broken."""
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


def _document(items: Sequence[Item], root: Path, home: Path, *, is_dry_run: bool) -> dict[str, object]:
    return {
        "ok": not any(item.failure for item in items),
        "dry_run": is_dry_run,
        "from": _sound(str(root)),
        "home": _sound(str(home)),
        **{verdict: [_plain(item) for item in items if item.verdict == verdict] for verdict in _HEADS},
    }


def _plain(item: Item) -> dict[str, str]:
    return {"kind": item.kind, "name": _sound(item.name), **({"reason": _sound(item.reason)} if item.reason else {})}


def _sound(text: str) -> str:
    """Names of files may hold bytes that are no text."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
