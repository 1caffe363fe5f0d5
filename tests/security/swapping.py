"""A hostile process that exchanges a folder with a link, as fast as it can, in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_SWAPPER = """\
import ctypes, os, sys
exchange = ctypes.CDLL(None).renameat2
names = (-100, os.fsencode(sys.argv[1]), -100, os.fsencode(sys.argv[2]), 2)  # AT_FDCWD, RENAME_EXCHANGE
if exchange(*names):
    sys.exit("this file system cannot exchange two names")
print("on", flush=True)
while os.getppid() == int(sys.argv[3]):
    exchange(*names)
"""


@contextmanager
def swapping(folder: Path, elsewhere: Path, beside: Path | None = None) -> Generator[None]:
    """`folder` is by turns itself and a link to `elsewhere`. The other of the two is in `beside`, or next to it."""

    link = (beside or folder.parent) / "link-itself"
    link.symlink_to(elsewhere)
    words = (sys.executable, "-I", "-S", "-c", _SWAPPER, folder, link, str(os.getpid()))
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as swapper:
        try:
            assert swapper.stdout is not None
            assert swapper.stdout.readline() == "on\n"
            yield
        finally:
            swapper.kill()
