"""What `talaria doctor` found out about one thing, what to do about it, and what was done.

What `talaria doctor` finds out about the home: whether it can be written, who can read it, what was left over in it,
and how much room there is.
What `talaria doctor` finds out about config.yaml and .env.
What `talaria doctor` finds out about the store: whether it is whole, and what waits in it.
What `talaria doctor` finds out about versions: ours, Python's, and installed packages that we cannot use.
"""

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
from talaria.platforms.loader import DISTRIBUTION
from talaria.store.permission_ports import Grant
from talaria.store.sqlite.store import SqliteStore

Verdict = Literal["ok", "warn", "fail", "skip"]
"""`skip`: it could not be tried here."""


class Finding(msgspec.Struct, frozen=True):
    subject: str
    verdict: Verdict
    text: str
    remedy: str = ""
    """What to do about it, as a clause."""
    fixed: bool = False
    """`--fix` has done something about it."""


def mend_if_fixing(found: Finding, mend: Callable[[], str], *, is_fixing: bool) -> Finding:
    """The finding as it is, or as it is after `mend`, which answers what it did."""
    if not is_fixing:
        return found
    try:
        done = mend()
    except (OSError, TalariaError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else str(fault)
        return msgspec.structs.replace(found, text=f"{found.text}; it cannot be changed: {reason}")
    return Finding(found.subject, "ok", f"fixed: {done}", fixed=True)


SCARCE_BYTES = 500_000_000
FULL_BYTES = 50_000_000
OLD_S = 3600.0
"""What is younger may be somebody's who is about to put it in its place."""
_OPEN = stat.S_IRWXG | stat.S_IRWXO
_LEFTOVER = re.compile(r"\.(.+)\.[0-9a-f]{12}")
"""How `replace_file` calls a file until it is whole."""
FIX = "`talaria doctor --fix` {}"


def check_home(home: Path, *, is_fixing: bool) -> Iterator[Finding]:
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
    return mend_if_fixing(found, lambda: _set_mode(home, 0o700), is_fixing=is_fixing)


def _open_files(home: Path, *, is_fixing: bool) -> Iterator[Finding]:
    """Those with secrets or conversations in them."""
    for path in (paths.secrets_file(home), *sorted(home.glob("*.db")), *sorted(home.glob("*.db-*"))):
        if path.is_file() and _mode(path) & _OPEN:
            text = f"others can get at {path} ({_mode(path):04o})"
            found = Finding(path.name, "warn", text, FIX.format("makes it yours alone"))
            yield mend_if_fixing(found, lambda path=path: _set_mode(path, 0o600), is_fixing=is_fixing)


def _changeable(home: Path, *, is_fixing: bool) -> Iterator[Finding]:
    """The settings, by others: Talaria refuses to start then."""
    file = paths.config_file(home)
    if file.is_file() and can_others_write(file.stat()):
        found = Finding(file.name, "fail", f"others can change {file} ({_mode(file):04o})", FIX.format("forbids it"))
        yield mend_if_fixing(found, lambda: _forbid_writing(file), is_fixing=is_fixing)


def _forbid_writing(path: Path) -> str:
    path.chmod(_mode(path) & ~(stat.S_IWGRP | stat.S_IWOTH))
    return f"only you can change {path} now"


def _set_mode(path: Path, mode: int) -> str:
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
        yield mend_if_fixing(told, lambda: _remove(found), is_fixing=is_fixing)


def _is_leftover(path: Path) -> bool:
    match = _LEFTOVER.fullmatch(path.name)
    if match is None or match[1] not in ("config.yaml", ".env", "plugins.json"):
        return False
    return path.is_file() and time.time() - path.stat().st_mtime > OLD_S


def _remove(found: list[Path]) -> str:
    for path in found:
        path.unlink(missing_ok=True)
    return f"removed {', '.join(path.name for path in found)}"


def space(free_bytes: int, place: Path) -> Finding:
    text = f"{free_bytes / 1_000_000:,.0f} MB free at {place}"
    if free_bytes >= SCARCE_BYTES:
        return Finding("disk", "ok", text)
    return Finding("disk", "fail" if free_bytes < FULL_BYTES else "warn", text, "make room on that disk")


SUBJECT = "settings"
CORRECT = "correct that; `talaria config check` says whether it is right"


def check_settings(home: Path, *, is_fixing: bool) -> Iterator[Finding]:
    settings = read_settings_leniently(home)
    if foreign := [problem for problem in settings.problems if _is_foreign(problem)]:
        yield mend_if_fixing(
            _report_foreign(settings, foreign), lambda: _move_foreign(settings, foreign), is_fixing=is_fixing
        )
    yield from problems(settings, without=foreign)
    file = paths.config_file(home)
    if not settings.problems:
        yield Finding(SUBJECT, "ok", str(file) if file.exists() else f"the defaults ({file} is not there)")


def problems(settings: Settings, without: Sequence[Problem] = ()) -> Iterator[Finding]:
    """Each thing that is wrong."""
    wrong = (problem for problem in settings.problems if problem not in without)
    yield from (Finding(SUBJECT, "fail", problem.sentence, CORRECT) for problem in wrong)


def _is_foreign(problem: Problem) -> bool:
    """No setting of ours, and like none: what is like one is rather a slip of the person's."""
    return problem.is_unknown and len(problem.key) == 1 and "did you mean" not in problem.sentence


def _report_foreign(settings: Settings, foreign: Sequence[Problem]) -> Finding:
    text = " ".join(problem.sentence for problem in foreign)
    theirs = paths.config_file(PluginHome(settings.home).path)
    remedy = f"take it out; if a plugin wrote it, `talaria doctor --fix` moves it to the settings of plugins, {theirs}"
    return Finding(SUBJECT, "fail", text, remedy)


def _move_foreign(settings: Settings, foreign: Sequence[Problem]) -> str:
    """First written there, then taken out here: whatever happens, it is in one of the two."""
    plugin_home, keys = PluginHome(settings.home), [str(problem.key[0]) for problem in foreign]
    document = read_yaml(paths.config_file(settings.home))
    plugin_home.take_over({key: document[key] for key in keys}, settings.environment)
    kept = take_out(settings.home, keys)
    file = paths.config_file(settings.home)
    return f"moved {', '.join(keys)} from {file} to {paths.config_file(plugin_home.path)}; as it was it is in {kept}"


async def check_store(home: Path, *, is_fixing: bool) -> list[Finding]:
    try:
        async with open_store(home) as store:
            problems = await store.check()
            waiting = await store.journal.list_interrupted()
            grants = await store.grants.list() if not problems else ()
            entries = await _rebuild_index(store, home) if is_fixing and not problems else None
    except TalariaError as error:
        is_passing = isinstance(error, StoreUnavailable)
        remedy = "see to what it names, then try again" if is_passing else "restore a backup"
        return [Finding("store", "fail", str(error), remedy)]
    if problems:
        return [Finding("store", "fail", f"{paths.database_file(home)} is damaged: {problems}", "restore a backup")]
    found = [Finding("store", "ok", f"SQLite {store.sqlite_version}")]
    if entries is not None:
        found.append(Finding("search", "ok", f"fixed: made the index anew, of {entries:,} entries", fixed=True))
    if waiting:
        text = f"{len(waiting)} interrupted conversation(s) wait"
        found.append(Finding("conversations", "warn", text, f"`talaria -r {waiting[0]}` finishes the last one"))
    return [*found, *_find_grants_of_gone_projects(grants)]


def _find_grants_of_gone_projects(grants: Sequence[Grant]) -> Iterator[Finding]:
    lasting = [grant for grant in grants if grant.session is None and grant.cwd]
    for root in dict.fromkeys(grant.cwd for grant in lasting):
        if Path(root).is_dir():
            continue
        ids = [grant.id[:8] for grant in lasting if grant.cwd == root]
        yield Finding(
            "permissions",
            "warn",
            f"{len(ids)} hold in {visible(root)}, which is not there any more; if it moved, you are asked again in its "
            "new folder",
            f"`talaria approvals revoke {' '.join(ids)}`: whatever comes to be in that place would have them",
        )


async def _rebuild_index(store: SqliteStore, home: Path) -> int | None:
    """How many entries the index has, made anew; None: there was none, and the first search makes it."""
    if not (home / "search.db").exists():
        return None
    with Progress("Making the search index anew"):
        return await store.search.rebuild()


_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^\]]*\])?\s*\(?([^;)]*)")
_BOUND = re.compile(r"\s*(>=|<)\s*([\d.]+)\s*")
_MEANS: dict[str, Callable[[list[int], list[int]], bool]] = {">=": ge, "<": lt}


