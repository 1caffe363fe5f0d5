"""`talaria backup`: write everything of yours into one file, while everything keeps running.

Links at the top of the home are followed; those below are left out and reported.
"""

import asyncio
import hashlib
import io
import os
import stat
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

import click
import msgspec

from talaria import __version__
from talaria.app.build import open_store
from talaria.cli import context
from talaria.cli.backup.archive import (
    DATABASE,
    FOLDER,
    FORMAT,
    MANIFEST,
    PLUGIN_HOME,
    BackupManifest,
    is_cache,
    is_elsewhere,
    is_kept,
    is_secret,
    secrets_in,
)
from talaria.cli.command_output import json_option, print_json
from talaria.cli.notices import Progress, say
from talaria.core.errors import BadInput, OperatorError
from talaria.core.trees import FOLDER as ENTERING
from talaria.core.trees import open_in
from talaria.store.sqlite.connection import LATEST

PRIVATE = 0o700
LINK = Path(PLUGIN_HOME) / "plugins"
"""Recreated whenever plugins are loaded."""


class ArchiveWriter:
    """Its methods raise `OperatorError` for what cannot be read, and `OSError` if the archive cannot be written."""

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
            if path.is_file():
                self.add_file(path.resolve(), path.name)
            elif path.is_dir():
                self._add_folder(path.resolve(), Path(path.name), with_secrets=with_secrets)

    def _add_folder(self, folder: Path, name: Path, *, with_secrets: bool) -> None:
        for root, folders, files, descriptor in os.fwalk(folder):
            inside = name / Path(root).relative_to(folder)
            folders[:] = [one for one in folders if not is_cache(inside / one)]
            for one in sorted([*folders, *files]):
                if inside / one != LINK and (with_secrets or not is_secret(str(inside / one))):
                    self._add(descriptor, one, inside / one)

    def finish(self) -> BackupManifest:
        manifest = BackupManifest(FORMAT, __version__, LATEST, time.time(), self._files)
        content = msgspec.json.encode(manifest)
        self._tar.addfile(_member(MANIFEST, len(content), 0o600, manifest.created_at), io.BytesIO(content))
        self._tar.close()
        return manifest

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
        if descriptor is None:
            return
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)  # only as much as it has now: some files grow
            mode = stat.S_IMODE(found.st_mode) & PRIVATE
            hashing = _HashingReader(file, str(path), found.st_size, self._advance)
            self._tar.addfile(_member(f"{FOLDER}/{path}", found.st_size, mode, found.st_mtime), hashing)
            self._files[str(path)] = hashing.digest()

    def _advance(self, count: int) -> None:
        self._done_bytes += count
        self._show(self._done_bytes, self._total_bytes)


class _HashingReader(io.RawIOBase):
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
            raise OperatorError(f"{self._name} in the home changed while it was being read; try again.")
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


@click.command("backup", help="Write settings, conversations, memories, skills and plugins to FILE.")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--with-secrets", is_flag=True, help="Also write the keys in .env.")
@json_option
@click.pass_context
def command(ctx: click.Context, file: Path | None, with_secrets: bool, as_json: bool) -> None:
    home = context.home(ctx)
    target = file or Path(time.strftime("talaria-%Y-%m-%d-%H%M%S.tar.gz"))
    if not home.is_dir():
        raise BadInput(f"There is nothing to back up: {home} does not exist.")
    if target.exists():
        raise BadInput(f"{target} already exists; choose another name.")
    if target.resolve().is_relative_to(home.resolve()):
        raise BadInput(f"{target.resolve()} is inside the home, which a restore replaces; choose a place elsewhere.")
    try:
        manifest, links = _write_archive(home, target, with_secrets=with_secrets)
    except OSError as fault:
        raise OperatorError(f"Cannot write {target}: {fault.strerror or fault}. No backup was made.") from fault
    left_out = [] if with_secrets else secrets_in(home)
    size_bytes = target.stat().st_size
    if as_json:
        facts = {"file": str(target), "size_bytes": size_bytes, "files": len(manifest.files)}
        print_json({"ok": True, **facts, "left_out": [*left_out, *links]})
        return
    count = len(manifest.files)
    say(f"Wrote {target}: {count:,} {'file' if count == 1 else 'files'}, {size_bytes / 1e6:,.1f} MB.")
    if left_out:
        say(f"Left out: {', '.join(left_out)}. --with-secrets includes keys; keep such a file to yourself.")
    if links:
        say(f"Left out, because they are links: {', '.join(links)}.")
    if elsewhere := {path.name.partition("-")[0] for path in home.iterdir() if is_elsewhere(path.name)} - {DATABASE}:
        profiles = " Profiles have their own: talaria -p NAME backup" if "profiles" in elsewhere else ""
        say(f"Never in a backup: {', '.join(sorted(elsewhere))}.{profiles}")


def _write_archive(home: Path, target: Path, *, with_secrets: bool) -> tuple[BackupManifest, list[str]]:
    """The conversations come first: the files that they mention are older, and so are included."""
    with TemporaryDirectory(prefix=".talaria-backup-", dir=target.parent) as folder:
        copy, archive = Path(folder) / DATABASE, Path(folder) / "archive"

        async def copy_database() -> None:
            async with open_store(home) as store:
                with Progress("Copying the conversations") as show:
                    await store.copy_to(copy, show)

        asyncio.run(copy_database())
        kept = [path for path in home.iterdir() if is_kept(path.name, with_secrets=with_secrets)]
        below = [Path(root, name) for path in kept for root, _, names in os.walk(path) for name in names]
        files = (copy, *kept, *(path for path in below if not is_cache(path.relative_to(home))))
        total_bytes = sum(path.lstat().st_size for path in files if path.is_file())  # an estimate, to show progress
        descriptor = os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file, Progress("Writing the backup") as show:
            writing = ArchiveWriter(file, show, total_bytes)
            writing.add_file(copy, DATABASE)
            writing.add_home(home, with_secrets=with_secrets)
            manifest = writing.finish()
            file.flush()
            os.fsync(descriptor)
        archive.rename(target)
        parent = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(parent)  # so that its name survives a crash, too
        finally:
            os.close(parent)
    return manifest, writing.links
