"""Programs that run as a user who is not root, with our Python and our source."""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

import talaria

NOBODY = str(61_000 + os.getpid() % 1_000)
"""Nobody else is that user: how many processes one may have is counted by user, also when tests run side by side."""
AS_NOBODY = """\
set -e
mount --bind "$1" "$2/python"
mount -t tmpfs -o mode=755,size=1m none "$3"
mkdir -p "$1"
mount --bind "$2/python" "$1"
shift 3
exec setpriv --reuid {uid} --regid {uid} --clear-groups "$@"
"""
"""Our Python may lie in a home that nobody else can enter: then that home shows nothing but this Python."""

only_as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")


class User(NamedTuple):
    home: Path
    before: tuple[str, ...]
    """The words in front of their command."""

    @property
    def folder(self) -> Path:
        """To work in."""
        return self.home / "agent"

    def run(self, *words: str) -> str:
        """A program for Python; returns what it prints."""
        source = str(Path(str(talaria.__file__)).parents[1])
        libraries = (source, *(path for path in sys.path if "site-packages" in path))
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "PYTHONPATH": os.pathsep.join(libraries)}
        python = os.path.realpath(sys.executable)
        done = subprocess.run(
            (*self.before, python, "-B", *words), env=environment, cwd="/", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def a_user() -> Generator[User]:
    with TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        user = User(place / "home", ("setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"))
        for made in (place / "python", user.home, user.folder):
            made.mkdir()
            os.chown(made, int(NOBODY), int(NOBODY))
        place.chmod(0o755)
        prefix = Path(sys.base_prefix).resolve()
        if prefix.is_relative_to("/root"):
            inside = ("unshare", "--mount", "--propagation", "private", "sh", "-c", AS_NOBODY.format(uid=NOBODY), "sh")
            user = User(user.home, (*inside, str(prefix), str(place), "/root"))
        yield user
