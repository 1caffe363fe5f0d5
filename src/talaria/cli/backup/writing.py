"""Writes a home into an archive. Links at its top stand for what they name; those below are left out, and told."""

import hashlib
import io
import os
import stat
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from talaria import __version__
from talaria.cli.backup.backup_manifest import (
    FOLDER,
    FORMAT,
    MANIFEST,
    PLUGIN_HOME,
    BackupManifest,
    is_cache,
    is_kept,
    is_secret,
)
from talaria.cli.progress import Progress
from talaria.core.errors import OperatorError
from talaria.store.sqlite.migrate import LATEST
from talaria.trees import FOLDER as ENTERING
from talaria.trees import open_in

PRIVATE = 0o700
LINK = Path(PLUGIN_HOME) / "plugins"
"""Made anew whenever plugins are loaded."""


class Writing:
    """Methods raise `OperatorError` for what cannot be read, and `OSError` when the archive cannot be written."""

    def __init__(self, target: BinaryIO, show: Progress, total_bytes: int) -> None:
        self._tar = tarfile.open(fileobj=target, mode="w:gz", compresslevel=6)  # noqa: SIM115  (`finish` closes it)
        self._show = show
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._files: dict[str, str] = {}
        self.links: list[str] = []
        """Left out."""

    def add_file(self, file: Path, name: str) -> None:
        folder = os.open(file.parent, ENTERING)
        try:
            self._add(folder, file.name, Path(name))
        finally:
            os.close(folder)

    def add_home(self, home: Path, *, with_secrets: bool) -> None:
        for path in sorted(home.iterdir()):
            if not is_kept(path.name, with_secrets=with_secrets):
                continue
            if path.is_dir():
                self._add_folder(path.resolve(), path.name, with_secrets=with_secrets)
            elif path.is_file():
                self.add_file(path.resolve(), path.name)

    def finish(self) -> BackupManifest:
        manifest = BackupManifest(FORMAT, __version__, LATEST, time.time(), self._files)
        content = msgspec.json.encode(manifest)
        self._tar.addfile(_member(MANIFEST, len(content), 0o600, manifest.created_at), io.BytesIO(content))
        self._tar.close()
        return manifest

    def _add_folder(self, folder: Path, name: str, *, with_secrets: bool) -> None:
        for root, folders, files, descriptor in os.fwalk(folder):
            inside = Path(name) / Path(root).relative_to(folder)
            folders[:] = [one for one in folders if not is_cache(inside / one)]
            for one in sorted([*folders, *files]):
                path = inside / one
                if path != LINK and (with_secrets or not is_secret(str(path))):
                    self._add(descriptor, one, path)

    def _add(self, folder: int, name: str, path: Path) -> None:
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                self.links.append(str(path))
            descriptor = open_in(folder, name) if stat.S_ISREG(mode) else None
        except FileNotFoundError:  # gone since the folder was listed
            return
        except OSError as fault:
            raise OperatorError(f"Cannot read {path} in the home: {fault.strerror or fault}.") from fault
        if descriptor is not None:
            with os.fdopen(descriptor, "rb") as file:
                self._write(str(path), file, os.fstat(descriptor))

    def _write(self, name: str, file: BinaryIO, found: os.stat_result) -> None:
        """As many bytes as it had when it was opened: some files grow."""
        member = _member(f"{FOLDER}/{name}", found.st_size, stat.S_IMODE(found.st_mode) & PRIVATE, found.st_mtime)
        hashing = _Hashing(file, name, found.st_size, self._advance)
        self._tar.addfile(member, hashing)
        self._files[name] = hashing.digest()

    def _advance(self, count: int) -> None:
        self._done_bytes += count
        self._show(self._done_bytes, self._total_bytes)


class _Hashing(io.RawIOBase):
    def __init__(self, file: BinaryIO, name: str, size_bytes: int, advance: Callable[[int], None]) -> None:
        self._file = file
        self._advance = advance
        self._name = name
        self._left = size_bytes
        self._hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        piece = self._file.read(wanted)
        if len(piece) < wanted:
            raise OperatorError(f"{self._name} in the home was changed while it was read; try again.")
        self._left -= wanted
        self._hash.update(piece)
        self._advance(wanted)
        return piece

    def digest(self) -> str:
        return self._hash.hexdigest()


def _member(name: str, size_bytes: int, mode: int, changed_at: float) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size_bytes, mode, int(changed_at)
    return member
