"""What the person has agreed to: for each plugin, the content it had then. If it has changed since, they are asked
again."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from talaria.core.errors import BadConfig, OperatorError
from talaria.core.fs import replace_file

SKIPPED = frozenset({".git", ".pytest_cache", ".venv"})
"""Folders that no import finds, as their names begin with a dot."""
DATA = (".log", ".db", ".sqlite", ".sqlite3", "-wal", "-shm", "-journal")
"""Files that a plugin may write beside its code, and that no import finds."""
CACHE = "__pycache__"
"""What Python writes there is not used while plugins are loaded (`loading.py`); anything else in it is code."""
MAX_FILES = 20_000


class TooMuch(Exception):
    """`str()` of it says what."""


class PluginConsent(msgspec.Struct, frozen=True):
    content: str
    """SHA-256 of all its files but data."""
    cli: dict[str, str] = {}
    """The commands that it adds to `talaria`, with their help; known without loading it."""
    engine: str = ""
    memory: str = ""
    """The names of its context engine and its memory provider."""


Consents = dict[str, PluginConsent]


def read(file: Path) -> Consents:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Consents)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as fault:
        raise BadConfig(f"Cannot read {file}: {fault.strerror}.") from fault
    except msgspec.MsgspecError as fault:
        raise BadConfig(f"{file} is damaged; delete it and enable your plugins again.") from fault


def write(file: Path, consents: Consents) -> None:
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(file, msgspec.json.format(msgspec.json.encode(consents)), mode=0o600)
    except OSError as fault:
        raise OperatorError(f"Cannot write {file}: {fault.strerror}.") from fault


def content_of(places: Sequence[Path]) -> str:
    """For each place a digest of the names and bytes of its files. Raises `OSError`, `TooMuch`."""
    digests: list[str] = []
    for place in places:
        digest = hashlib.sha256()
        for count, (name, file) in enumerate(_files(place)):
            if count >= MAX_FILES:
                raise TooMuch(f"it has more than {MAX_FILES:,} files")
            with file.open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256").digest()
            digest.update(len(name).to_bytes(4) + name + content)
        digests.append(digest.hexdigest())
    return ":".join(digests)


def _files(place: Path) -> Iterator[tuple[bytes, Path]]:
    """In a fixed order, without data. A link counts as what it leads to; one to a folder is followed once."""
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
            # Bytecode has names like `part.cpython-311.pyc`; other .pyc files are modules.
            is_bytecode = folder.name == CACHE and entry.suffix == ".pyc" and "." in entry.stem
            if entry.is_dir():
                if entry.name not in SKIPPED:
                    pending.append((path, entry))
            elif entry.is_file() and not is_bytecode and not entry.name.endswith(DATA):
                yield os.fsencode("/".join(path)), entry
