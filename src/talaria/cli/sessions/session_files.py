"""What a conversation has on the disk beside its journal: long output, checkpoints, quarantine, its list of steps."""

import shutil
from pathlib import Path

from talaria.core.ids import SessionId
from talaria.runtime.session_config import spill_folder
from talaria.store.sqlite.undo import SqliteUndoStore
from talaria.tools.builtin.todo import list_file
from talaria.tools.quarantine import quarantine_folder
from talaria.tools.undo.change_recorder import undo_file
from talaria.tools.undo.checkpoints import checkpoint_folder


def remove_files(home: Path, session: SessionId) -> None:
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
    list_file(spill_folder(home, session)).unlink(missing_ok=True)
