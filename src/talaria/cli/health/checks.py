"""What `talaria doctor` checks without a network: the home and its files, settings, the store, and installed versions.

With `--fix` a check also repairs what can be repaired without losing anything.
"""

import asyncio
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from operator import ge, lt
from pathlib import Path
from typing import Literal

import msgspec

from talaria import __version__
from talaria.app.build import open_store
from talaria.app.settings import Settings, read_settings_leniently
from talaria.cli.notices import Progress
from talaria.cli.safe import visible
from talaria.compat.hermes.plugin_home import PluginHome
from talaria.config import paths
from talaria.config.edit import can_others_write, take_out
from talaria.config.lenient import Problem
from talaria.config.load import read_yaml
from talaria.core.errors import StoreUnavailable, TalariaError
from talaria.core.ids import SessionId
from talaria.platforms.loader import DISTRIBUTION
from talaria.store.permission_ports import Grant

Verdict = Literal["ok", "warn", "fail", "skip"]
"""`skip`: it could not be tried here."""

ROOT = "running as root: anything outside the sandbox can do anything on this machine"
SCARCE_BYTES = 500_000_000
FULL_BYTES = 50_000_000
OLD_S = 3600.0
"""A younger file may be one that another process is just writing."""
FIX = "`talaria doctor --fix` {}"
_OPEN = stat.S_IRWXG | stat.S_IRWXO
_LEFTOVER = re.compile(r"\.(config\.yaml|\.env|plugins\.json)\.[0-9a-f]{12}")
"""How `replace_file` names a file until it is complete."""
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^\]]*\])?\s*\(?([^;)]*)")
_BOUND = re.compile(r"\s*(>=|<)\s*([\d.]+)\s*")
_MEANS: dict[str, Callable[[list[int], list[int]], bool]] = {">=": ge, "<": lt}


class Finding(msgspec.Struct, frozen=True):
    subject: str
    verdict: Verdict
    text: str
    remedy: str = ""
    """What to do about it, as a clause."""
    fixed: bool = False
    """`--fix` has repaired it."""


