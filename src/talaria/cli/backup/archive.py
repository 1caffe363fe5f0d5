"""What a backup contains, and unpacking one into an empty folder.

Its manifest comes last in the archive, so one that has a manifest is complete. Unpacking trusts nothing: only regular
files, under names that stay inside, each exactly as the manifest says. Everything wrong with it is one sentence.
"""

import errno
import gzip
import hashlib
import os
import re
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, cast

import msgspec

from talaria.cli.notices import Progress
from talaria.config.paths import plugin_home
from talaria.core.errors import BadInput, StoreTooNew
from talaria.store.sqlite.connection import LATEST

FORMAT = 1
MANIFEST = "manifest.json"
FOLDER = "home"
DATABASE = "state.db"
PLUGIN_HOME = plugin_home(Path()).name

_ELSEWHERE = re.compile(r"run|logs|cache|mcp|platforms|profiles|(state|search|undo)\.db.*")


class BackupManifest(msgspec.Struct, frozen=True):
    format: int
    version: str
    """Of Talaria."""
    schema: int
    """Of the store."""
    created_at: float
    files: dict[str, str]
    """The SHA-256 of each, by its path inside the home."""


def is_secret(name: str) -> bool:
    """`name` is a path inside a home: secrets are at its top, or at the top of the plugins' home."""
    return name.removeprefix(f"{PLUGIN_HOME}/").startswith(".env")


def secrets_in(home: Path) -> list[str]:
    """As paths inside it."""
    inner = plugin_home(home)
    theirs = inner.iterdir() if inner.is_dir() and not inner.is_symlink() else ()
    plain = [path for path in theirs if not path.is_symlink()]
    found = [str(path.relative_to(home)) for path in (*home.iterdir(), *plain)]
    return sorted(name for name in found if is_secret(name))


def is_elsewhere(name: str) -> bool:
    """Whether this name at the top of a home is never backed up: it belongs to running processes, can be recreated, or
    is a home of its own."""
    return _ELSEWHERE.fullmatch(name) is not None


def is_cache(path: Path) -> bool:
    """Whether this path inside a home is a package cache of a project, which can be downloaded again."""
    return path.parts[:1] == ("projects",) and path.parts[2:3] == ("cache",)


def is_kept(name: str, *, with_secrets: bool) -> bool:
    return not is_elsewhere(name) and (with_secrets or not is_secret(name))


PIECE_BYTES = 1 << 20
MAX_MANIFEST_BYTES = 64 << 20
MAX_HEADER_BYTES = 1 << 20
"""Of one file's headers, which contain its name."""
MAX_FILES = 500_000
LEAST_BYTES = 1 << 30
MAX_RATIO = 100
"""Conversations compress to about a tenth. What unpacks to more than this many times its size, and to more than
`LEAST_BYTES`, was made to fill the disk."""
RESERVE_BYTES = 64 << 20
"""To leave free on the disk."""


def unpack(archive: Path, folder: Path, show: Progress) -> BackupManifest:
    """Raises `OSError` if the folder cannot be written, otherwise `BadInput` or `StoreTooNew`."""
    try:
        total_bytes = archive.stat().st_size
        raw = archive.open("rb")
    except OSError as fault:
        raise BadInput(f"Cannot read {archive}: {fault.strerror}.") from fault
    with raw:
        reading = _ArchiveReader(
            folder, lambda: show(raw.tell(), total_bytes), max(LEAST_BYTES, total_bytes * MAX_RATIO)
        )
        try:
            with gzip.GzipFile(fileobj=raw) as unzipped:
                bounded = _BoundedStream(unzipped)
                with tarfile.open(fileobj=cast("IO[bytes]", bounded), mode="r|") as tar:
                    while (member := tar.next()) is not None:
                        bounded.left_bytes = member.size + MAX_HEADER_BYTES
                        reading.take(member, tar)
                        bounded.left_bytes = MAX_HEADER_BYTES
        except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, ValueError, OverflowError) as fault:
            raise _invalid(f"it cannot be read to its end ({fault})") from fault
    return reading.check()


class _BoundedStream:
    """Limits how much may be read at a time: a header can claim to be as long as the disk."""

    def __init__(self, unzipped: gzip.GzipFile) -> None:
        self._unzipped = unzipped
        self.left_bytes = MAX_HEADER_BYTES

    def read(self, size_bytes: int) -> bytes:
        piece = self._unzipped.read(size_bytes)
        self.left_bytes -= len(piece)
        if self.left_bytes < 0:
            raise _invalid("the header of a file in it is too long")
        return piece


class _ArchiveReader:
    def __init__(self, folder: Path, advance: Callable[[], None], limit_bytes: int) -> None:
        self._folder = folder
        self._advance = advance
        self._limit_bytes = limit_bytes
        self._unpacked_bytes = 0
        self._files: dict[str, str] = {}
        self._manifest: bytes | None = None

    def take(self, member: tarfile.TarInfo, tar: tarfile.TarFile) -> None:
        content = tar.extractfile(member) if member.isreg() else None
        if content is None:
            raise _invalid(f"{member.name!r} in it is not a regular file")
        self._unpacked_bytes += member.size
        if self._unpacked_bytes > self._limit_bytes:
            raise _invalid(f"it would unpack to more than {self._limit_bytes >> 20:,} MB")
        if len(self._files) >= MAX_FILES:
            raise _invalid(f"it has more than {MAX_FILES:,} files")
        disk = os.statvfs(self._folder)
        if member.size + RESERVE_BYTES > disk.f_bavail * disk.f_frsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if member.name == MANIFEST:
            self._manifest = content.read(MAX_MANIFEST_BYTES)
            return
        top, *parts = member.name.split("/")
        is_inside = top == FOLDER and parts and not {"", ".", ".."} & {*parts} and "\0" not in member.name
        if not is_inside or (parts != [DATABASE] and not is_kept(parts[0], with_secrets=True)):
            raise _invalid(f"{member.name!r} does not belong in a backup")
        name = str(PurePosixPath(*parts))
        if name in self._files:
            raise _invalid(f"{name!r} is in it twice")
        file = self._folder / name
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 | (member.mode & 0o100))
        except (FileExistsError, NotADirectoryError) as fault:
            raise _invalid(f"{name!r} is in it both as a file and as a folder") from fault
        digest = hashlib.sha256()
        with os.fdopen(descriptor, "wb") as target:
            while piece := content.read(PIECE_BYTES):
                digest.update(piece)
                target.write(piece)
                self._advance()
        os.utime(file, (member.mtime, member.mtime))
        self._files[name] = digest.hexdigest()

    def check(self) -> BackupManifest:
        if self._manifest is None:
            raise _invalid("it is cut off before its end")
        try:
            manifest = msgspec.json.decode(self._manifest, type=BackupManifest)
        except msgspec.DecodeError as fault:
            raise _invalid(f"its manifest cannot be read ({fault})") from fault
        if manifest.format > FORMAT or manifest.schema > LATEST:
            raise StoreTooNew(
                f"The backup was made by a newer Talaria ({manifest.version}). Update Talaria; nothing was changed."
            )
        wrong = sorted({*self._files.items()} ^ {*manifest.files.items()})
        if wrong:
            raise _invalid(f"{wrong[0][0]!r} in it is missing or changed")
        if DATABASE not in self._files:
            raise _invalid("it has no conversations")
        return manifest


def _invalid(why: str) -> BadInput:
    return BadInput(f"This is not a valid backup: {why}. Nothing was changed.")
