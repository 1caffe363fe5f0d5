"""What is cleared away when it is old: attachments, output that was too long for the model, logs that were put aside.

The agent works in some of these folders and may put links there: each is entered from its open parent, no link is
followed, and only plain files go.
"""

import logging
import os
import re
import stat
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from talaria.gateway.attachments import FOLDER
from talaria.waiting import in_thread

DAY_S = 24 * 3600.0

log = logging.getLogger(__name__)

_ROTATED = re.compile(r"[\w-]+\.log\.\d+")
_ENTERING = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


async def clear(home: Path, workspace: Path, keep_days: int, now: float, platforms: Collection[str]) -> int:
    """How many files went. In the workspace only the folders of people on these platforms are ours."""
    removed = await in_thread(
        lambda: _clear(home.resolve(), workspace.expanduser().resolve(), now - keep_days * DAY_S, platforms)
    )
    if removed:
        log.info("%d files older than %d days cleared away", removed, keep_days)
    return removed


def _clear(home: Path, workspace: Path, before: float, platforms: Collection[str]) -> int:
    is_ours = tuple(f"{name}-" for name in platforms)
    removed = 0
    with suppress(OSError), _entered(workspace) as people:
        for name in (name for name in _names(people) if name.startswith(is_ours)):
            with suppress(OSError), _entered(name, people) as person, _entered(FOLDER, person) as attachments:
                removed += _remove(attachments, before)
    with suppress(OSError), _entered(home / "spill") as sessions:
        for name in _names(sessions):
            with suppress(OSError):
                removed += _remove_spill(name, sessions, before)
    with suppress(OSError), _entered(home / "logs") as logs:
        removed += _remove(logs, before, lambda name: _ROTATED.fullmatch(name) is not None)
    return removed


def _remove_spill(name: str, sessions: int, before: float) -> int:
    """The folder goes, too, unless something was just put there."""
    with _entered(name, sessions) as session:
        is_old = os.fstat(session).st_mtime < before
        removed = _remove(session, before)
    if is_old:
        with suppress(OSError):  # not empty
            os.rmdir(name, dir_fd=sessions)
    return removed


def _remove(folder: int, before: float, is_meant: Callable[[str], bool] = lambda _: True) -> int:
    """How many."""
    return sum(_is_removed(folder, name, before) for name in _names(folder) if is_meant(name))


def _is_removed(folder: int, name: str, before: float) -> bool:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode) or found.st_mtime >= before:
            return False
        os.unlink(name, dir_fd=folder)
    except OSError as fault:
        log.debug("%s stays: %s", name, fault)
        return False
    return True


def _names(folder: int) -> list[str]:
    return os.listdir(folder)


@contextmanager
def _entered(path: Path | str, parent: int | None = None) -> Generator[int]:
    """Raises `OSError`, also for a link."""
    descriptor = os.open(path, _ENTERING, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
