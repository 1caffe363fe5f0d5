"""`talaria sessions`: list, show, search, export, edit and prune conversations."""

import time
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from talaria.app.session_files import remove_files
from talaria.cli.command_output import confirm, json_option, print_json, yes_option
from talaria.cli.context import home, with_store
from talaria.cli.durations import parse_duration
from talaria.cli.notices import Progress, say, show
from talaria.cli.sessions.export import ExportFormat, export_session, write
from talaria.cli.sessions.remarks import remark_on
from talaria.core.entries import MessageAdded, Recorded
from talaria.core.errors import BadInput
from talaria.core.ids import new_session_id
from talaria.core.messages import Assistant, ToolResult, User
from talaria.core.text import show_time
from talaria.store.base import Session, Store
from talaria.store.forgetting import Stale
from talaria.store.sqlite.store import SqliteStore


@click.command("prune", help="Delete old conversations for good: those that match all options.")
@click.option("--older-than", metavar="AGE", help="Not used for this long: 90d, 12h, 8w.")
@click.option("--keep", type=click.IntRange(min=0), help="Always keep this many of the latest.")
@click.option("--empty", "is_empty", is_flag=True, help="Without messages.")
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Only list what would be deleted.")
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
        raise BadInput("Say which conversations to delete: --older-than 90d, --keep 100 or --empty.")
    before, folder = None, home(ctx)
    if older_than is not None:
        before = time.time() - parse_duration(older_than, "an age")
    stale = with_store(folder, lambda store: store.forgetting.stale(before, keep or 0, is_empty=is_empty))
    may_go = stale and not is_dry_run
    if may_go and not yes and not confirm(f"Delete {_amount(stale)} for good?", "they may be deleted", as_json=as_json):
        say("Nothing was deleted.")
        return

    async def discard(store: SqliteStore) -> list[Stale]:
        """One at a time, so that other writers do not wait long. What has been used again by now stays."""
        gone: list[Stale] = []
        with Progress("Deleting conversations") as progress:
            for number, one in enumerate(stale):
                progress(number, len(stale))
                if await store.forgetting.discard(one.id):
                    remove_files(folder, one.id)
                    gone.append(one)
        return gone

    gone = with_store(folder, discard) if may_go else []
    if as_json:
        print_json({"ok": True, "dry_run": is_dry_run, "sessions": stale if is_dry_run else gone})
    elif is_dry_run:
        for one in stale:
            show(f"{one.id}  {show_time(one.updated_at)}  {one.message_count:>4}  {one.name or '(empty)'}")
        say(f"{_amount(stale)} would be deleted. Nothing was changed.")
    else:
        say(f"Deleted {_amount(gone)}.")


def _amount(stale: Sequence[Stale]) -> str:
    if not stale:
        return "no conversation"
    messages, size = sum(one.message_count for one in stale), sum(one.size_bytes for one in stale)
    noun = "conversation" if len(stale) == 1 else "conversations"
    return f"{len(stale):,} {noun} ({messages:,} messages, {size / 1e6:,.1f} MB)"


command = click.Group("sessions", help="List, show, search, export and edit conversations.")
command.add_command(prune)


@command.command("list", help="List conversations, latest first.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many to show.")
@json_option
@click.pass_context
def list_sessions(ctx: click.Context, limit: int, as_json: bool) -> None:
    found = with_store(home(ctx), lambda store: store.sessions.list(limit))
    if as_json:
        print_json([_summary(row) for row in found])
        return
    if not found:
        say("No conversations yet; `talaria` starts one.")
    for row in found:
        name = row.title or row.preview or "(empty)"
        mark = " (interrupted)" if row.open_turn else ""
        show(f"{row.id}  {show_time(row.updated_at)}  {row.message_count:>4}  {name}{mark}")


@command.command("show", help="Print a conversation.")
@click.argument("name")
@json_option
@click.pass_context
def show_session(ctx: click.Context, name: str, as_json: bool) -> None:
    row, entries = with_store(home(ctx), lambda store: _read(store, name))
    if as_json:
        print_json({**_summary(row), "entries": entries})
        return
    show(f"{row.id} · {row.title or '(untitled)'} · {row.model} · {show_time(row.created_at)}")
    for recorded in entries:
        match recorded.entry:
            case MessageAdded(User() as message):
                show(f"\n› {message.text}")
            case MessageAdded(Assistant() as message):
                show(*filter(None, [message.text, *(f"● {call.name} {call.arguments}" for call in message.calls)]))
            case MessageAdded(ToolResult() as message):
                show(f"  {message.text}")
            case entry:
                if remark := remark_on(entry):
                    show(f"[{remark}]")


