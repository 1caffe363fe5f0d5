"""What `talaria doctor` finds out about the home: whether it can be written, who can read it, what was left over in it,
and how much room there is."""

import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from talaria.cli.health.finding import Finding, mended
from talaria.config import paths
from talaria.config.writers import can_others_write

SCARCE_BYTES = 500_000_000
FULL_BYTES = 50_000_000
OLD_S = 3600.0
"""What is younger may be somebody's who is about to put it in its place."""
_OPEN = stat.S_IRWXG | stat.S_IRWXO
_LEFTOVER = re.compile(r"\.(.+)\.[0-9a-f]{12}")
"""How `replace_file` calls a file until it is whole."""
FIX = "`talaria doctor --fix` {}"


def examine(home: Path, *, is_fixing: bool) -> Iterator[Finding]:
    nearest = next(folder for folder in (home, *home.parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        remedy = "make it one, or set TALARIA_HOME to another"
        yield Finding("home", "fail", f"{nearest} is no writable folder", remedy)
    elif nearest != home or not _mode(home) & _OPEN:
        yield Finding("home", "ok", str(home))
    else:
        yield _open_home(home, is_fixing=is_fixing)
    if home.is_dir():
        yield from _open_files(home, is_fixing=is_fixing)
        yield from _changeable(home, is_fixing=is_fixing)
        yield from _leftovers(home, is_fixing=is_fixing)
    yield space(shutil.disk_usage(nearest).free, nearest)


def _open_home(home: Path, *, is_fixing: bool) -> Finding:
    text = f"others can look into {home} ({_mode(home):04o})"
    if _mode(home) & stat.S_ISVTX or home.resolve() in (Path.home().resolve(), Path("/")):
        return Finding("home", "warn", text, "it holds more than Talaria: set TALARIA_HOME to a folder of its own")
    found = Finding("home", "warn", text, FIX.format("makes it yours alone"))
    return mended(found, lambda: _closed(home, 0o700), is_fixing=is_fixing)


def _open_files(home: Path, *, is_fixing: bool) -> Iterator[Finding]:
    """Those with secrets or conversations in them."""
    for path in (paths.secrets_file(home), *sorted(home.glob("*.db")), *sorted(home.glob("*.db-*"))):
        if path.is_file() and _mode(path) & _OPEN:
            text = f"others can get at {path} ({_mode(path):04o})"
            found = Finding(path.name, "warn", text, FIX.format("makes it yours alone"))
            yield mended(found, lambda path=path: _closed(path, 0o600), is_fixing=is_fixing)


def _changeable(home: Path, *, is_fixing: bool) -> Iterator[Finding]:
    """The settings, by others: Talaria refuses to start then."""
    file = paths.config_file(home)
    if file.is_file() and can_others_write(file.stat()):
        found = Finding(file.name, "fail", f"others can change {file} ({_mode(file):04o})", FIX.format("forbids it"))
        yield mended(found, lambda: _closed_for_writing(file), is_fixing=is_fixing)


def _closed_for_writing(path: Path) -> str:
    path.chmod(_mode(path) & ~(stat.S_IWGRP | stat.S_IWOTH))
    return f"only you can change {path} now"


def _closed(path: Path, mode: int) -> str:
    before = _mode(path)
    path.chmod(mode)
    return f"{path} was {before:04o} and is {mode:04o} now: only you can read it"


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _leftovers(home: Path, *, is_fixing: bool) -> Iterator[Finding]:
    """Of processes that were killed while they wrote a file."""
    found = [path for path in sorted(home.iterdir()) if _is_leftover(path)]
    if found:
        names = ", ".join(path.name for path in found)
        told = Finding("leftovers", "warn", f"half-written files in {home}: {names}", FIX.format("removes them"))
        yield mended(told, lambda: _removed(found), is_fixing=is_fixing)


def _is_leftover(path: Path) -> bool:
    match = _LEFTOVER.fullmatch(path.name)
    if match is None or match[1] not in ("config.yaml", ".env", "plugins.json"):
        return False
    return path.is_file() and time.time() - path.stat().st_mtime > OLD_S


def _removed(found: list[Path]) -> str:
    for path in found:
        path.unlink(missing_ok=True)
    return f"removed {', '.join(path.name for path in found)}"


def space(free_bytes: int, place: Path) -> Finding:
    text = f"{free_bytes / 1_000_000:,.0f} MB free at {place}"
    if free_bytes >= SCARCE_BYTES:
        return Finding("disk", "ok", text)
    return Finding("disk", "fail" if free_bytes < FULL_BYTES else "warn", text, "make room on that disk")
