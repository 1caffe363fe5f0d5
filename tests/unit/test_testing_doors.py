"""`talaria.testing` is for authors of tools: its doors open by their plain names, and cost nothing unused."""

import subprocess
import sys

import pytest

from talaria import testing
from talaria.testing import Disk, ModelServer
from talaria.testing.powercut import Disk as Defined
from talaria.testing.servers.model_server import ModelServer as AlsoDefined


def modules_after(work: str) -> set[str]:
    script = f"import sys\n{work}\nprint(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(ended.stdout.split())


def test_doors_open_what_the_modules_define() -> None:
    assert (ModelServer, Disk) == (AlsoDefined, Defined)


def test_every_door_that_is_announced_opens() -> None:
    assert all(hasattr(testing, name) for name in testing.__all__)
    assert set(testing.__all__) <= set(dir(testing))


def test_unknown_door_is_told() -> None:
    with pytest.raises(AttributeError, match=r"module 'talaria\.testing' has no attribute 'ModelSever'"):
        getattr(testing, "ModelSever")  # noqa: B009  (the type checker knows that it is not there)


@pytest.mark.parametrize("work", ["import talaria.testing", "from talaria.testing import ModelServer, Reply, call"])
def test_importing_is_cheap(work: str) -> None:
    assert not modules_after(work) & {"apsw", "aiohttp", "msgspec"}
