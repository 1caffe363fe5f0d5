"""What the person has agreed to: per plugin, the content it had then. A plugin that has changed since is asked about
again."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from talaria.files import replace_file
from talaria.model.errors import BadConfig, OperatorError

SKIPPED = frozenset({".git", "__pycache__", ".pytest_cache", ".venv", "node_modules"})
DATA = (".pyc", ".log", ".db", ".sqlite", ".sqlite3", "-wal", "-shm", "-journal")
"""What a plugin may write beside its code: none of it is code."""
MAX_FILES = 20_000


class TooMuch(Exception):
    """`str()` of it says what."""


class Consent(msgspec.Struct, frozen=True):
    content: str
    """SHA-256 of all its files but data."""
    cli: dict[str, str] = {}
    """The commands that it adds to `talaria`, with their help: known without loading it."""


Consents = dict[str, Consent]


def read(file: Path) -> Consents:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Consents)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as fault:
        raise BadConfig(f"Cannot read {file}: {fault.strerror}.") from fault
    except msgspec.MsgspecError as fault:
        raise BadConfig(f"{file} is damaged; delete it, and enable your plugins again.") from fault


def write(file: Path, consents: Consents) -> None:
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(file, msgspec.json.format(msgspec.json.encode(consents)), mode=0o600)
    except OSError as fault:
        raise OperatorError(f"Cannot write {file}: {fault.strerror}.") from fault


def content_of(place: Path) -> str:
    """One digest of every file's name and bytes. Raises `OSError`, `TooMuch`."""
    digest = hashlib.sha256()
    for count, (name, file) in enumerate(_files(place)):
        if count >= MAX_FILES:
            raise TooMuch(f"it has more than {MAX_FILES:,} files")
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").digest()
        digest.update(len(name).to_bytes(4) + name + content)
    return digest.hexdigest()


def _files(place: Path) -> Iterator[tuple[bytes, Path]]:
    """In a fixed order. A link counts as what it leads to; one that leads to a folder is followed once."""
    if place.is_file():
        yield os.fsencode(place.name), place
        return
    seen: set[Path] = set()
    pending: list[tuple[Sequence[str], Path]] = [((), place)]
    while pending:
        parents, folder = pending.pop()
        real = folder.resolve()
        if real in seen:
            continue
        seen.add(real)
        for entry in sorted(folder.iterdir(), reverse=True):
            path = (*parents, entry.name)
            if entry.name in SKIPPED or entry.name.endswith(DATA):
                continue
            if entry.is_dir():
                pending.append((path, entry))
            elif entry.is_file():
                yield os.fsencode("/".join(path)), entry
