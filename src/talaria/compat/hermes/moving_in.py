"""What plugins kept at the top of our home, before they had one of their own, is moved into theirs: once.

Each thing is renamed, so a crash leaves it in one place or the other, and the next start goes on. `.moved` says that it
is done. Nothing of Talaria's moves, nothing hidden, nothing that runs or that config.yaml mentions; and nothing at all
out of a folder that is more than a home of Talaria.
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
    found = sorted(_theirs(home), key=lambda path: path.name) if had_plugins else []
    try:
        if found and _is_shared(home):
            names = ", ".join(path.name for path in found)
            _finish(plugin_home, home, [])
            return MoveResult(
                (f"{_format_notice(plugin_home)} {home} holds more than Talaria, so nothing was moved there: {names}.",)
            )
        if found and (pid := _other(home)):
            return MoveResult(
                obstacle=f"plugins get a home of their own, {plugin_home}, and process {pid} still uses the old place; "
                "end it first (a gateway: `talaria gateway restart`)"
            )
        moved, left = _move(found, plugin_home)
        _finish(plugin_home, home, moved)
    except FileExistsError:  # another process was here at the same time
        return MoveResult()
    except OSError as fault:
        return MoveResult((f"The home of plugins, {plugin_home}, cannot be made: {fault.strerror or fault}.",))
    return MoveResult(tuple(_notices(home, plugin_home, moved, left)))


def _theirs(home: Path) -> Iterator[Path]:
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


def _is_shared(home: Path) -> bool:
    return bool(home.stat().st_mode & stat.S_ISVTX) or home.resolve() in (Path.home().resolve(), Path("/"))


def _other(home: Path) -> int | None:
    """A process that may have files of plugins open: renaming them under it would part a database from its log."""
    known = [find_holder(gateway_file(home)), *map(pid_of, Presence(home / "run").list_living())]
    return next((pid for pid in known if pid is not None and pid != os.getpid()), None)


def _move(found: Sequence[Path], plugin_home: Path) -> tuple[list[Path], list[Path]]:
    """Those that were, and those that could not be."""
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
                target.symlink_to(Path("..") / path.readlink())  # it leads where it led
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
    """Whatever is there under that name is not followed, and not replaced."""
    plugin_home.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(plugin_home / DONE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
        file.write("\n".join([_HEAD.format(home), *(path.name for path in moved), ""]) if moved else "")
        file.flush()
        os.fsync(descriptor)


def _notices(home: Path, plugin_home: Path, moved: Sequence[Path], left: Sequence[Path]) -> Iterator[str]:
    if moved:
        yield f"{_format_notice(plugin_home)} What they had kept in {home} was moved there: {_names(moved)}."
    if left:
        yield f"Not moved from {home} to {plugin_home}, where plugins look for it now: {_names(left)}."


def _format_notice(plugin_home: Path) -> str:
    return f"Plugins have a home of their own now, {plugin_home}."


def _names(some: Sequence[Path]) -> str:
    return ", ".join(path.name for path in some)
