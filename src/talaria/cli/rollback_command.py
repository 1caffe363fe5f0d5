"""`talaria rollback`: put files back as they were before a turn changed them."""

import click
import msgspec

from talaria.cli import context, exits
from talaria.cli.command_name import runnable
from talaria.cli.command_output import json_option, print_json
from talaria.cli.notices import show
from talaria.core.errors import BadInput, UnknownSession
from talaria.runtime.rollback import describe_changes, describe_restored, list_checkpoints, read_checkpoints
from talaria.store.base import Session, Store
from talaria.store.sqlite.undo import SqliteUndoStore
from talaria.tools.diffs import replace_surrogates
from talaria.tools.undo.change_recorder import ChangeRecorder, undo_file
from talaria.tools.undo.checkpoints import Checkpoint

_MAX_DIGITS = 9


@click.command("rollback")
@click.argument("session", required=False)
@click.argument("number", required=False)
@click.option("--list", "is_listing", is_flag=True, help="Only list the checkpoints: the default without NUMBER.")
@click.option("--diff", "is_comparing", is_flag=True, help="Only show what has changed since.")
@click.option("--all", "everything", is_flag=True, help="Also put back files that somebody else has changed since.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    session: str | None,
    number: str | None,
    is_listing: bool,
    is_comparing: bool,
    everything: bool,
    as_json: bool,
) -> int:
    """Put files back as they were before checkpoint NUMBER of a conversation.

    This covers changes by tools, and by commands inside the project. Without SESSION, the latest conversation at the
    terminal is used. The replaced files are kept as a checkpoint, too.
    """
    if session is not None and number is None and _is_number(session):  # one number alone is not a session
        session, number = None, session
    if number is not None and not _is_number(number):
        raise BadInput(f"{number!r} is not the number of a checkpoint; `talaria rollback --list` lists them.")
    wanted = None if number is None else int(number)
    settings = context.lenient_settings(ctx)

    async def find_session(store: Store) -> Session | None:
        return await (store.sessions.latest("terminal") if session is None else store.sessions.find(session))

    row = context.with_store(settings.home, find_session)
    if row is None:
        raise UnknownSession("There is no conversation yet.")
    id = row.id
    recorder = ChangeRecorder(SqliteUndoStore(undo_file(settings.home)), settings.home, settings.config.checkpoints)
    try:
        kept = recorder.checkpoints(id)
        if is_listing or wanted is None:
            found = read_checkpoints(kept.list)
            if as_json:
                print_json({"session": id, "checkpoints": [_as_document(one) for one in found]})
            else:
                show(*list(list_checkpoints(found)) or [f"No file was changed in {id}."])
            return exits.DONE
        if is_comparing:
            changes = read_checkpoints(lambda: list(kept.changes_since(wanted, settings.redactor)))
            if as_json:
                print_json({"session": id, "changes": [msgspec.to_builtins(one) for one in changes]})
            else:
                show(*describe_changes(changes) if changes else ["Nothing has changed since."])
            return exits.DONE
        restored = read_checkpoints(lambda: kept.restore(wanted, everything=everything))
    finally:
        recorder.close()
    if as_json:
        files = [
            {**msgspec.structs.asdict(one), "path": replace_surrogates(str(one.path))} for one in restored.outcomes
        ]
        print_json({"session": id, "number": restored.number, "kept_as": restored.saved_as, "files": files})
    else:
        show(*map(runnable, describe_restored(restored, f"talaria rollback {id}", "--all")))
    has_failed = any(one.what == "failed" for one in restored.outcomes)
    return exits.STORE_FAILED if has_failed else exits.DONE


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= _MAX_DIGITS


def _as_document(one: Checkpoint) -> dict[str, object]:
    files = [
        {"path": replace_surrogates(str(kept.path)), "was_there": kept.was_there, "bytes": kept.size_bytes}
        for kept in one.files
    ]
    return {"number": one.number, "at": one.at, "turn": one.turn, "why": one.why, "files": files}
