"""What every command may read: the programs and libraries of this machine, and their configuration.

Also a session's own folders where its sandbox cannot mount any: a home, one for temporary files, one for the state of
the shell.
"""

import os
import subprocess
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir

from talaria.core.trees import Root

PYTHON = os.path.realpath(sys.executable)
"""Ours, by the name that works inside a sandbox, which has no links of a virtual environment."""

TRIAL_S = 10.0
BWRAP = "/usr/bin/bwrap"
"""Not searched for: a folder on PATH may hold anything."""
_SYSTEM = ("/usr", "/opt", "/nix/store")
_LINKED = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (
    *("alternatives", "ca-certificates", "ca-certificates.conf", "fonts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d"),
    *("group", "hosts", "inputrc", "java-17-openjdk", "localtime", "mime.types", "nsswitch.conf", "passwd"),
    *("pki/ca-trust", "pki/java", "pki/tls/cert.pem", "pki/tls/certs", "pki/tls/openssl.cnf"),
    *("protocols", "services", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone"),
    *("alpine-release", "debian_version", "lsb-release", "os-release", "redhat-release"),  # pip reads them
)
"""How programs find names, certificates, libraries and the time. No folder that also contains private keys."""


def system() -> Iterator[str]:
    """Folders; some may be links to others."""
    yield from (path for path in (*_SYSTEM, *_LINKED) if Path(path).is_dir())


def etc(folder: Path = Path("/etc")) -> Iterator[str]:
    yield from (f"{folder}/{name}" for name in _ETC if (folder / name).exists())


def interpreter() -> Iterator[Path]:
    """Our own Python, if it is not the system's."""
    prefix = Path(sys.base_prefix).resolve()
    if not any(prefix.is_relative_to(path) for path in _SYSTEM):
        yield prefix


def own_code() -> tuple[Path, ...]:
    """What runs in this process, outside any sandbox: Talaria, its interpreter, and all that they import."""
    has_venv = sys.prefix != sys.base_prefix
    packages = (path for path in sys.path if path.endswith(("site-packages", "dist-packages")))
    found = (
        *(Path(__file__).parents[2], Path(os.__file__).parent, Path(PYTHON).parent),
        *((Path(sys.prefix),) if has_venv else ()),
        *interpreter(),
        *map(Path, packages),
    )
    places = dict.fromkeys(place.resolve() for place in found if place.is_dir())
    return tuple(place for place in places if places.keys().isdisjoint(place.parents))


def format_mounts(folders: Iterable[str], others: Iterable[str]) -> Iterator[str]:
    """For bubblewrap, read-only; a folder that is a link stays a link."""
    for folder in map(Path, folders):
        if folder.is_symlink():
            yield from ("--symlink", str(folder.readlink()), str(folder))
        else:
            yield from ("--ro-bind", str(folder), str(folder))
    for path in others:
        yield from ("--ro-bind", path, path)


def try_command(command: Sequence[str], pass_fds: Sequence[int] = ()) -> str | None:
    """Why a command does not work here; None: it does."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=TRIAL_S, check=False, pass_fds=pass_fds)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as fault:
        return str(fault)
    if done.returncode == 0:
        return None
    return done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"


@contextmanager
def scratch() -> Generator[Path]:
    """Resolved, because some sandboxes judge by name. Removed at the end, with all that is in it."""
    folder = Path(gettempdir()).resolve() / f"talaria-{os.urandom(8).hex()}"
    try:
        for place in (folder, folder / "home", folder / "tmp", folder / "shell"):
            place.mkdir(mode=0o700)
        yield folder
    finally:
        with suppress(OSError), Root.open(folder.parent) as around:
            around.remove_tree(folder.name)


def scratch_variables(folder: Path) -> dict[str, str]:
    """The variables by which commands find these folders."""
    return {"HOME": f"{folder}/home", "TMPDIR": f"{folder}/tmp", "GIT_CONFIG_NOSYSTEM": "1"}  # noqa: S108
