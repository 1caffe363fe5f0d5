"""`talaria rollback`: files as they were before a turn changed them."""

from collections.abc import Sequence

import click
import msgspec

from talaria.cli import context, exits
from talaria.cli.command_name import runnable
from talaria.cli.command_output import json_option, print_json
from talaria.cli.notices import show
from talaria.core.errors import BadInput, UnknownSession
from talaria.core.ids import SessionId
from talaria.core.messages import FileChange
from talaria.runtime.rollback import describe_changes, describe_restored, list_checkpoints, read_checkpoints
from talaria.store.base import Store
from talaria.store.sqlite.undo import SqliteUndoStore
from talaria.tools.diffs import replace_surrogates
from talaria.tools.undo.change_recorder import ChangeRecorder, undo_file
from talaria.tools.undo.checkpoints import Checkpoint, RestoreReport

_MAX_DIGITS = 9


@click.command("rollback")
@click.argument("session", required=False)
@click.argument("number", required=False)
@click.option("--list", "is_listing", is_flag=True, help="Only list the checkpoints; so does leaving out the number.")
@click.option("--diff", "is_comparing", is_flag=True, help="Only show what has changed since.")
@click.option("--all", "everything", is_flag=True, help="Also files that somebody else has changed since.")
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

    Whatever changed them: tools, or commands inside the project. Without SESSION it is the latest one at the terminal.
    What is replaced is kept as a checkpoint, too.
    """
    name, wanted = _parse_arguments(session, number)
    settings = context.lenient_settings(ctx)
    id = context.with_store(settings.home, lambda store: _session(store, name))
    recorder = ChangeRecorder(SqliteUndoStore(undo_file(settings.home)), settings.home, settings.config.checkpoints)
    try:
        kept = recorder.checkpoints(id)
        if is_listing or wanted is None:
            _print_list(id, read_checkpoints(kept.list), as_json=as_json)
        elif is_comparing:
            changes = read_checkpoints(lambda: list(kept.changes_since(wanted, settings.redactor)))
            _print_changes(id, changes, as_json=as_json)
        else:
            restored = read_checkpoints(lambda: kept.restore(wanted, everything=everything))
            return _print_restored(id, restored, as_json=as_json)
        return exits.DONE
    finally:
        recorder.close()


def _parse_arguments(session: str | None, number: str | None) -> tuple[str | None, int | None]:
    """One word alone is a number if it looks like one."""
    if session is not None and number is None and _is_number(session):
        return None, int(session)
    if number is not None and not _is_number(number):
        raise BadInput(f"{number!r} is not the number of a checkpoint; `talaria rollback --list` lists them.")
    return session, None if number is None else int(number)


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= _MAX_DIGITS


async def _session(store: Store, name: str | None) -> SessionId:
    row = await (store.sessions.latest("terminal") if name is None else store.sessions.find(name))
    if row is None:
        raise UnknownSession("There is no conversation yet.")
    return row.id


def _print_list(session: SessionId, found: Sequence[Checkpoint], *, as_json: bool) -> None:
    if as_json:
        print_json({"session": session, "checkpoints": [_document(one) for one in found]})
    else:
        show(*list(list_checkpoints(found)) or [f"No file was changed in {session}."])


def _print_changes(session: SessionId, changes: Sequence[FileChange], *, as_json: bool) -> None:
    if as_json:
        print_json({"session": session, "changes": [msgspec.to_builtins(one) for one in changes]})
    else:
        show(*describe_changes(changes) if changes else ["Nothing has changed since."])


def _print_restored(session: SessionId, restored: RestoreReport, *, as_json: bool) -> int:
    """The exit code."""
    if as_json:
        files = [
            {**msgspec.structs.asdict(one), "path": replace_surrogates(str(one.path))} for one in restored.outcomes
        ]
        print_json({"session": session, "number": restored.number, "kept_as": restored.saved_as, "files": files})
    else:
        show(*map(runnable, describe_restored(restored, f"talaria rollback {session}", "--all")))
    has_failed = any(one.what == "failed" for one in restored.outcomes)
    return exits.STORE_FAILED if has_failed else exits.DONE


def _document(one: Checkpoint) -> dict[str, object]:
    files = [
        {"path": replace_surrogates(str(kept.path)), "was_there": kept.was_there, "bytes": kept.size_bytes}
        for kept in one.files
    ]
    return {"number": one.number, "at": one.at, "turn": one.turn, "why": one.why, "files": files}
