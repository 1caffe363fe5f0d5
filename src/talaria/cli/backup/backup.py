"""`talaria backup`: all that is a person's in one file, while everything goes on."""

import asyncio
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from talaria.cli import context
from talaria.cli.backup.backup_manifest import DATABASE, BackupManifest, is_cache, is_elsewhere, is_kept, secrets_in
from talaria.cli.backup.writing import Writing
from talaria.cli.json_output import json_option, print_json
from talaria.cli.notices import say
from talaria.cli.progress import Progress
from talaria.compose import open_store
from talaria.core.errors import BadInput, OperatorError


@click.command("backup", help="Write settings, conversations, memories, skills and plugins into FILE.")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--with-secrets", is_flag=True, help="The keys in .env, too.")
@json_option
@click.pass_context
def command(ctx: click.Context, file: Path | None, with_secrets: bool, as_json: bool) -> None:
    home = context.home(ctx)
    target = file or Path(time.strftime("talaria-%Y-%m-%d-%H%M%S.tar.gz"))
    _check(home, target)
    try:
        manifest, links = _written(home, target, with_secrets=with_secrets)
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
        say(f"Not in it: {', '.join(left_out)}. Keys go in with --with-secrets; keep such a file to yourself.")
    if links:
        say(f"Not in it, because they are links: {', '.join(links)}.")
    if elsewhere := {path.name.partition("-")[0] for path in home.iterdir() if is_elsewhere(path.name)} - {DATABASE}:
        profiles = " Profiles have their own: talaria -p NAME backup" if "profiles" in elsewhere else ""
        say(f"Never in a backup: {', '.join(sorted(elsewhere))}.{profiles}")


def _check(home: Path, target: Path) -> None:
    if not home.is_dir():
        raise BadInput(f"There is nothing to keep: {home} is not there.")
    if target.exists():
        raise BadInput(f"{target} is there already; give another name.")
    if target.resolve().is_relative_to(home.resolve()):
        raise BadInput(
            f"{target.resolve()} is inside the home, which goes when it is replaced; give a place elsewhere."
        )


def _written(home: Path, target: Path, *, with_secrets: bool) -> tuple[BackupManifest, list[str]]:
    """The conversations first: the files that they mention are older, and still there."""
    with TemporaryDirectory(prefix=".talaria-backup-", dir=target.parent) as folder:
        copy, archive = Path(folder) / DATABASE, Path(folder) / "archive"
        asyncio.run(_copied(home, copy))
        total_bytes = copy.stat().st_size + _size(home, with_secrets=with_secrets)
        descriptor = os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file, Progress("Writing the backup") as show:
            writing = Writing(file, show, total_bytes)
            writing.add_file(copy, DATABASE)
            writing.add_home(home, with_secrets=with_secrets)
            manifest = writing.finish()
            file.flush()
            os.fsync(descriptor)
        archive.rename(target)
        _settle(target.parent)
    return manifest, writing.links


async def _copied(home: Path, copy: Path) -> None:
    async with open_store(home) as store:
        with Progress("Copying the conversations") as show:
            await store.copy_to(copy, show)


def _size(home: Path, *, with_secrets: bool) -> int:
    """About: for a person who waits."""
    kept = [path for path in home.iterdir() if is_kept(path.name, with_secrets=with_secrets)]
    below = (Path(root, name) for path in kept for root, _, names in os.walk(path) for name in names)
    below = (path for path in below if not is_cache(path.relative_to(home)))
    return sum(path.lstat().st_size for path in (*kept, *below) if path.is_file())


def _settle(folder: Path) -> None:
    """The name survives a crash, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
