"""Moves what plugins kept at the top of our home, before they had one of their own, into theirs: once.

Each thing is renamed, so a crash leaves it in one place or the other, and the next start continues. `.moved` says that
it is done. Nothing of Talaria's moves, nothing hidden, nothing that is running or that config.yaml mentions; and
nothing at all if the folder is more than a home of Talaria.
"""

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from talaria.config import paths
from talaria.core.fs import read_text
from talaria.core.ids import pid_of
from talaria.gateway.claims import find_holder, gateway_file
from talaria.store.sqlite.presence import Presence

DONE = ".moved"
MAX_BYTES = 4 << 20
_HEAD = "What plugins had kept in {} was moved here:\n"


class MoveResult(msgspec.Struct, frozen=True):
    notices: tuple[str, ...] = ()
    """For the person."""
    obstacle: str = ""
    """Why plugins must not be loaded now, as a clause; empty if they may."""


def move_in(home: Path) -> MoveResult:
    """Before any plugin is loaded. `home` is ours."""
    plugin_home = paths.plugin_home(home)
    if plugin_home.is_symlink() or os.path.lexists(plugin_home / DONE) or plugin_home.is_file():
        return MoveResult()
    had_plugins = paths.consents_file(home).exists()
    found = sorted(_find_plugin_files(home), key=lambda path: path.name) if had_plugins else []
    notice = f"Plugins now have a home of their own, {plugin_home}."
    try:
        if found and (home.stat().st_mode & stat.S_ISVTX or home.resolve() in (Path.home().resolve(), Path("/"))):
            _finish(plugin_home, home, [])
            return MoveResult(
                (f"{notice} {home} contains more than Talaria, so these were left there: {_join_names(found)}.",)
            )
        if found and (pid := _find_other_process(home)):
            return MoveResult(
                obstacle=f"plugins get a home of their own, {plugin_home}, but process {pid} still uses the old place; "
                "end it first (a gateway: `talaria gateway restart`)"
            )
        moved, left = _move(found, plugin_home)
        _finish(plugin_home, home, moved)
    except FileExistsError:  # another process did this at the same time
        return MoveResult()
    except OSError as fault:
        return MoveResult((f"The home of plugins, {plugin_home}, cannot be made: {fault.strerror or fault}.",))
    notices: list[str] = []
    if moved:
        notices.append(f"{notice} What they had kept in {home} was moved there: {_join_names(moved)}.")
    if left:
        notices.append(f"Not moved from {home} to {plugin_home}, where plugins now look for it: {_join_names(left)}.")
    return MoveResult(tuple(notices))


def _find_plugin_files(home: Path) -> Iterator[Path]:
    try:
        entries = list(home.iterdir())
    except OSError:
        return
    mentioned = read_text(paths.config_file(home), MAX_BYTES) or ""
    in_use = [Path(place).resolve() for place in (sys.prefix, sys.executable, __file__, Path.home(), os.curdir)]
    for path in entries:
        if paths.is_own(path.name) or path.is_mount():
            continue
        is_mentioned = any(text in mentioned for text in (str(path), f"{home.name}/{path.name}"))
        if not is_mentioned and not any(place.is_relative_to(path.resolve()) for place in in_use):
            yield path


def _find_other_process(home: Path) -> int | None:
    """One that may have files of plugins open: renaming them would separate a database from its log."""
    known = [find_holder(gateway_file(home)), *map(pid_of, Presence(home / "run").list_living())]
    return next((pid for pid in known if pid is not None and pid != os.getpid()), None)


def _move(found: Sequence[Path], plugin_home: Path) -> tuple[list[Path], list[Path]]:
    """What was moved, and what could not be."""
    moved: list[Path] = []
    left: list[Path] = []
    plugin_home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in found:
        target = plugin_home / path.name
        try:
            if os.path.lexists(target):
                left.append(path)
                continue
            if path.is_symlink() and not path.readlink().is_absolute():
                target.symlink_to(Path("..") / path.readlink())  # it still leads to the same place
                path.unlink()
            else:
                path.rename(target)
            moved.append(path)
        except FileNotFoundError:  # another process has just moved it
            continue
        except OSError:
            left.append(path)
    return moved, left


def _finish(plugin_home: Path, home: Path, moved: Sequence[Path]) -> None:
    """Follows and replaces nothing that already has that name."""
    plugin_home.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(plugin_home / DONE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
        file.write("\n".join([_HEAD.format(home), *(path.name for path in moved), ""]) if moved else "")
        file.flush()
        os.fsync(descriptor)


def _join_names(some: Sequence[Path]) -> str:
    return ", ".join(path.name for path in some)