def _repair(found: Finding, repair: Callable[[], str], *, is_fixing: bool) -> Finding:
    """The finding, or what has become of it after `repair`, which returns what it did."""
    if not is_fixing:
        return found
    try:
        done = repair()
    except (OSError, TalariaError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else str(fault)
        return msgspec.structs.replace(found, text=f"{found.text}; it cannot be changed: {reason}")
    return Finding(found.subject, "ok", f"fixed: {done}", fixed=True)


def check_versions() -> Iterator[Finding]:
    """Ours, Python's, and packages that are installed in a version that we cannot use, those of extras included."""
    yield Finding("talaria", "ok", f"{__version__} on Python {sys.version.split()[0]}")
    try:
        required = metadata.requires(DISTRIBUTION) or ()
    except metadata.PackageNotFoundError:  # running from source
        return
    matches = (_REQUIREMENT.match(one) for one in required)
    for name, bounds in sorted({(match[1], match[2].strip()) for match in matches if match}):
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        has = _release_numbers(installed)
        known = [match for bound in bounds.split(",") if (match := _BOUND.fullmatch(bound))]
        if not all(_MEANS[match[1]](has, _release_numbers(match[2])) for match in known):
            text = f"{installed} is installed, but {bounds} is needed"
            yield Finding(f"package {name}", "warn", text, f"pip install '{name}{bounds}'")


def _release_numbers(version: str) -> list[int]:
    """Without trailing zeros; pre- and post-releases count as the release."""
    match = re.match(r"[\d.]+", version)
    numbers = [int(number) for number in (match[0] if match else "0").split(".") if number]
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    return numbers


def check_home(home: Path, *, is_fixing: bool) -> Iterator[Finding]:
    """Whether it can be written, who can read it, what was left over in it, and how much space there is."""
    nearest = next(folder for folder in (home, *home.parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        remedy = "make it one, or set TALARIA_HOME to another folder"
        yield Finding("home", "fail", f"{nearest} is not a writable folder", remedy)
    elif nearest != home or not _mode(home) & _OPEN:
        yield Finding("home", "ok", str(home))
    else:
        text = f"other users can read {home} ({_mode(home):04o})"
        if _mode(home) & stat.S_ISVTX or home.resolve() in (Path.home().resolve(), Path("/")):
            remedy = "it holds more than Talaria: set TALARIA_HOME to a folder of its own"
            yield Finding("home", "warn", text, remedy)
        else:
            found = Finding("home", "warn", text, FIX.format("makes it private"))
            yield _repair(found, lambda: _set_mode(home, 0o700), is_fixing=is_fixing)
    if home.is_dir():
        yield from _check_files(home, is_fixing=is_fixing)
    yield check_space(shutil.disk_usage(nearest).free, nearest)


def _check_files(home: Path, *, is_fixing: bool) -> Iterator[Finding]:
    for path in (paths.secrets_file(home), *sorted(home.glob("*.db")), *sorted(home.glob("*.db-*"))):
        if path.is_file() and _mode(path) & _OPEN:
            text = f"other users can access {path} ({_mode(path):04o})"
            found = Finding(path.name, "warn", text, FIX.format("makes it private"))
            yield _repair(found, lambda path=path: _set_mode(path, 0o600), is_fixing=is_fixing)
    config = paths.config_file(home)
    if config.is_file() and can_others_write(config.stat()):  # Talaria refuses to start
        text = f"other users can change {config} ({_mode(config):04o})"
        found = Finding(config.name, "fail", text, FIX.format("takes that permission away"))
        closed = _mode(config) & ~(stat.S_IWGRP | stat.S_IWOTH)
        yield _repair(found, lambda: _set_mode(config, closed, "change"), is_fixing=is_fixing)
    leftovers = [
        path
        for path in sorted(home.iterdir())
        if _LEFTOVER.fullmatch(path.name) and path.is_file() and time.time() - path.stat().st_mtime > OLD_S
    ]
    if leftovers:  # of processes that were killed while they wrote a file
        names = ", ".join(path.name for path in leftovers)

        def remove() -> str:
            for path in leftovers:
                path.unlink(missing_ok=True)
            return f"removed {names}"

        found = Finding("leftovers", "warn", f"half-written files in {home}: {names}", FIX.format("removes them"))
        yield _repair(found, remove, is_fixing=is_fixing)


def _set_mode(path: Path, mode: int, right: str = "read") -> str:
    before = _mode(path)
    path.chmod(mode)
    return f"{path} was {before:04o} and is now {mode:04o}: only you can {right} it"


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def check_space(free_bytes: int, place: Path) -> Finding:
    text = f"{free_bytes / 1_000_000:,.0f} MB free at {place}"
    if free_bytes >= SCARCE_BYTES:
        return Finding("disk", "ok", text)
    return Finding("disk", "fail" if free_bytes < FULL_BYTES else "warn", text, "free up space on that disk")


def check_settings(home: Path, *, is_fixing: bool) -> Iterator[Finding]:
    settings = read_settings_leniently(home)
    foreign = [
        problem
        for problem in settings.problems
        if problem.is_unknown and len(problem.key) == 1 and "did you mean" not in problem.sentence
    ]  # what resembles a setting of ours is more likely the person's typo
    if foreign:
        file, plugin_home = paths.config_file(home), PluginHome(home)
        theirs = paths.config_file(plugin_home.path)
        remedy = f"remove it; if a plugin wrote it, `talaria doctor --fix` moves it to the plugins' settings, {theirs}"
        found = Finding("settings", "fail", " ".join(problem.sentence for problem in foreign), remedy)

        def move() -> str:
            """Written there before it is removed here: after a crash it is in at least one of the two."""
            keys = [str(problem.key[0]) for problem in foreign]
            document = read_yaml(file)
            plugin_home.take_over({key: document[key] for key in keys}, settings.environment)
            kept = take_out(home, keys)
            return f"moved {', '.join(keys)} from {file} to {theirs}; the old file is kept as {kept}"

        yield _repair(found, move, is_fixing=is_fixing)
    yield from report_problems(settings, without=foreign)
    if not settings.problems:
        file = paths.config_file(home)
        yield Finding("settings", "ok", str(file) if file.exists() else f"the defaults ({file} does not exist)")


def report_problems(settings: Settings, without: Sequence[Problem] = ()) -> Iterator[Finding]:
    for problem in settings.problems:
        if problem not in without:
            yield Finding("settings", "fail", problem.sentence, "fix it, then run `talaria config check`")


def check_store(home: Path, *, is_fixing: bool) -> Iterator[Finding]:
    """Whether it is intact, and what in it needs attention."""

    async def read() -> tuple[str, str, Sequence[SessionId], Sequence[Grant], int | None]:
        async with open_store(home) as store:
            problems, version = await store.check(), store.sqlite_version
            waiting = await store.journal.list_interrupted()
            if problems:
                return problems, version, waiting, (), None
            grants = await store.grants.list()
            if not is_fixing or not (home / "search.db").exists():  # without one, the first search builds it
                return "", version, waiting, grants, None
            with Progress("Rebuilding the search index"):
                return "", version, waiting, grants, await store.search.rebuild()

    try:
        problems, version, waiting, grants, indexed = asyncio.run(read())
    except TalariaError as error:
        is_passing = isinstance(error, StoreUnavailable)
        yield Finding("store", "fail", str(error), "fix that, then try again" if is_passing else "restore a backup")
        return
    if problems:
        yield Finding("store", "fail", f"{paths.database_file(home)} is damaged: {problems}", "restore a backup")
        return
    yield Finding("store", "ok", f"SQLite {version}")
    if indexed is not None:
        yield Finding("search", "ok", f"fixed: rebuilt the index ({indexed:,} entries)", fixed=True)
    if waiting:
        text = f"{len(waiting)} interrupted conversation(s)"
        yield Finding("conversations", "warn", text, f"`talaria -r {waiting[0]}` finishes the latest")
    lasting = [grant for grant in grants if grant.session is None and grant.cwd]
    for root in dict.fromkeys(grant.cwd for grant in lasting):
        if Path(root).is_dir():
            continue
        ids = [grant.id[:8] for grant in lasting if grant.cwd == root]
        yield Finding(
            "permissions",
            "warn",
            f"{len(ids)} standing approval(s) for {visible(root)}, which no longer exists; if it moved, you will be "
            "asked again in its new folder",
            f"`talaria approvals revoke {' '.join(ids)}`: otherwise they apply to whatever is put there",
        )
