"""`talaria sessions`: the conversations on the disk."""

import time
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from talaria.cli.confirming import confirmed, yes_option
from talaria.cli.context import home, with_store
from talaria.cli.json_output import json_option, print_json
from talaria.cli.notices import say, show
from talaria.cli.progress import Progress
from talaria.cli.sessions.export import ExportFormat, exported, write
from talaria.cli.sessions.prune import prune
from talaria.cli.sessions.remarks import remark_on, when
from talaria.cli.sessions.session_files import remove_files
from talaria.core.entries import MessageAdded, Recorded
from talaria.core.ids import new_session_id
from talaria.core.messages import Assistant, Message, ToolResult, User
from talaria.store.base import Session, Store

command = click.Group("sessions", help="List, show, search, export and change conversations.")
command.add_command(prune)


@command.command("list", help="Latest first.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True)
@json_option
@click.pass_context
def list_sessions(ctx: click.Context, limit: int, as_json: bool) -> None:
    found = with_store(home(ctx), lambda store: store.sessions.list(limit))
    if as_json:
        print_json([_summary(row) for row in found])
        return
    if not found:
        say("No conversations yet; `talaria` begins one.")
    for row in found:
        name = row.title or row.preview or "(empty)"
        mark = " (interrupted)" if row.open_turn else ""
        show(f"{row.id}  {when(row.updated_at)}  {row.message_count:>4}  {name}{mark}")


@command.command("show", help="Print a conversation.")
@click.argument("name")
@json_option
@click.pass_context
def show_session(ctx: click.Context, name: str, as_json: bool) -> None:
    row, entries = with_store(home(ctx), lambda store: _read(store, name))
    if as_json:
        print_json({**_summary(row), "entries": entries})
        return
    show(f"{row.id} · {row.title or '(untitled)'} · {row.model} · {when(row.created_at)}")
    show(*filter(None, map(_as_text, entries)))


@command.command("search", help="Find messages that contain all these words.")
@click.argument("words", nargs=-1, required=True)
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True)
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
        show(f"{hit.session}  {when(hit.at)}  {hit.title or ''}".rstrip(), f"    {hit.role}: {hit.snippet}")


@command.command("reindex", help="Make the index for searching anew.")
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
        say(f"{count:,} messages can be found.")


@command.command("export", help="Write a conversation to a file or standard output, as JSON lines unless you say how.")
@click.argument("name")
@click.option("--html", "format", flag_value="html", help="One page that needs nothing else.")
@click.option("--markdown", "format", flag_value="markdown", help="As it reads.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file to write.")
@json_option
@click.pass_context
def export(ctx: click.Context, name: str, format: ExportFormat | None, output: Path | None, as_json: bool) -> None:
    row, entries = with_store(home(ctx), lambda store: _read(store, name))
    content = exported(row, entries, format or "lines")
    if output is None:
        click.echo(content, nl=False)
        return
    write(output, content)
    _done(as_json, f"Wrote {len(entries)} entries to {output}.", session=row.id, file=str(output))


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
    _done(as_json, f"{row.id} is called {title}.", session=row.id, title=title)


@command.command("delete", help="Delete a conversation for good.")
@click.argument("name")
@yes_option
@json_option
@click.pass_context
def delete(ctx: click.Context, name: str, yes: bool, as_json: bool) -> None:
    row = with_store(home(ctx), lambda store: store.sessions.find(name))
    question = f"Delete {row.id} ({row.title or row.preview}) for good?"
    if not yes and not confirmed(question, f"{row.id} may be deleted", as_json=as_json):
        say("Nothing was deleted.")
        return
    with_store(home(ctx), lambda store: store.sessions.delete(row.id))
    remove_files(home(ctx), row.id)
    _done(as_json, f"Deleted {row.id}.", session=row.id)


@command.command("fork", help="Copy a conversation, up to its last finished turn, under a new id.")
@click.argument("name")
@click.option("--title", help="Title of the copy.")
@json_option
@click.pass_context
def fork(ctx: click.Context, name: str, title: str | None, as_json: bool) -> None:
    async def work(store: Store) -> Session:
        row = await store.sessions.find(name)
        return await store.sessions.fork(row.id, new_session_id(time.time()), title)

    copy = with_store(home(ctx), work)
    _done(as_json, f"Forked to {copy.id}; go on with `talaria -r {copy.id}`.", session=copy.id)


async def _read(store: Store, name: str) -> tuple[Session, Sequence[Recorded]]:
    row = await store.sessions.find(name)
    return row, await store.journal.entries(row.id)


def _done(as_json: bool, sentence: str, **facts: str) -> None:
    if as_json:
        print_json({"ok": True, **facts})
    else:
        say(sentence)


def _summary(row: Session) -> dict[str, object]:
    shown = msgspec.structs.asdict(row)
    del shown["system_prompt"], shown["tools"]
    return {**shown, "is_interrupted": row.open_turn is not None}


def _as_text(recorded: Recorded) -> str:
    if isinstance(recorded.entry, MessageAdded):
        return _message_as_text(recorded.entry.message)
    remark = remark_on(recorded.entry)
    return f"[{remark}]" if remark else ""


def _message_as_text(message: Message) -> str:
    match message:
        case User():
            return f"\n› {message.text}"
        case Assistant():
            calls = [f"● {call.name} {call.arguments}" for call in message.calls]
            return "\n".join(filter(None, [message.text, *calls]))
        case ToolResult():
            return f"  {message.text}"
