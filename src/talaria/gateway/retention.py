"""Deletes what is old: attachments, output that was too long for the model, and rotated logs.

The agent works in some of these folders and may put links there. So each folder is entered from its open parent, no
link is followed, and only regular files are deleted.
"""

import logging
import re
import stat
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from talaria.core.trees import Root
from talaria.gateway.attachments import FOLDER

DAY_S = 24 * 3600.0

log = logging.getLogger(__name__)

_ROTATED = re.compile(r"[\w-]+\.log\.\d+")


def delete_old_files(home: Path, workspace: Path, keep_days: int, now: float, platforms: Collection[str]) -> int:
    """How many files were deleted. In the workspace only the folders of people on these platforms are ours. Blocks."""
    before = now - keep_days * DAY_S
    is_ours = tuple(f"{name}-" for name in platforms)
    removed = 0
    with suppress(OSError), Root.open(workspace.expanduser()) as people:
        for name in (entry.name for entry in people.entries() if entry.name.startswith(is_ours)):
            with suppress(OSError), people.folder(f"{name}/{FOLDER}") as attachments:
                removed += _remove(attachments, before)
    with suppress(OSError), Root.open(home) as root, root.folder("spill") as sessions:
        for entry in sessions.entries():
            with suppress(OSError):
                with sessions.folder(entry.name) as session:
                    is_old = session.info().st_mtime < before
                    removed += _remove(session, before)
                if is_old:
                    sessions.remove_folder(entry.name)  # fails if something was just put there
    with suppress(OSError), Root.open(home) as root, root.folder("logs") as logs:
        removed += _remove(logs, before, lambda name: _ROTATED.fullmatch(name) is not None)
    if removed:
        log.info("%d files older than %d days deleted", removed, keep_days)
    return removed


def _remove(folder: Root, before: float, is_meant: Callable[[str], bool] = lambda _: True) -> int:
    """How many."""
    removed = 0
    for entry in folder.entries():
        if not is_meant(entry.name):
            continue
        try:
            found = folder.info(entry.name)
            if stat.S_ISREG(found.st_mode) and found.st_mtime < before:
                folder.remove(entry.name)
                removed += 1
        except OSError as fault:
            log.debug("%s stays: %s", entry.name, fault)
    return removed
