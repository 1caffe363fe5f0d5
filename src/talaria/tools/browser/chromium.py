"""Which Chromium is used, and what it sees of this machine. It is the system's own; none is ever downloaded.

Inside bubblewrap it sees programs, fonts and certificates, and nothing of the person; its own sandbox works there too,
also for root. Where bubblewrap does not work it runs as it is, and for root without its sandbox, which it would refuse.
"""

import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from talaria.tools.sandbox.system import BWRAP, mounted

PLACES = (
    *("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome-stable", "/usr/bin/google-chrome"),
    *("/opt/google/chrome/chrome", "/run/current-system/sw/bin/chromium"),
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
TRIAL_S = 20.0
MAX_SCRATCH_BYTES = 1 << 30
ENVIRONMENT: Mapping[str, str] = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}  # noqa: S108
"""All of it; outside of bubblewrap its home is the person's."""

_SYSTEM = ("/usr", "/opt", "/nix/store", "/run/current-system", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_ETC = (
    *("alternatives", "ca-certificates", "chromium", "chromium.d", "fonts", "ld.so.cache", "localtime"),
    *("opt/chrome", "pki", "ssl/certs"),
)


def installed() -> Path | None:
    return next((Path(place) for place in PLACES if os.access(place, os.X_OK)), None)


def confined(program: Path, folder: Path) -> Path | None:
    """A program in `folder` that runs this one in bubblewrap; None where that does not work, found out by trying."""
    command = (*confinement(), str(program))
    wrapper = folder / "chromium"
    # Of a repeated option the last one counts: the profile is kept in memory, whatever is said before.
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@" --user-data-dir=/tmp/profile\n')
    wrapper.chmod(0o700)
    try:
        subprocess.run((wrapper, "--version"), capture_output=True, timeout=TRIAL_S, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return wrapper


def confinement() -> tuple[str, ...]:
    """What stands before a command that is to see only this."""
    return (BWRAP, *_view(), "--")


def _view() -> Iterator[str]:
    yield from ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
    yield from ("--uid", "1000", "--gid", "1000", "--cap-drop", "ALL", "--die-with-parent", "--new-session")
    yield from mounted(filter(os.path.isdir, _SYSTEM), (f"/etc/{name}" for name in _ETC if Path("/etc", name).exists()))
    size = str(MAX_SCRATCH_BYTES)
    yield from ("--proc", "/proc", "--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm")  # noqa: S108
    yield from ("--size", size, "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/")  # noqa: S108
    yield "--clearenv"
    for name, value in ENVIRONMENT.items():
        yield from ("--setenv", name, value)
