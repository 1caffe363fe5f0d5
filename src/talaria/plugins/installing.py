"""Brings a plugin's folder into the home, from a folder or a Git repository. Nothing of it is run."""

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
    """Into `root`, under its own name. `replace`: in place of what is there."""
    with _fetch(source) as folder:
        manifest = _check(folder, source)
        target = root / _folder_name(manifest.name)
        if target.exists() and not replace:
            raise BadInput(f"Plugin {manifest.name} is there already; --force puts this one in its place.")
        _copy(folder, target)
    return target, manifest


@contextmanager
def _fetch(source: str) -> Generator[Path]:
    folder = _folder(source)
    if folder is not None:
        yield folder
        return
    address, inner = _repository(source)
    with TemporaryDirectory(prefix="talaria-plugin-") as temporary:
        clone = Path(temporary) / _name_in(address)
        _clone(address, clone)
        found = (clone / inner).resolve()
        if not found.is_relative_to(clone.resolve()) or not found.is_dir():
            raise BadInput(f"{address} has no folder {inner}.")
        yield found


def _folder(source: str) -> Path | None:
    try:
        folder = Path(source).expanduser()
        return folder.resolve() if folder.is_dir() else None
    except (OSError, RuntimeError, ValueError):  # no path at all
        return None


def _repository(source: str) -> tuple[str, str]:
    """Its address and, behind `#`, the folder in it; `OWNER/NAME[/FOLDER]` is one at GitHub."""
    if "://" in source or source.startswith("git@") or source.endswith(".git"):
        address, _, inner = source.partition("#")
        return address, inner
    named = _AT_GITHUB.fullmatch(source)
    if named is None:
        raise BadInput(f"{source} is neither a folder nor the address of a Git repository.")
    return f"https://github.com/{named[1]}.git", named[2] or ""


def _clone(source: str, folder: Path) -> None:
    git = shutil.which("git")
    if git is None:
        raise OperatorError("Git is needed to install from a repository, and is not there; install it.")
    if source.startswith("-") or source.partition("::")[1]:
        raise BadInput(f"{source} is no address of a Git repository.")
    command = [git, "clone", "--quiet", "--depth", "1", "--", source, str(folder)]
    try:
        done = subprocess.run(  # noqa: S603  (an address that the person typed, behind `--`)
            command,
            capture_output=True,
            text=True,
            timeout=CLONE_S,
            stdin=subprocess.DEVNULL,
            check=False,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
        )
    except subprocess.TimeoutExpired as fault:
        raise OperatorError(f"{source} did not arrive within {CLONE_S} seconds.") from fault
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise OperatorError(f"{source} cannot be fetched: {said[-1] if said else 'Git does not say why'}.")


def _name_in(source: str) -> str:
    return source.rstrip("/").rpartition("/")[2].removesuffix(".git") or "plugin"


def _check(folder: Path, source: str) -> PluginManifest:
    if manifest_file(folder) is None:
        raise BadInput(f"{source} is no plugin: it has no plugin.yaml.")
    try:
        manifest = read_manifest(folder)
    except BadManifest as problem:
        raise BadInput(f"{source} is no plugin: {problem}.") from problem
    if not is_file(folder / "__init__.py"):
        raise BadInput(f"{source} is no plugin: it has no __init__.py.")
    return manifest


def _folder_name(name: str) -> str:
    """A name may be anybody's choice: only its harmless signs count."""
    safe = "".join(sign if sign.isalnum() or sign in "-_" else "-" for sign in name).strip("-")
    if not safe:
        raise BadInput(f"{name!r} is no name for a plugin.")
    return safe


def _copy(folder: Path, target: Path) -> None:
    """Whole or not at all; links that lead to a folder, or out of this one, are refused."""
    arriving, leaving = (target.with_name(f".{target.name}.{word}") for word in ("new", "old"))
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _delete(arriving)
        copy_folder(folder, arriving, skipped=NOT_COPIED)
        _take_place(arriving, target, leaving)
    except LeadsElsewhere as link:
        _delete(arriving)
        raise BadInput(f"{link} in the plugin is a link to a folder, or leads out of it.") from link
    except OSError as fault:
        _delete(arriving)
        raise OperatorError(f"Cannot write {target}: {fault}.") from fault


def _take_place(arriving: Path, target: Path, leaving: Path) -> None:
    """The one that was there is moved aside, and comes back if the new one cannot take its place."""
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


def _delete(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
