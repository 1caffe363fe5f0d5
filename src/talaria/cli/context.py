"""What every command needs first: the home of the chosen profile, with its settings and its store, and a log that is
written only when needed."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

import click

from talaria.app.build import open_store
from talaria.app.settings import Settings, read_settings, read_settings_leniently
from talaria.cli.notices import complain
from talaria.config import paths
from talaria.config.secrets import is_safe_mode
from talaria.core.errors import BadConfig, BadInput
from talaria.core.redaction import Redactor
from talaria.store.sqlite.store import SqliteStore

T = TypeVar("T")


def home(ctx: click.Context) -> Path:
    return _entered(ctx.find_root().obj)


def _entered(profile: str | None) -> Path:
    found = home_of(profile)
    _log_to_file(found)
    return found


def home_of(profile: str | None) -> Path:
    found = paths.home(profile)
    if profile is not None and found != paths.home() and not found.is_dir():
        raise BadInput(_unknown(profile))
    return found


def profiles() -> Sequence[str]:
    """Those that were made."""
    try:
        return sorted(one.name for one in (paths.home() / "profiles").iterdir() if one.is_dir() and "." not in one.name)
    except OSError:
        return ()


def _unknown(profile: str) -> str:
    near = get_close_matches(profile, profiles(), 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"There is no profile {profile!r}; {hint}`talaria profiles create {profile}` makes one."


def settings(ctx: click.Context) -> Settings:
    return settings_of(ctx.find_root().obj)


def settings_of(profile: str | None) -> Settings:
    """In safe mode as far as they can be read; what is wrong is told with what else the person should know."""
    home = _entered(profile)
    try:
        found = read_settings(home)
    except BadConfig:
        found = read_settings_leniently(home)
        if not is_safe_mode(found.environment):
            raise
    _keep_from_log(found.redactor)
    return found


def lenient_settings(ctx: click.Context) -> Settings:
    """For commands that put things right: what is wrong is said once, and the rest counts."""
    found = read_settings_leniently(home(ctx))
    _keep_from_log(found.redactor)
    told: set[str] = ctx.find_root().meta.setdefault("talaria.problems", set())
    for problem in found.problems:
        if problem.sentence not in told:
            told.add(problem.sentence)
            complain(problem.sentence)
    return found


def with_store(home: Path, work: Callable[[SqliteStore], Awaitable[T]]) -> T:
    async def run() -> T:
        async with open_store(home) as store:
            return await work(store)

    return asyncio.run(run())


def _log_to_file(home: Path) -> None:
    logging.basicConfig(level=logging.WARNING, handlers=[_LazyFile(paths.log_file(home))])
    _keep_from_log(Redactor())


def _keep_from_log(redactor: Redactor) -> None:
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _LazyFile):
            handler.setFormatter(RedactedLines(redactor))


class RedactedLines(logging.Formatter):
    """Without known secrets, whether they come with the message, its arguments or an exception."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor.text(super().format(record))


class _LazyFile(logging.Handler):
    """Makes the file with the first record; a log that cannot be written never gets in the way."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "a", encoding="utf-8", errors="replace") as stream:
                stream.write(self.format(record) + "\n")
        except OSError:
            return
