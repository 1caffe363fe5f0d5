"""The gateway's log: one JSON document per line, in a file that is put aside when it is full; and for people, as lines
of text. No known secret is in either."""

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO

import msgspec

from talaria.cli.context import RedactingFormatter
from talaria.cli.safe import printable
from talaria.config import paths
from talaria.core.redaction import Redactor
from talaria.runtime.session_config import current_session

MAX_BYTES = 10 << 20
KEPT = 5
LOOK_S = 0.2


class LogLine(msgspec.Struct, frozen=True, omit_defaults=True):
    time: str
    level: str
    logger: str
    message: str
    session: str = ""
    turn: str = ""
    error: str = ""
    """Where an exception came from."""


def file(home: Path) -> Path:
    return paths.log_file(home).with_name("gateway.log")


def keep(home: Path, redactor: Redactor, *, is_shown: bool) -> None:
    """From now on, in place of the log that commands share. `is_shown`: on the terminal, too."""
    file(home).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = _PutAside(file(home), maxBytes=MAX_BYTES, backupCount=KEPT, encoding="utf-8", errors="replace", delay=True)
    kept.setFormatter(_JsonLines(redactor))
    handlers: list[logging.Handler] = [kept]
    if is_shown:
        shown = _Shown(sys.stderr)
        shown.setFormatter(_LinesForPeople(redactor))
        handlers.append(shown)
    logging.basicConfig(level=logging.WARNING, handlers=handlers, force=True)
    logging.getLogger("talaria").setLevel(logging.INFO)  # others name every request, with what is secret in it


def lines(home: Path, count: int, *, is_followed: bool) -> Iterator[str]:
    """The last ones, for people; and all that are yet to come, also when the file is put aside meanwhile."""
    with _open_file(home) as stream:
        yield from map(format_line, deque(stream, count))
        if is_followed:
            yield from map(format_line, _later(stream, home))
    while is_followed:
        with _open_file(home) as stream:
            yield from map(format_line, _later(stream, home))


def _later(stream: TextIOWrapper, home: Path) -> Iterator[str]:
    """What is written to it before it is put aside."""
    rest = ""
    while True:
        is_last = _is_put_aside(stream, home)
        rest += stream.readline()
        if rest.endswith("\n"):
            yield rest
            rest = ""
        elif is_last:
            return
        else:
            time.sleep(LOOK_S)


def format_line(line: str) -> str:
    try:
        found = msgspec.json.decode(line, type=LogLine)
    except msgspec.DecodeError:
        return printable(line.rstrip("\n"))
    moment = datetime.fromisoformat(found.time).astimezone()
    where = "".join(f" [{part}]" for part in (found.session, found.turn) if part)
    error = f"\n{found.error}" if found.error else ""
    return printable(f"{moment:%Y-%m-%d %H:%M:%S} {found.level} {found.logger}: {found.message}{where}{error}")


def _open_file(home: Path) -> TextIOWrapper:
    return file(home).open(encoding="utf-8", errors="replace")


def _is_put_aside(stream: TextIOWrapper, home: Path) -> bool:
    try:
        return os.fstat(stream.fileno()).st_ino != file(home).stat().st_ino
    except FileNotFoundError:
        return False


class _JsonLines(logging.Formatter):
    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        now = current_session.get()
        line = LogLine(
            datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            record.levelname,
            record.name,
            _whole(record.getMessage()),
            str(getattr(record, "session", now.session if now else "")),
            str(getattr(record, "turn", "")),
            _whole(self.formatException(record.exc_info)) if record.exc_info else "",
        )
        return msgspec.json.encode(self._redactor.value(line)).decode()


def _whole(text: str) -> str:
    """As UTF-8 can hold it."""
    return text.encode("utf-8", "replace").decode()


class _LinesForPeople(RedactingFormatter):
    def format(self, record: logging.LogRecord) -> str:
        return _whole(printable(super().format(record)))


class _Quiet(logging.Handler):
    """A log that cannot be written never gets in the way. Elsewhere it would be told with all that is secret in it."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        pass


class _Shown(_Quiet, logging.StreamHandler[TextIO]):
    """On the terminal, as long as there is one."""


class _PutAside(_Quiet, RotatingFileHandler):
    """In a file for its owner only. How full it is is counted here: to ask the disk costs more than a line."""

    _size_bytes = 0

    def shouldRollover(self, record: logging.LogRecord) -> int:  # noqa: ARG002, N802
        return self._size_bytes >= self.maxBytes

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        self._size_bytes += len(line.encode()) + 1
        return line

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        descriptor = os.open(self.baseFilename, flags, 0o600)
        self._size_bytes = os.fstat(descriptor).st_size
        return os.fdopen(descriptor, "a", encoding=self.encoding, errors=self.errors)
