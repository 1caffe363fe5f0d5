"""Copies a plugin into the home, from a folder or a Git repository. Nothing of it is run."""

import os
import re
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from talaria.core.errors import BadInput, OperatorError
from talaria.plugins.consent import CACHE, SKIPPED
from talaria.plugins.discovery import BadManifest, PluginManifest, is_file, manifest_file, read_manifest
from talaria.plugins.plugin_host import LeadsElsewhere, copy_folder

CLONE_S = 120
AFTER = "after-install.md"
NOT_COPIED = SKIPPED | {CACHE}
_AT_GITHUB = re.compile(r"([\w-]+/[\w.-]+)(?:/([\w./-]+))?")


def install_plugin(source: str, root: Path, *, replace: bool) -> tuple[Path, PluginManifest]:
    """Into `root`, under its own name. `replace`: in place of the one that has that name."""
    with _fetch(source) as folder:
        if manifest_file(folder) is None:
            raise BadInput(f"{source} is not a plugin: it has no plugin.yaml.")
        try:
            manifest = read_manifest(folder)
        except BadManifest as problem:
            raise BadInput(f"{source} is not a plugin: {problem}.") from problem
        if not is_file(folder / "__init__.py"):
            raise BadInput(f"{source} is not a plugin: it has no __init__.py.")
        # Others chose the name: only its harmless characters are used.
        name = "".join(char if char.isalnum() or char in "-_" else "-" for char in manifest.name).strip("-")
        if not name:
            raise BadInput(f"{manifest.name!r} cannot be the name of a plugin.")
        target = root / name
        if target.exists() and not replace:
            raise BadInput(f"Plugin {manifest.name} is already installed; --force replaces it.")
        _copy(folder, target)
    return target, manifest


@contextmanager
def _fetch(source: str) -> Generator[Path]:
    try:
        path = Path(source).expanduser()
        folder = path.resolve() if path.is_dir() else None
    except (OSError, RuntimeError, ValueError):  # it is not a path at all
        folder = None
    if folder is not None:
        yield folder
        return
    named = _AT_GITHUB.fullmatch(source)
    if "://" in source or source.startswith("git@") or source.endswith(".git"):
        address, _, inner = source.partition("#")
    elif named is not None:  # `OWNER/NAME[/FOLDER]`
        address, inner = f"https://github.com/{named[1]}.git", named[2] or ""
    else:
        raise BadInput(f"{source} is neither a folder nor the address of a Git repository.")
    with TemporaryDirectory(prefix="talaria-plugin-") as temporary:
        clone = Path(temporary) / (address.rstrip("/").rpartition("/")[2].removesuffix(".git") or "plugin")
        _clone(address, clone)
        found = (clone / inner).resolve()
        if not found.is_relative_to(clone.resolve()) or not found.is_dir():
            raise BadInput(f"{address} has no folder {inner}.")
        yield found


def _clone(source: str, folder: Path) -> None:
    git = shutil.which("git")
    if git is None:
        raise OperatorError("Installing from a repository needs Git, which was not found; install it.")
    if source.startswith("-") or source.partition("::")[1]:
        raise BadInput(f"{source} is not the address of a Git repository.")
    command = [git, "clone", "--quiet", "--depth", "1", "--", source, str(folder)]
    try:
        done = subprocess.run(  # noqa: S603  (an address that the person typed, after `--`)
            command,
            capture_output=True,
            text=True,
            timeout=CLONE_S,
            stdin=subprocess.DEVNULL,
            check=False,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
        )
    except subprocess.TimeoutExpired as fault:
        raise OperatorError(f"{source} could not be cloned within {CLONE_S} seconds.") from fault
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise OperatorError(f"{source} cannot be fetched: {said[-1] if said else 'Git gives no reason'}.")


def _copy(folder: Path, target: Path) -> None:
    """All or nothing; links that lead to a folder, or out of this one, are refused."""
    arriving, leaving = (target.with_name(f".{target.name}.{word}") for word in ("new", "old"))
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _delete(arriving)
        copy_folder(folder, arriving, skipped=NOT_COPIED)
        _delete(leaving)
        if target.is_symlink() or target.exists():
            target.rename(leaving)
        try:
            arriving.rename(target)
        except OSError:
            if leaving.is_symlink() or leaving.exists():
                leaving.rename(target)
            raise
        _delete(leaving)
    except LeadsElsewhere as link:
        _delete(arriving)
        raise BadInput(f"{link} in the plugin is a link to a folder, or leads out of it.") from link
    except OSError as fault:
        _delete(arriving)
        raise OperatorError(f"Cannot write {target}: {fault}.") from fault


def _delete(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
