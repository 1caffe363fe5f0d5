"""What every command may read: the programs and libraries of this machine, and how they are set up."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

PYTHON = os.path.realpath(sys.executable)
"""Ours, as it is called inside of a sandbox, where no link of a virtual environment is."""

_SYSTEM = ("/usr", "/opt", "/nix/store")
_LINKED = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (
    *("alternatives", "ca-certificates", "ca-certificates.conf", "fonts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d"),
    *("group", "hosts", "inputrc", "java-17-openjdk", "localtime", "mime.types", "nsswitch.conf", "passwd", "pki"),
    *("protocols", "services", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone"),
)
"""How programs find names, certificates, libraries and the time."""


def system() -> Iterator[str]:
    """Folders; some of them may be links to others."""
    yield from (path for path in (*_SYSTEM, *_LINKED) if Path(path).is_dir())


def etc() -> Iterator[str]:
    yield from (f"/etc/{name}" for name in _ETC if Path("/etc", name).exists())


def interpreter() -> Iterator[Path]:
    """Ours, where it is not the system's."""
    prefix = Path(sys.base_prefix).resolve()
    if not any(prefix.is_relative_to(path) for path in _SYSTEM):
        yield prefix
