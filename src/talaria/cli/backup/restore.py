"""`talaria restore`: a backup becomes the home. It is unpacked beside it and looked at before anything is replaced.

Puts a new home in the place of the old one. Where the kernel can exchange two names in one step, there is always a
whole home in that place, wherever a crash strikes; elsewhere there may be none, and both are whole beside it.
"""

import ctypes
import errno
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import click

from talaria.cli import context
from talaria.cli.backup.archive import BackupManifest, secrets_in, unpack
from talaria.cli.command_output import confirm, json_option, print_json, yes_option
from talaria.cli.notices import Progress, say
from talaria.cli.sessions.remarks import when
from talaria.core.errors import BadInput, OperatorError, SessionBusy, StoreDamaged
from talaria.gateway.claims import claim, gateway_file
from talaria.store.sqlite.presence import Presence

PROFILES = "profiles"

_AT_FDCWD = -100
_SWAP = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def replace_home(home: Path, new: Path, aside: Path) -> None:
    """What was at `home` is at `aside` then. The homes of other profiles inside it stay where they are."""
    has_profiles = (home / PROFILES).is_dir()
    if has_profiles:  # where the old ones are as soon as the homes are exchanged
        (new / PROFILES).symlink_to(new / PROFILES)
    _exchange(home, new)
    if has_profiles:
        _exchange(home / PROFILES, new / PROFILES)
        (new / PROFILES).unlink()
    new.rename(aside)


def _exchange(one: Path, other: Path) -> None:
    try:
        _exchange_in_one_step(one, other)
    except OSError as fault:
        if fault.errno not in _CANNOT:
            raise
        between = one.with_name(f"{one.name}.{os.urandom(4).hex()}")
        one.rename(between)
        try:
            other.rename(one)
        except OSError:
            between.rename(one)
            raise
        between.rename(other)


def _exchange_in_one_step(one: Path, other: Path) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    names = (os.fsencode(one), os.fsencode(other))
    try:
        if sys.platform == "darwin":
            failed = library.renamex_np(*names, _SWAP)
        else:
            failed = library.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _SWAP)
    except AttributeError as fault:  # a C library without it
        raise OSError(errno.ENOSYS, "cannot exchange") from fault
    if failed:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(one))


PLATFORMS = "platforms"
RUNNING = "A gateway runs on this home; stop it first: talaria gateway stop"


@click.command("restore", help="Make the backup in FILE the home; what is there now is kept beside it.")
@click.argument("file", type=click.Path(path_type=Path))
@yes_option
@json_option
@click.pass_context
def command(ctx: click.Context, file: Path, yes: bool, as_json: bool) -> None:
    home = context.home(ctx).resolve()
    with _alone(home), _beside(home) as new:
        manifest = _unpack_and_check(file, new)
        may_go_on = yes or not home.exists() or _confirm_replacement(home, manifest, as_json=as_json)
        aside = _replace(home, new) if may_go_on else None
    if not may_go_on:
        say("Nothing was changed.")
    elif as_json:
        facts = {"home": str(home), "files": len(manifest.files), "kept_as": str(aside) if aside else None}
        print_json({"ok": True, **facts})
    else:
        say(f"{home} is as it was on {when(manifest.created_at)}.")
        if aside is not None:
            say(f"What was there is in {aside}; delete it when you do not need it any more.")


@contextmanager
def _alone(home: Path) -> Generator[None]:
    """No gateway begins meanwhile, and nobody was here before."""
    with ExitStack() as stack:
        if home.exists():
            try:
                stack.enter_context(claim(gateway_file(home), RUNNING))
            except OSError as fault:
                raise OperatorError(f"Cannot write into {home}: {fault.strerror}. Nothing was changed.") from fault
        _check_alone(home)
        yield


def _check_alone(home: Path) -> None:
    if Presence(home / "run").list_living():
        raise SessionBusy(f"Talaria runs on {home}, in a terminal or a program of yours; leave it there first.")


@contextmanager
def _beside(home: Path) -> Generator[Path]:
    """An empty folder on the same disk; gone afterwards, unless it has become the home. What else is there then is not
    ours to delete: it may be the only copy of the old home."""
    try:
        home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{home.name}.restoring-", dir=home.parent))
        made = folder.stat()
    except OSError as fault:
        raise OperatorError(f"Cannot unpack beside {home}: {fault.strerror}. Nothing was changed.") from fault
    try:
        yield folder
    finally:
        if folder.is_dir() and os.path.samestat(folder.stat(), made):
            shutil.rmtree(folder, ignore_errors=True)


def _unpack_and_check(file: Path, new: Path) -> BackupManifest:
    try:
        with Progress("Unpacking the backup") as show:
            manifest = unpack(file, new, show)
        problems = context.with_store(new, lambda store: store.check())  # opening brings it up to date
    except StoreDamaged as fault:
        problems, manifest = str(fault), None
    except OSError as fault:
        raise OperatorError(f"Cannot unpack {file}: {fault.strerror or fault}. Nothing was changed.") from fault
    if problems or manifest is None:
        raise BadInput(f"The conversations in {file} are damaged ({problems}). Nothing was changed.")
    return manifest


def _confirm_replacement(home: Path, manifest: BackupManifest, *, as_json: bool) -> bool:
    question = (
        f"Put the backup of {when(manifest.created_at)} ({len(manifest.files):,} files, Talaria {manifest.version}) "
        f"in the place of {home}? What is there now is kept beside it."
    )
    return confirm(question, f"{home} may be replaced", as_json=as_json)


def _replace(home: Path, new: Path) -> Path | None:
    """Where the old one is; None: there was none."""
    unpacked = new.stat()
    try:
        if not home.exists():
            new.rename(home)
            return None
        _take_along(home, new)
        os.sync()
        _check_alone(home)  # the question may have taken a while
        aside = reserve_aside(home)
        replace_home(home, new, aside)
    except OSError as fault:
        if home.is_dir() and os.path.samestat(home.stat(), unpacked):
            raise OperatorError(
                f"{home} is the backup now, but not all of the rest could be done: {fault.strerror or fault}. "
                f"What was there is in {new}; nothing was deleted."
            ) from fault
        raise OperatorError(
            f"Cannot put the backup in the place of {home}: {fault.strerror or fault}. The home is as it was; "
            "if it is a disk of its own, set TALARIA_HOME to a folder in it."
        ) from fault
    os.sync()
    return aside


def reserve_aside(home: Path) -> Path:
    """An empty folder that nobody else has, for the old home to take its place."""
    name = time.strftime(f"{home.name}.before-restore-%Y-%m-%d-%H%M%S")
    for number in count(2):
        aside = home.with_name(name)
        try:
            aside.mkdir(mode=0o700)
        except FileExistsError:
            name = f"{name.partition('+')[0]}+{number}"
        else:
            return aside
    raise AssertionError


def _take_along(home: Path, new: Path) -> None:
    """Keys that the backup does not have, and what platforms know us by: no backup has that."""
    for name in secrets_in(home):
        if (home / name).is_file() and (new / name).parent.is_dir() and not (new / name).exists():
            shutil.copy2(home / name, new / name)
    if (home / PLATFORMS).is_dir():
        shutil.copytree(home / PLATFORMS, new / PLATFORMS, symlinks=True)
