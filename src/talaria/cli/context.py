"""What every command starts with: the home of the chosen profile, its settings, its store and its log, and
warnings about running as root or in a weak sandbox."""

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from talaria.app.build import open_store
from talaria.app.settings import Settings, read_settings, read_settings_leniently
from talaria.cli.notices import complain
from talaria.config import paths
from talaria.config.secrets import is_safe_mode
from talaria.core.errors import BadConfig, BadInput
from talaria.core.redaction import Redactor
from talaria.store.sqlite.store import SqliteStore
from talaria.tools.sandbox.base import Sandbox
from talaria.tools.sandbox.sandbox_settings import TerminalSettings

if TYPE_CHECKING:
    import click

T = TypeVar("T")


def home(ctx: "click.Context") -> Path:
    return _enter_home(ctx.find_root().obj)


def _enter_home(profile: str | None) -> Path:
    found = home_of(profile)
    logging.basicConfig(level=logging.WARNING, handlers=[_LazyFileHandler(paths.log_file(found))])
    _redact_log(Redactor())
    return found


def home_of(profile: str | None) -> Path:
    found = paths.home(profile)
    if profile is not None and found != paths.home() and not found.is_dir():
        from difflib import get_close_matches  # noqa: PLC0415  (only needed after a mistake)

        near = get_close_matches(profile, profiles(), 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise BadInput(f"There is no profile {profile!r}; {hint}`talaria profiles create {profile}` creates it.")
    return found


def profiles() -> Sequence[str]:
    try:
        return sorted(one.name for one in (paths.home() / "profiles").iterdir() if one.is_dir() and "." not in one.name)
    except OSError:
        return ()


def settings(ctx: "click.Context") -> Settings:
    return settings_of(ctx.find_root().obj)


def settings_of(profile: str | None) -> Settings:
    """In safe mode, mistakes in the settings are reported later, and everything else applies."""
    home = _enter_home(profile)
    try:
        found = read_settings(home)
    except BadConfig:
        found = read_settings_leniently(home)
        if not is_safe_mode(found.environment):
            raise
    _redact_log(found.redactor)
    return found


def lenient_settings(ctx: "click.Context") -> Settings:
    """For commands that repair settings: each mistake is reported once, and everything else applies."""
    found = read_settings_leniently(home(ctx))
    _redact_log(found.redactor)
    reported: set[str] = ctx.find_root().meta.setdefault("talaria.problems", set())
    for problem in found.problems:
        if problem.sentence not in reported:
            reported.add(problem.sentence)
            complain(problem.sentence)
    return found


def with_store(home: Path, work: Callable[[SqliteStore], Awaitable[T]]) -> T:
    async def run() -> T:
        async with open_store(home) as store:
            return await work(store)

    return asyncio.run(run())


def _redact_log(redactor: Redactor) -> None:
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _LazyFileHandler):
            handler.setFormatter(RedactingFormatter(redactor))


class RedactingFormatter(logging.Formatter):
    """Removes known secrets from the message, its arguments and exceptions."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor.text(super().format(record))


class _LazyFileHandler(logging.Handler):
    """Creates the file with the first record. Errors while writing are ignored."""

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


ROOT = (
    "Warning: Talaria is running as root. Plugins, MCP servers and commands you allow outside the sandbox can do "
    "anything on this machine. Run it as a normal user."
)

WITHOUT_BUBBLEWRAP = "have no network, cannot reach services on this machine, and cannot use multiprocessing"
"""At level landlock."""
BUBBLEWRAP = "install bubblewrap (apt install bubblewrap, dnf install bubblewrap)"


def user_warning() -> str:
    """Empty if there is none."""
    return ROOT if os.geteuid() == 0 else ""


def sandbox_warning(settings: TerminalSettings, sandbox: Sandbox) -> str:
    """Empty if the sandbox was chosen in the settings, or is the best one for this system."""
    best = "seatbelt" if sys.platform == "darwin" else "strict"
    if settings.backend != "auto" or sandbox.level == best:
        return ""
    if sandbox.level == "none":
        return f"Warning: commands run without a sandbox ({sandbox.about}). You will be asked about each command."
    return (
        f"Warning: commands run in a weaker sandbox, level {sandbox.level} ({sandbox.about}). They "
        f"{WITHOUT_BUBBLEWRAP}. This level does not protect git hooks, .vscode and similar files in the project, and "
        "does not limit /tmp."
    )
