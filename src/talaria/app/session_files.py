"""What a conversation leaves on the disk besides its rows."""

import shutil
from pathlib import Path

from talaria.core.ids import SessionId
from talaria.runtime.session_config import spill_folder
from talaria.store.sqlite.undo import SqliteUndoStore
from talaria.tools.builtin.planning import todo_file
from talaria.tools.quarantine import quarantine_folder
from talaria.tools.undo.change_recorder import undo_file
from talaria.tools.undo.checkpoints import checkpoint_folder


def remove_files(home: Path, session: SessionId) -> None:
    """Its undo records, long output, checkpoints, quarantine and list of steps."""
    if undo_file(home).exists():
        store = SqliteUndoStore(undo_file(home))
        try:
            store.forget((session,))
        finally:
            store.close()
    for folder in (
        spill_folder(home, session),
        checkpoint_folder(home, session),
        quarantine_folder(home, session),
    ):
        shutil.rmtree(folder, ignore_errors=True)
    todo_file(spill_folder(home, session)).unlink(missing_ok=True)
