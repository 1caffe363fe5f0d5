"""How many inotify and fanotify watches a strict sandbox may take: never more than half of what the person has.

The kernel counts them by user and user namespace, up to the outermost one, so a limit in the sandbox's own namespace
leaves the rest to the person. Only who has rights over that namespace can set it; bubblewrap itself can enter it.
"""

import logging
import os
import subprocess
from contextlib import suppress
from pathlib import Path

from talaria.tools.sandbox.system import BWRAP, TRIAL_S

LIMITS = {
    "max_inotify_instances": 64,
    "max_inotify_watches": 100_000,
    "max_fanotify_groups": 64,
    "max_fanotify_marks": 100_000,
}
"""Enough for the watchers of editors and build tools."""
_SETTINGS = Path("/proc/sys/user")

log = logging.getLogger(__name__)


def limit_watches(bwrap: int) -> None:
    """In the sandbox of this process, which has begun. Where it cannot be done, the sandbox works without it."""
    lines: list[str] = []
    for name, most in LIMITS.items():
        with suppress(OSError, ValueError):  # older kernels have fewer of them
            lines.append(f"echo {min(most, int((_SETTINGS / name).read_text()) // 2)} > {_SETTINGS / name}")
    try:
        inside = Path(f"/proc/{bwrap}/task/{bwrap}/children").read_text().split()[0]
        namespace = os.open(f"/proc/{inside}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, IndexError) as fault:
        log.warning("inotify watches of commands are not limited: %s", fault)
        return
    try:
        entered = (BWRAP, "--userns", str(namespace), "--bind", "/", "/", "--cap-add", "CAP_SYS_RESOURCE")
        done = subprocess.run(  # noqa: S603
            (*entered, "/bin/sh", "-ec", "\n".join(lines)),
            pass_fds=(namespace,),
            env={},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TRIAL_S,
            check=False,
        )
        if done.returncode != 0:
            log.warning("inotify watches of commands are not limited: %s", done.stderr.decode("utf-8", "replace")[:500])
    except (OSError, subprocess.SubprocessError) as fault:
        log.warning("inotify watches of commands are not limited: %s", fault)
    finally:
        os.close(namespace)
