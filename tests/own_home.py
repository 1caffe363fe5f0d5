"""A home for the tests of this process, so that whoever runs them keeps theirs as it is.

It is made when this is imported, before anything asks where the home is. It is apart from `/tmp`, where the projects of
the tests are. A sandbox that shows it fails the escape tests, as it would with any other home.
"""

import os
import shutil
import tempfile
from pathlib import Path

_RUNNERS = "TEST_RUNNERS_HOME"
RUNNERS_HOME = Path(os.environ.get(_RUNNERS) or os.environ.get("HOME") or "/nonexistent")
"""Only for npm's settings, which are read when a package is installed."""
_LEADING_ELSEWHERE = (
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"),  # without them all is below the home
    *("TALARIA_HOME", "HERMES_HOME", "GIT_CONFIG_GLOBAL", "GNUPGHOME"),
)
_made_by = os.getpid()
_home = Path(tempfile.mkdtemp(prefix="talaria-tests-", dir="/var/tmp")).resolve()


def remove_home() -> None:
    if os.getpid() == _made_by:
        shutil.rmtree(_home, ignore_errors=True)


def _move_in() -> None:
    os.environ[_RUNNERS] = str(RUNNERS_HOME)
    os.environ["HOME"] = str(_home)
    for name in _LEADING_ELSEWHERE:
        os.environ.pop(name, None)
    running = _home / "run"  # short: there are sockets in it
    running.mkdir(mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(running)


_move_in()
