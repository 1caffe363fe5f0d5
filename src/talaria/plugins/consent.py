"""What the person has agreed to: per plugin, the content it had then. A plugin that has changed since is asked about
again."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from talaria.core.errors import BadConfig, OperatorError
from talaria.core.fs import replace_file

SKIPPED = frozenset({".git", ".pytest_cache", ".venv"})
"""Folders that no import finds: their names begin with a dot."""
DATA = (".log", ".db", ".sqlite", ".sqlite3", "-wal", "-shm", "-journal")
"""Files that a plugin may write beside its code: no import finds them."""
CACHE = "__pycache__"
"""What Python writes there is not looked at while plugins are loaded (`bytecode.py`); what else is there is code."""
MAX_FILES = 20_000


class TooMuch(Exception):
    """`str()` of it says what."""


class PluginConsent(msgspec.Struct, frozen=True):
    content: str
    """SHA-256 of all its files but data."""
    cli: dict[str, str] = {}
    """The commands that it adds to `talaria`, with their help: known without loading it."""
    engine: str = ""
    memory: str = ""
    """The names by which its context engine and its memory provider are chosen."""


Consents = dict[str, PluginConsent]


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


def content_of(places: Sequence[Path]) -> str:
    """For each place one digest of every file's name and bytes. Raises `OSError`, `TooMuch`."""
    return ":".join(_digest(place) for place in places)


def _digest(place: Path) -> str:
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
            if entry.is_dir():
                if entry.name not in SKIPPED:
                    pending.append((path, entry))
            elif entry.is_file() and not _is_data(entry):
                yield os.fsencode("/".join(path)), entry


def _is_data(file: Path) -> bool:
    """Bytecode is that only under the names that Python gives it (`part.cpython-311.pyc`): others are modules."""
    is_cached = file.parent.name == CACHE and file.suffix == ".pyc" and "." in file.stem
    return is_cached or file.name.endswith(DATA)