@command.command("search", help="Find messages that contain all these words.")
@click.argument("words", nargs=-1, required=True)
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many to show.")
@json_option
@click.pass_context
def search(ctx: click.Context, words: tuple[str, ...], limit: int, as_json: bool) -> None:
    hits = with_store(home(ctx), lambda store: store.search.search(" ".join(words), limit))
    if as_json:
        print_json(hits)
        return
    if not hits:
        say("Nothing found.")
    for hit in hits:
        show(f"{hit.session}  {show_time(hit.at)}  {hit.title or ''}".rstrip(), f"    {hit.role}: {hit.snippet}")


@command.command("reindex", help="Rebuild the search index.")
@json_option
@click.pass_context
def reindex(ctx: click.Context, as_json: bool) -> None:
    async def work(store: Store) -> int:
        with Progress("Indexing messages") as progress:
            return await store.search.rebuild(progress)

    count = with_store(home(ctx), work)
    if as_json:
        print_json({"ok": True, "messages": count})
    else:
        say(f"Indexed {count:,} messages.")


@command.command("export", help="Write a conversation to a file or standard output. The default format is JSON lines.")
@click.argument("name")
@click.option("--html", "format", flag_value="html", help="As a self-contained page.")
@click.option("--markdown", "format", flag_value="markdown", help="As Markdown.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file to write.")
@json_option
@click.pass_context
def export(ctx: click.Context, name: str, format: ExportFormat | None, output: Path | None, as_json: bool) -> None:
    row, entries = with_store(home(ctx), lambda store: _read(store, name))
    content = export_session(row, entries, format or "lines")
    if output is None:
        click.echo(content, nl=False)
        return
    write(output, content)
    _report_done(as_json, f"Wrote {len(entries)} entries to {output}.", session=row.id, file=str(output))


@command.command("rename", help="Give a conversation a title.")
@click.argument("name")
@click.argument("title")
@json_option
@click.pass_context
def rename(ctx: click.Context, name: str, title: str, as_json: bool) -> None:
    async def work(store: Store) -> Session:
        row = await store.sessions.find(name)
        await store.sessions.rename(row.id, title)
        return row

    row = with_store(home(ctx), work)
    _report_done(as_json, f"{row.id} is now called {title}.", session=row.id, title=title)


@command.command("delete", help="Delete a conversation for good.")
@click.argument("name")
@yes_option
@json_option
@click.pass_context
def delete(ctx: click.Context, name: str, yes: bool, as_json: bool) -> None:
    row = with_store(home(ctx), lambda store: store.sessions.find(name))
    question = f"Delete {row.id} ({row.title or row.preview}) for good?"
    if not yes and not confirm(question, f"{row.id} may be deleted", as_json=as_json):
        say("Nothing was deleted.")
        return
    with_store(home(ctx), lambda store: store.sessions.delete(row.id))
    remove_files(home(ctx), row.id)
    _report_done(as_json, f"Deleted {row.id}.", session=row.id)


@command.command("fork", help="Copy a conversation under a new id. An unfinished turn is left out.")
@click.argument("name")
@click.option("--title", help="Title of the copy.")
@json_option
@click.pass_context
def fork(ctx: click.Context, name: str, title: str | None, as_json: bool) -> None:
    async def work(store: Store) -> Session:
        row = await store.sessions.find(name)
        return await store.sessions.fork(row.id, new_session_id(time.time()), title)

    copy = with_store(home(ctx), work)
    _report_done(as_json, f"Forked to {copy.id}; continue with `talaria -r {copy.id}`.", session=copy.id)


async def _read(store: Store, name: str) -> tuple[Session, Sequence[Recorded]]:
    row = await store.sessions.find(name)
    return row, await store.journal.entries(row.id)


def _report_done(as_json: bool, sentence: str, **facts: str) -> None:
    if as_json:
        print_json({"ok": True, **facts})
    else:
        say(sentence)


def _summary(row: Session) -> dict[str, object]:
    shown = msgspec.structs.asdict(row)
    del shown["system_prompt"], shown["tools"]
    return {**shown, "is_interrupted": row.open_turn is not None}
