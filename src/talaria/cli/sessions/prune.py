"""`talaria sessions prune`: old conversations go, with all that belongs to them."""

import re
import time
from collections.abc import Sequence
from pathlib import Path

import click

from talaria.cli.confirming import confirmed, yes_option
from talaria.cli.context import home, with_store
from talaria.cli.json_output import json_option, print_json
from talaria.cli.notices import say, show
from talaria.cli.progress import Progress
from talaria.cli.sessions.remarks import when
from talaria.cli.sessions.session_files import remove_files
from talaria.core.errors import BadInput
from talaria.store.forgetting import Stale
from talaria.store.sqlite.store import SqliteStore

_UNITS = {"h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}
_AGE = re.compile(r"(\d{1,5})([hdw])")


@click.command("prune", help="Delete old conversations for good; each must fulfil all that you ask for.")
@click.option("--older-than", metavar="AGE", help="Not used for so long: 90d, 12h, 8w.")
@click.option("--keep", type=click.IntRange(min=0), help="Not among so many of the latest.")
@click.option("--empty", "is_empty", is_flag=True, help="Without a message.")
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Say which, and delete nothing.")
@yes_option
@json_option
@click.pass_context
def prune(
    ctx: click.Context,
    older_than: str | None,
    keep: int | None,
    is_empty: bool,
    is_dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    if older_than is None and keep is None and not is_empty:
        raise BadInput("Say which conversations may go: --older-than 90d, --keep 100 or --empty.")
    before, folder = _before(older_than), home(ctx)
    stale = with_store(folder, lambda store: store.forgetting.stale(before, keep or 0, is_empty=is_empty))
    may_go = stale and not is_dry_run
    if may_go and not yes and not confirmed(f"Delete {_amount(stale)} for good?", "they may go", as_json=as_json):
        say("Nothing was deleted.")
        return
    gone = with_store(folder, lambda store: _gone(store, folder, stale)) if may_go else []
    if as_json:
        print_json({"ok": True, "dry_run": is_dry_run, "sessions": stale if is_dry_run else gone})
    elif is_dry_run:
        for one in stale:
            show(f"{one.id}  {when(one.updated_at)}  {one.message_count:>4}  {one.name or '(empty)'}")
        say(f"{_amount(stale)} would go. Nothing was deleted.")
    else:
        say(f"Deleted {_amount(gone)}.")


def _before(older_than: str | None) -> float | None:
    if older_than is None:
        return None
    found = _AGE.fullmatch(older_than)
    if found is None:
        raise BadInput(f"{older_than!r} is no age: say a number and h, d or w, as in 90d.")
    return time.time() - int(found[1]) * _UNITS[found[2]]


def _amount(stale: Sequence[Stale]) -> str:
    if not stale:
        return "no conversation"
    messages, size = sum(one.message_count for one in stale), sum(one.size_bytes for one in stale)
    noun = "conversation" if len(stale) == 1 else "conversations"
    return f"{len(stale):,} {noun} ({messages:,} messages, {size / 1e6:,.1f} MB)"


async def _gone(store: SqliteStore, home: Path, stale: Sequence[Stale]) -> list[Stale]:
    """One after the other, so that who else writes does not wait long. What has come to life meanwhile stays."""
    gone: list[Stale] = []
    with Progress("Deleting conversations") as progress:
        for number, one in enumerate(stale):
            progress(number, len(stale))
            if await store.forgetting.discard(one.id):
                remove_files(home, one.id)
                gone.append(one)
    return gone
