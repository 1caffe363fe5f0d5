"""Unpacks an archive into an empty folder, and believes nothing: plain files only, under names that stay inside, each
exactly as the manifest says. All that can be wrong with it is one sentence.
"""

import hashlib
import os
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO

import msgspec

from talaria.cli.keeping.manifest import DATABASE, FOLDER, FORMAT, MANIFEST, Manifest, is_kept
from talaria.cli.progress import Progress
from talaria.model.errors import BadInput, StoreTooNew
from talaria.store.sqlite.migrate import LATEST

PIECE_BYTES = 1 << 20
MAX_MANIFEST_BYTES = 256 << 20


def unpack(archive: Path, folder: Path, show: Progress) -> Manifest:
    """Raises `OSError` when the folder cannot be written; else `BadInput` or `StoreTooNew`."""
    try:
        total_bytes = archive.stat().st_size
        raw = archive.open("rb")
    except OSError as fault:
        raise BadInput(f"Cannot read {archive}: {fault.strerror}.") from fault
    with raw:
        reading = _Reading(folder, lambda: show(raw.tell(), total_bytes))
        try:
            with tarfile.open(fileobj=raw, mode="r|gz") as tar:
                for member in tar:
                    reading.take(member, tar)
        except (tarfile.TarError, EOFError, zlib.error, ValueError, OverflowError) as fault:
            raise _unsound(f"it cannot be read to its end ({fault})") from fault
    return reading.checked()


class _Reading:
    def __init__(self, folder: Path, advance: Callable[[], None]) -> None:
        self._folder = folder
        self._advance = advance
        self._files: dict[str, str] = {}
        self._manifest: bytes | None = None

    def take(self, member: tarfile.TarInfo, tar: tarfile.TarFile) -> None:
        content = tar.extractfile(member) if member.isreg() else None
        if content is None:
            raise _unsound(f"{member.name!r} in it is no plain file")
        if member.name == MANIFEST:
            self._manifest = content.read(MAX_MANIFEST_BYTES)
            return
        name = _inside(member.name)
        if name in self._files:
            raise _unsound(f"{name!r} is in it twice")
        self._files[name] = self._write(content, name, member)

    def checked(self) -> Manifest:
        manifest = _decoded(self._manifest)
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


def _decoded(content: bytes | None) -> Manifest:
    if content is None:
        raise _unsound("it breaks off before its end")
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except msgspec.DecodeError as fault:
        raise _unsound(f"its manifest cannot be read ({fault})") from fault
    if manifest.format > FORMAT or manifest.schema > LATEST:
        raise StoreTooNew(
            f"The backup was made by a newer Talaria ({manifest.version}). Update Talaria; nothing was changed."
        )
    return manifest


def _unsound(why: str) -> BadInput:
    return BadInput(f"That is no sound backup: {why}. Nothing was changed.")
