"""What is cleared away when it is old: attachments, output that was too long for the model, logs that were put aside.

The agent works in some of these folders and may put links there: each is entered from its open parent, no link is
followed, and only plain files go.

The garbage collector while a gateway runs. It stops all conversations at once, and nearly all that a turn leaves
behind is freed without it: so it looks at what is young, and rarely at the rest.
"""

import gc
import logging
import re
import stat
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from talaria.core.aio import in_thread
from talaria.core.trees import Root
from talaria.gateway.attachments import FOLDER

DAY_S = 24 * 3600.0

log = logging.getLogger(__name__)

_ROTATED = re.compile(r"[\w-]+\.log\.\d+")


async def delete_old_files(home: Path, workspace: Path, keep_days: int, now: float, platforms: Collection[str]) -> int:
    """How many files went. In the workspace only the folders of people on these platforms are ours."""
    removed = await in_thread(lambda: _clear(home, workspace.expanduser(), now - keep_days * DAY_S, platforms))
    if removed:
        log.info("%d files older than %d days cleared away", removed, keep_days)
    return removed


def _clear(home: Path, workspace: Path, before: float, platforms: Collection[str]) -> int:
    is_ours = tuple(f"{name}-" for name in platforms)
    removed = 0
    with suppress(OSError), Root.open(workspace) as people:
        for name in (entry.name for entry in people.entries() if entry.name.startswith(is_ours)):
            with suppress(OSError), people.folder(f"{name}/{FOLDER}") as attachments:
                removed += _remove(attachments, before)
    with suppress(OSError), Root.open(home) as root, root.folder("spill") as sessions:
        for entry in sessions.entries():
            with suppress(OSError):
                removed += _remove_spill(entry.name, sessions, before)
    with suppress(OSError), Root.open(home) as root, root.folder("logs") as logs:
        removed += _remove(logs, before, lambda name: _ROTATED.fullmatch(name) is not None)
    return removed


def _remove_spill(name: str, sessions: Root, before: float) -> int:
    """The folder goes, too, unless something was just put there."""
    with sessions.folder(name) as session:
        is_old = session.info().st_mtime < before
        removed = _remove(session, before)
    if is_old:
        with suppress(OSError):  # not empty
            sessions.remove_folder(name)
    return removed


def _remove(folder: Root, before: float, is_meant: Callable[[str], bool] = lambda _: True) -> int:
    """How many."""
    return sum(_is_removed(folder, entry.name, before) for entry in folder.entries() if is_meant(entry.name))


def _is_removed(folder: Root, name: str, before: float) -> bool:
    try:
        found = folder.info(name)
        if not stat.S_ISREG(found.st_mode) or found.st_mtime >= before:
            return False
        folder.remove(name)
    except OSError as fault:
        log.debug("%s stays: %s", name, fault)
        return False
    return True


THRESHOLDS = (2_000, 200, 100)


@contextmanager
def infrequent_collection() -> Generator[None]:
    """Objects that exist already are not scanned any more."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
