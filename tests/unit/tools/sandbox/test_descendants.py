"""Ending whatever a command has left behind."""

import subprocess
import sys

import pytest

SWEEPING = """
import os, signal
from talaria.tools.sandbox.host.descendants import adopt_orphans, sweep

adopt_orphans()
spared = os.fork()
if spared == 0:
    os._exit(7)
os.waitid(os.P_PID, spared, os.WEXITED | os.WNOWAIT)
if os.fork() == 0:
    signal.pause()
print(sweep(spared=[spared])[spared])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists descendants in /proc")
def test_the_exit_code_of_a_child_that_is_spared_is_not_lost() -> None:
    """Else the tool host would wait for its command for ever."""
    ran = subprocess.run([sys.executable, "-c", SWEEPING], capture_output=True, text=True, check=False)
    assert ran.stdout == "7\n", ran.stderr
