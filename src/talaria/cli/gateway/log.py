"""The gateway's log: one JSON document per line, in a file that is rotated when it is full; and the same as text for
people. Neither contains known secrets."""

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
    """The traceback of an exception."""


def file(home: Path) -> Path:
    return paths.log_file(home).with_name("gateway.log")


def set_up(home: Path, redactor: Redactor, *, is_shown: bool) -> None:
    """Log here from now on, instead of to the log that commands share. `is_shown`: to the terminal, too."""
    file(home).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = _LogFile(file(home), maxBytes=MAX_BYTES, backupCount=KEPT, encoding="utf-8", errors="replace", delay=True)
    kept.setFormatter(_JsonFormatter(redactor))
    handlers: list[logging.Handler] = [kept]
    if is_shown:
        shown = _Terminal(sys.stderr)
        shown.setFormatter(_TextFormatter(redactor))
        handlers.append(shown)
    logging.basicConfig(level=logging.WARNING, handlers=handlers, force=True)
    logging.getLogger("talaria").setLevel(logging.INFO)  # other libraries log every request, secrets included


def lines(home: Path, count: int, *, is_followed: bool) -> Iterator[str]:
    """The last ones, as text for people; with `is_followed` also those still to come, even after a rotation."""
    with _open_file(home) as stream:
        yield from map(format_line, deque(stream, count))
        if is_followed:
            yield from map(format_line, _follow(stream, home))
    while is_followed:
        with _open_file(home) as stream:
            yield from map(format_line, _follow(stream, home))


def _follow(stream: TextIOWrapper, home: Path) -> Iterator[str]:
    """What is written to this file until it is rotated."""
    rest = ""
    while True:
        try:
            is_last = os.fstat(stream.fileno()).st_ino != file(home).stat().st_ino
        except FileNotFoundError:
            is_last = False
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


class _JsonFormatter(logging.Formatter):
    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        now = current_session.get()
        line = LogLine(
            datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            record.levelname,
            record.name,
            _as_utf8(record.getMessage()),
            str(getattr(record, "session", now.session if now else "")),
            str(getattr(record, "turn", "")),
            _as_utf8(self.formatException(record.exc_info)) if record.exc_info else "",
        )
        return msgspec.json.encode(self._redactor.value(line)).decode()


def _as_utf8(text: str) -> str:
    """Without what UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


class _TextFormatter(RedactingFormatter):
    def format(self, record: logging.LogRecord) -> str:
        return _as_utf8(printable(super().format(record)))


class _QuietHandler(logging.Handler):
    """Ignores a log that cannot be written: the default would print the record, secrets included."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        pass


class _Terminal(_QuietHandler, logging.StreamHandler[TextIO]):
    """Writes to the terminal, as long as there is one."""


class _LogFile(_QuietHandler, RotatingFileHandler):
    """Only its owner can read the file. It counts its size itself: asking the disk costs more than a line."""

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