def check_versions() -> Iterator[Finding]:
    yield Finding("talaria", "ok", f"{__version__} on Python {sys.version.split()[0]}")
    for name, bounds in sorted(_bounds()):
        installed = _find_version(name)
        if installed is not None and not _is_within(installed, bounds):
            remedy = f"pip install '{name}{bounds}'"
            yield Finding(f"package {name}", "warn", f"{installed} is installed, and {bounds} is needed", remedy)


def _bounds() -> set[tuple[str, str]]:
    """Of each package that we use, those of extras among them."""
    try:
        required = metadata.requires(DISTRIBUTION) or ()
    except metadata.PackageNotFoundError:  # not installed: it runs from its source
        return set()
    read = [match for one in required if (match := _REQUIREMENT.match(one))]
    return {(match[1], match[2].strip()) for match in read}


def _find_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _is_within(version: str, bounds: str) -> bool:
    has = _numbers(version)
    known = [match for bound in bounds.split(",") if (match := _BOUND.fullmatch(bound))]
    return all(_MEANS[match[1]](has, _numbers(match[2])) for match in known)


def _numbers(version: str) -> list[int]:
    """Of the release; what comes before or after it is not told apart."""
    match = re.match(r"[\d.]+", version)
    numbers = [int(number) for number in (match[0] if match else "0").split(".") if number]
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    return numbers
