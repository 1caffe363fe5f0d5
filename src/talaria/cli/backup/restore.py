"""`talaria restore`: replace the home with a backup, which is unpacked beside it and checked first.

Where the kernel can exchange two names in one step, a complete home is in place whenever a crash strikes; elsewhere
there may be none for a moment, with both complete beside it.
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
from talaria.core.errors import BadInput, OperatorError, SessionBusy, StoreDamaged
from talaria.core.text import show_time
from talaria.gateway.claims import claim, gateway_file
from talaria.store.sqlite.presence import Presence

PROFILES = "profiles"

_AT_FDCWD = -100
_SWAP = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def replace_home(home: Path, new: Path, aside: Path) -> None:
    """Moves the old home to `aside`. The homes of other profiles inside it stay where they are."""
    has_profiles = (home / PROFILES).is_dir()
    if has_profiles:  # a link to where the old ones will be once the homes are exchanged
        (new / PROFILES).symlink_to(new / PROFILES)
    _exchange(home, new)
    if has_profiles:
        _exchange(home / PROFILES, new / PROFILES)
        (new / PROFILES).unlink()
    new.rename(aside)


def _exchange(one: Path, other: Path) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    names = (os.fsencode(one), os.fsencode(other))
    try:
        if sys.platform == "darwin":
            failed = library.renamex_np(*names, _SWAP)
        else:
            failed = library.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _SWAP)
    except AttributeError:  # this C library does not have it
        code = errno.ENOSYS
    else:
        code = ctypes.get_errno() if failed else 0
    if not code:
        return
    if code not in _CANNOT:
        raise OSError(code, os.strerror(code), str(one))
    between = one.with_name(f"{one.name}.{os.urandom(4).hex()}")
    one.rename(between)
    try:
        other.rename(one)
    except OSError:
        between.rename(one)
        raise
    between.rename(other)


PLATFORMS = "platforms"
RUNNING = "A gateway is running on this home; stop it first: talaria gateway stop"


@click.command("restore", help="Restore the home from the backup in FILE; the current home is kept beside it.")
@click.argument("file", type=click.Path(path_type=Path))
@yes_option
@json_option
@click.pass_context
def command(ctx: click.Context, file: Path, yes: bool, as_json: bool) -> None:
    home = context.home(ctx).resolve()
    with ExitStack() as stack:
        if home.exists():
            try:
                stack.enter_context(claim(gateway_file(home), RUNNING))  # none can start meanwhile
            except OSError as fault:
                raise OperatorError(f"Cannot write into {home}: {fault.strerror}. Nothing was changed.") from fault
        _check_unused(home)
        new = stack.enter_context(_folder_beside(home))
        manifest = _unpack_and_check(file, new)
        is_agreed = yes or not home.exists()
        if not is_agreed:
            question = (
                f"Replace {home} with the backup of {show_time(manifest.created_at)} ({len(manifest.files):,} files, "
                f"Talaria {manifest.version})? The current home is kept beside it."
            )
            is_agreed = confirm(question, f"{home} may be replaced", as_json=as_json)
        aside = _replace(home, new) if is_agreed else None
    if not is_agreed:
        say("Nothing was changed.")
    elif as_json:
        facts = {"home": str(home), "files": len(manifest.files), "kept_as": str(aside) if aside else None}
        print_json({"ok": True, **facts})
    else:
        say(f"{home} is as it was on {show_time(manifest.created_at)}.")
        if aside is not None:
            say(f"The previous home is in {aside}; delete it when you no longer need it.")


def _check_unused(home: Path) -> None:
    if Presence(home / "run").list_living():
        raise SessionBusy(f"Talaria is running on {home}, in a terminal or one of your programs; quit it there first.")


@contextmanager
def _folder_beside(home: Path) -> Generator[Path]:
    """An empty folder on the same disk; removed afterwards, unless it has become the home. Whatever else is in its
    place by then is not ours to delete: it may be the only copy of the old home."""
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
        problems = context.with_store(new, lambda store: store.check())  # opening it migrates it
    except StoreDamaged as fault:
        problems, manifest = str(fault), None
    except OSError as fault:
        raise OperatorError(f"Cannot unpack {file}: {fault.strerror or fault}. Nothing was changed.") from fault
    if problems or manifest is None:
        raise BadInput(f"The conversations in {file} are damaged ({problems}). Nothing was changed.")
    return manifest


def _replace(home: Path, new: Path) -> Path | None:
    """Returns where the old home is now; None: there was none."""
    unpacked = new.stat()
    try:
        if not home.exists():
            new.rename(home)
            return None
        for name in secrets_in(home):  # if the backup does not have them
            if (home / name).is_file() and (new / name).parent.is_dir() and not (new / name).exists():
                shutil.copy2(home / name, new / name)
        if (home / PLATFORMS).is_dir():  # logins, which no backup has
            shutil.copytree(home / PLATFORMS, new / PLATFORMS, symlinks=True)
        os.sync()
        _check_unused(home)  # the question may have taken a while
        aside = reserve_aside(home)
        replace_home(home, new, aside)
    except OSError as fault:
        if home.is_dir() and os.path.samestat(home.stat(), unpacked):
            raise OperatorError(
                f"{home} is now the backup, but the rest failed: {fault.strerror or fault}. "
                f"The previous home is in {new}; nothing was deleted."
            ) from fault
        raise OperatorError(
            f"Cannot replace {home} with the backup: {fault.strerror or fault}. The home is unchanged; "
            "if it is a mount point, set TALARIA_HOME to a folder inside it."
        ) from fault
    os.sync()
    return aside


def reserve_aside(home: Path) -> Path:
    """Makes an empty folder with a new name, to be replaced by the old home."""
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
