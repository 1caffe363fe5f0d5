"""Brings a plugin's folder into the home, from a folder or a Git repository. Nothing of it is run."""

import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from talaria.model.errors import BadInput, OperatorError
from talaria.plugins.consent import SKIPPED
from talaria.plugins.manifest import BadManifest, Manifest, read_manifest

CLONE_S = 120
AFTER = "after-install.md"


def installed(source: str, root: Path, *, replace: bool) -> tuple[Path, Manifest]:
    """Into `root`, under its own name. `replace`: in place of what is there."""
    with _fetched(source) as folder:
        manifest = _checked(folder, source)
        target = root / _folder_name(manifest.name)
        if target.exists() and not replace:
            raise BadInput(f"Plugin {manifest.name} is there already; --force puts this one in its place.")
        _copy(folder, target)
    return target, manifest


def is_repository(source: str) -> bool:
    return "://" in source or source.startswith("git@") or source.endswith(".git")


@contextmanager
def _fetched(source: str) -> Generator[Path]:
    if not is_repository(source):
        folder = Path(source).expanduser()
        if not folder.is_dir():
            raise BadInput(f"{source} is neither a folder nor the address of a Git repository.")
        yield folder.resolve()
        return
    with TemporaryDirectory(prefix="talaria-plugin-") as temporary:
        folder = Path(temporary) / _name_in(source)
        _clone(source, folder)
        yield folder


def _clone(source: str, folder: Path) -> None:
    git = shutil.which("git")
    if git is None:
        raise OperatorError("Git is needed to install from a repository, and is not there; install it.")
    if source.startswith("-") or source.partition("::")[1]:
        raise BadInput(f"{source} is no address of a Git repository.")
    command = [git, "clone", "--quiet", "--depth", "1", "--", source, str(folder)]
    try:
        done = subprocess.run(  # noqa: S603  (an address that the person typed, behind `--`)
            command, capture_output=True, text=True, timeout=CLONE_S, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired as fault:
        raise OperatorError(f"{source} did not arrive within {CLONE_S} seconds.") from fault
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise OperatorError(f"{source} cannot be fetched: {said[-1] if said else 'Git does not say why'}.")


def _name_in(source: str) -> str:
    return source.rstrip("/").rpartition("/")[2].removesuffix(".git") or "plugin"


def _checked(folder: Path, source: str) -> Manifest:
    try:
        manifest = read_manifest(folder)
    except BadManifest as problem:
        raise BadInput(f"{source} is no plugin: {problem}.") from problem
    if not (folder / "__init__.py").is_file():
        raise BadInput(f"{source} is no plugin: it has no __init__.py.")
    return manifest


def _folder_name(name: str) -> str:
    """A name may be anybody's choice: only its harmless signs count."""
    safe = "".join(sign if sign.isalnum() or sign in "-_" else "-" for sign in name).strip("-")
    if not safe:
        raise BadInput(f"{name!r} is no name for a plugin.")
    return safe


def _copy(folder: Path, target: Path) -> None:
    """Whole or not at all; links that lead out of the folder are refused."""
    for entry in folder.rglob("*"):
        if entry.is_symlink() and not entry.resolve().is_relative_to(folder):
            raise BadInput(f"{entry.relative_to(folder)} in the plugin leads to a file outside of it.")
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    arriving = target.with_name(f".{target.name}.new")
    shutil.rmtree(arriving, ignore_errors=True)
    try:
        shutil.copytree(folder, arriving, ignore=lambda _, names: [name for name in names if name in SKIPPED])
        if target.exists():
            shutil.rmtree(target)
        arriving.replace(target)
    except OSError as fault:
        shutil.rmtree(arriving, ignore_errors=True)
        raise OperatorError(f"Cannot write {target}: {fault}.") from fault
