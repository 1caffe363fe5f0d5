"""What a backup holds, and what it says of itself: last in the archive, so one that has a manifest is whole.

Unpacks an archive into an empty folder, and believes nothing: plain files only, under names that stay inside, each
exactly as the manifest says. All that can be wrong with it is one sentence.
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
    """Of the conversations."""
    created_at: float
    files: dict[str, str]
    """By path inside the home: the SHA-256 of each."""


def is_secret(name: str) -> bool:
    """Of a path inside a home: at its top, or at the top of that of plugins."""
    return name.removeprefix(f"{PLUGIN_HOME}/").startswith(".env")


def secrets_in(home: Path) -> list[str]:
    """Their paths inside it."""
    inner = plugin_home(home)
    theirs = inner.iterdir() if inner.is_dir() and not inner.is_symlink() else ()
    plain = [path for path in theirs if not path.is_symlink()]
    found = [str(path.relative_to(home)) for path in (*home.iterdir(), *plain)]
    return sorted(name for name in found if is_secret(name))


def is_elsewhere(name: str) -> bool:
    """Of what is at the top of a home: it is of running processes, can be made anew, or is a home of its own."""
    return _ELSEWHERE.fullmatch(name) is not None


def is_cache(path: Path) -> bool:
    """Of a path inside a home: the package caches of projects are downloaded again."""
    return path.parts[:1] == ("projects",) and path.parts[2:3] == ("cache",)


def is_kept(name: str, *, with_secrets: bool) -> bool:
    return not is_elsewhere(name) and (with_secrets or not is_secret(name))


PIECE_BYTES = 1 << 20
MAX_MANIFEST_BYTES = 64 << 20
MAX_HEADER_BYTES = 1 << 20
"""Of what the archive says of one file, its name above all."""
MAX_FILES = 500_000
LEAST_BYTES = 1 << 30
MAX_RATIO = 100
"""Conversations become about ten times smaller. What becomes more than this many times larger, and larger than
`LEAST_BYTES`, was made to fill the disk."""
RESERVE_BYTES = 64 << 20
"""That stay free on the disk."""


def unpack(archive: Path, folder: Path, show: Progress) -> BackupManifest:
    """Raises `OSError` when the folder cannot be written; else `BadInput` or `StoreTooNew`."""
    try:
        total_bytes = archive.stat().st_size
        raw = archive.open("rb")
    except OSError as fault:
        raise BadInput(f"Cannot read {archive}: {fault.strerror}.") from fault
    with raw:
        reading = _Reading(folder, lambda: show(raw.tell(), total_bytes), max(LEAST_BYTES, total_bytes * MAX_RATIO))
        try:
            with gzip.GzipFile(fileobj=raw) as unzipped:
                bounded = _Bounded(unzipped)
                with tarfile.open(fileobj=cast("IO[bytes]", bounded), mode="r|") as tar:
                    while (member := tar.next()) is not None:
                        bounded.left_bytes = member.size + MAX_HEADER_BYTES
                        reading.take(member, tar)
                        bounded.left_bytes = MAX_HEADER_BYTES
        except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, ValueError, OverflowError) as fault:
            raise _unsound(f"it cannot be read to its end ({fault})") from fault
    return reading.check()


class _Bounded:
    """What is unpacked, and how much more of it is wanted: a header can claim to be as long as a disk."""

    def __init__(self, unzipped: gzip.GzipFile) -> None:
        self._unzipped = unzipped
        self.left_bytes = MAX_HEADER_BYTES

    def read(self, size_bytes: int) -> bytes:
        piece = self._unzipped.read(size_bytes)
        self.left_bytes -= len(piece)
        if self.left_bytes < 0:
            raise _unsound("what it says of a file is too long")
        return piece


class _Reading:
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
            raise _unsound(f"{member.name!r} in it is no plain file")
        self._check_room(member.size)
        if member.name == MANIFEST:
            self._manifest = content.read(MAX_MANIFEST_BYTES)
            return
        name = _inside(member.name)
        if name in self._files:
            raise _unsound(f"{name!r} is in it twice")
        self._files[name] = self._write(content, name, member)

    def _check_room(self, size_bytes: int) -> None:
        """Before any of it is written."""
        self._unpacked_bytes += size_bytes
        if self._unpacked_bytes > self._limit_bytes:
            raise _unsound(f"it would unpack to more than {self._limit_bytes >> 20:,} MB")
        if len(self._files) >= MAX_FILES:
            raise _unsound(f"there are more than {MAX_FILES:,} files in it")
        disk = os.statvfs(self._folder)
        if size_bytes + RESERVE_BYTES > disk.f_bavail * disk.f_frsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def check(self) -> BackupManifest:
        manifest = _decode_manifest(self._manifest)
        wrong = sorted({*self._files.items()} ^ {*manifest.files.items()})
        if wrong:
            raise _unsound(f"{wrong[0][0]!r} in it is missing or changed")
        if DATABASE not in self._files:
            raise _unsound("there are no conversations in it")
        return manifest

    def _write(self, content: IO[bytes], name: str, member: tarfile.TarInfo) -> str:
        file = self._folder / name
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 | (member.mode & 0o100))
        except (FileExistsError, NotADirectoryError) as fault:
            raise _unsound(f"{name!r} is in it as a file and as a folder") from fault
        digest = hashlib.sha256()
        with os.fdopen(descriptor, "wb") as target:
            while piece := content.read(PIECE_BYTES):
                digest.update(piece)
                target.write(piece)
                self._advance()
        os.utime(file, (member.mtime, member.mtime))
        return digest.hexdigest()


def _inside(name: str) -> str:
    """The path inside the home."""
    top, *parts = name.split("/")
    is_sound = top == FOLDER and parts and not {"", ".", ".."} & {*parts} and "\0" not in name
    if not is_sound or (parts != [DATABASE] and not is_kept(parts[0], with_secrets=True)):
        raise _unsound(f"{name!r} is nothing that a backup has")
    return str(PurePosixPath(*parts))


def _decode_manifest(content: bytes | None) -> BackupManifest:
    if content is None:
        raise _unsound("it breaks off before its end")
    try:
        manifest = msgspec.json.decode(content, type=BackupManifest)
    except msgspec.DecodeError as fault:
        raise _unsound(f"its manifest cannot be read ({fault})") from fault
    if manifest.format > FORMAT or manifest.schema > LATEST:
        raise StoreTooNew(
            f"The backup was made by a newer Talaria ({manifest.version}). Update Talaria; nothing was changed."
        )
    return manifest


def _unsound(why: str) -> BadInput:
    return BadInput(f"That is no sound backup: {why}. Nothing was changed.")
