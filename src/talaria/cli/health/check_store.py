"""What `talaria doctor` finds out about the store: whether it is whole, and what waits in it."""

from pathlib import Path

from talaria.cli.health.finding import Finding
from talaria.cli.progress import Progress
from talaria.compose import open_store
from talaria.config import paths
from talaria.core.errors import StoreUnavailable, TalariaError
from talaria.store.sqlite.store import SqliteStore


async def examine(home: Path, *, is_fixing: bool) -> list[Finding]:
    try:
        async with open_store(home) as store:
            problems = await store.check()
            waiting = await store.journal.interrupted()
            entries = await _indexed(store, home) if is_fixing and not problems else None
    except TalariaError as error:
        is_passing = isinstance(error, StoreUnavailable)
        remedy = "see to what it names, then try again" if is_passing else "restore a backup"
        return [Finding("store", "fail", str(error), remedy)]
    if problems:
        return [Finding("store", "fail", f"{paths.database_file(home)} is damaged: {problems}", "restore a backup")]
    found = [Finding("store", "ok", f"SQLite {store.sqlite_version}")]
    if entries is not None:
        found.append(Finding("search", "ok", f"fixed: made the index anew, of {entries:,} entries", fixed=True))
    if waiting:
        text = f"{len(waiting)} interrupted conversation(s) wait"
        found.append(Finding("conversations", "warn", text, f"`talaria -r {waiting[0]}` finishes the last one"))
    return found


async def _indexed(store: SqliteStore, home: Path) -> int | None:
    """How many entries the index has, made anew; None: there was none, and the first search makes it."""
    if not (home / "search.db").exists():
        return None
    with Progress("Making the search index anew"):
        return await store.search.rebuild()
