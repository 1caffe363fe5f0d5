"""`talaria rollback`: files as they were before a turn changed them."""

from collections.abc import Sequence

import click
import msgspec

from talaria.cli import exits, surroundings
from talaria.cli.json_output import json_option, print_json
from talaria.cli.notices import show
from talaria.cli.program import runnable
from talaria.model.errors import BadInput, UnknownSession
from talaria.model.ids import SessionId
from talaria.runtime.rollback import listing, on_disk, told
from talaria.store.base import Store
from talaria.tools.checkpoints import Checkpoints, Restored, checkpoint_folder
from talaria.tools.diffs import visible
from talaria.tools.shelf import Checkpoint

_MAX_DIGITS = 9


@click.command("rollback")
@click.argument("session", required=False)
@click.argument("number", required=False)
@click.option("--list", "is_listing", is_flag=True, help="Only list the checkpoints; so does leaving out the number.")
@click.option("--diff", "is_comparing", is_flag=True, help="Only show what would change.")
@json_option
@click.pass_context
def command(
    ctx: click.Context, session: str | None, number: str | None, is_listing: bool, is_comparing: bool, as_json: bool
) -> int:
    """Put files back as they were before checkpoint NUMBER of a conversation.

    Without SESSION it is the latest one at the terminal. What is replaced is kept as a checkpoint, too. What commands
    in the terminal tool did to files is in no checkpoint.
    """
    name, wanted = _meant(session, number)
    home = surroundings.home(ctx)
    id = surroundings.with_store(home, lambda store: _session(store, name))
    kept = Checkpoints(checkpoint_folder(home, id))
    if is_listing or wanted is None:
        _print_list(id, on_disk(kept.list), as_json=as_json)
    elif is_comparing:
        _print_diff(id, on_disk(lambda: kept.diff(wanted)), as_json=as_json)
    else:
        return _print_restored(id, on_disk(lambda: kept.restore(wanted)), as_json=as_json)
    return exits.DONE


def _meant(session: str | None, number: str | None) -> tuple[str | None, int | None]:
    """One word alone is a number if it looks like one."""
    if session is not None and number is None and _is_number(session):
        return None, int(session)
    if number is not None and not _is_number(number):
        raise BadInput(f"{number!r} is no number of a checkpoint; `talaria rollback --list` lists them.")
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
        show(*list(listing(found)) or [f"No file was changed in {session}."])


def _print_diff(session: SessionId, difference: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"session": session, "diff": visible(difference)})
    else:
        show(difference or "Nothing would change.")


def _print_restored(session: SessionId, restored: Restored, *, as_json: bool) -> int:
    """The exit code."""
    if as_json:
        files = [{**msgspec.structs.asdict(one), "path": visible(str(one.path))} for one in restored.outcomes]
        print_json({"session": session, "number": restored.number, "kept_as": restored.kept_as, "files": files})
    else:
        show(*map(runnable, told(restored, f"talaria rollback {session}")))
    has_failed = any(one.what == "failed" for one in restored.outcomes)
    return exits.STORE_FAILED if has_failed else exits.DONE


def _document(one: Checkpoint) -> dict[str, object]:
    files = [{"path": visible(kept.path), "was_there": kept.was_there, "bytes": kept.size_bytes} for kept in one.files]
    return {"number": one.number, "at": one.at, "turn": one.turn, "why": one.why, "files": files}
