"""What every command needs first: the home of the chosen profile and a log that is written only when needed."""

import logging
from pathlib import Path

import click

from talaria.compose import Settings, read_settings
from talaria.config import paths


def home(ctx: click.Context) -> Path:
    profile: str | None = ctx.find_root().obj
    found = paths.home(profile)
    _log_to_file(found)
    return found


def settings(ctx: click.Context) -> Settings:
    return read_settings(home(ctx))


def _log_to_file(home: Path) -> None:
    file = paths.log_file(home)
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s", handlers=[_LazyFile(file)]
    )


class _LazyFile(logging.Handler):
    """Makes the file with the first record; a log that cannot be written never gets in the way."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8", errors="replace") as stream:
                stream.write(self.format(record) + "\n")
        except OSError:
            return
