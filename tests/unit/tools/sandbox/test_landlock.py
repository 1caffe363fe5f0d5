"""Landlock, for real: a process shuts itself in, and then tries what it should not and what it should be able to do."""

import errno
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from talaria.tools.sandbox.host import landlock

SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives", "/etc/passwd", "/proc")
NOBODY = 65534
HERE = """
import json, os, pathlib, signal, socket, subprocess, sys, warnings
given = json.loads(sys.argv[1])
restrict(given["readable"], given["writable"])
place = pathlib.Path(given["place"])
"""
needs_landlock = pytest.mark.skipif(landlock.abi() < 1, reason="this kernel has no Landlock")


def since(version: int) -> pytest.MarkDecorator:
    return pytest.mark.skipif(landlock.abi() < version, reason=f"Landlock here is older than ABI {version}")


class Cell:
    """A place with a folder to write in, one to read, one to stay out of; code that runs shut in there."""

    def __init__(self, place: Path, user: int | None) -> None:
        self.place = place
        self._user = user
        for name in ("in", "seen", "out"):
            folder = place / name
            folder.mkdir()
            (folder / "file").write_text(name)
        if user is not None:
            for path in (place, *place.rglob("*")):
                os.chown(path, user, user)

    def run(self, code: str, *, readable: tuple[str, ...] = ("seen",), writable: tuple[str, ...] = ("in",)) -> str:
        """What it printed, or why it failed."""
        given = {
            "readable": [*SYSTEM, *(str(self.place / name) for name in readable)],
            "writable": [str(self.place / name) for name in writable],
            "place": str(self.place),
        }
        source = Path(landlock.__file__).read_text() + HERE + code
        done = subprocess.run(
            [sys.executable if self._user is None else "/usr/bin/python3", "-I", "-S", "-c", source, json.dumps(given)],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            user=self._user,
            group=self._user,
            extra_groups=None if self._user is None else (),
        )
        return done.stdout.strip() if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


@pytest.fixture(params=["ourselves", "nobody"])
def cell(request: pytest.FixtureRequest) -> Iterator[Cell]:
    user = NOBODY if request.param == "nobody" else None
    if user is not None and (os.getuid() != 0 or not Path("/usr/bin/python3").exists()):
        pytest.skip("only root can become somebody else")
    with tempfile.TemporaryDirectory() as place:
        yield Cell(Path(place).resolve(), user)


REFUSED = "[Errno 13] Permission denied"


@needs_landlock
def test_what_is_named_is_read_and_written(cell: Cell) -> None:
    assert cell.run("print((place / 'seen/file').read_text(), (place / 'in/file').read_text())") == "seen in"
    assert cell.run("(place / 'in/new').write_text('x'); (place / 'in/new').unlink(); print('done')") == "done"
    assert cell.run("(place / 'in/folder').mkdir(); (place / 'in/folder').rmdir(); print('done')") == "done"


FORBIDDEN = (
    "(place / 'out/file').read_text()",
    "(place / 'out/file').write_text('x')",
    "(place / 'out/file').unlink()",
    "(place / 'out/new').touch()",
    "(place / 'out/new').mkdir()",
    "(place / 'out/new').symlink_to('x')",
    "os.mkfifo(place / 'out/new')",
    "os.listdir(place / 'out')",
    "os.listdir(place)",
    "(place / 'seen/file').write_text('x')",
    "(place / 'seen/new').touch()",
    "(place / 'seen/file').unlink()",
    "(place / 'in/link').symlink_to(place / 'out/file'); (place / 'in/link').write_text('x')",
    "os.link(place / 'in/file', place / 'out/new')",
    "os.link(place / 'out/file', place / 'in/new')",
    "os.rename(place / 'in/file', place / 'out/new')",
    "os.rename(place / 'out/file', place / 'in/new')",
    "open('/etc/hostname').read()",
    "open('/dev/pts/ptmx', 'w')",
)


@needs_landlock
def test_all_else_is_refused(cell: Cell) -> None:
    code = f"""
for code in {FORBIDDEN}:
    try:
        exec(code)
        print(code)
    except OSError as fault:
        print(fault.strerror)
"""
    assert {*cell.run(code).splitlines()} <= {"Permission denied", "Invalid cross-device link"}
    for name in ("in", "seen", "out"):
        assert (cell.place / name / "file").read_text() == name


@since(3)
@pytest.mark.parametrize("code", ["os.truncate(path, 0)", "os.open(path, os.O_RDONLY | os.O_TRUNC)"])
def test_truncating_is_refused(cell: Cell, code: str) -> None:
    assert REFUSED in cell.run(f"path = place / 'seen/file'; {code}")
    assert (cell.place / "seen/file").read_text() == "seen"
    assert cell.run(f"path = place / 'in/file'; {code}; print(path.stat().st_size)") == "0"


@since(2)
def test_files_are_moved_between_what_is_writable(cell: Cell) -> None:
    moving = "(place / 'in/file').rename(place / 'out/moved'); print('done')"
    assert cell.run(moving, writable=("in", "out")) == "done"
    assert (cell.place / "out/moved").read_text() == "in"


@needs_landlock
def test_roots_may_be_links_files_or_missing(cell: Cell) -> None:
    (cell.place / "link").symlink_to("seen")
    reading = "print((place / 'link/file').read_text(), (place / 'out/file').read_text())"
    assert cell.run(reading, readable=("link", "out/file", "missing", "seen/file/below")) == "seen out"
    writing = "(place / 'out/file').write_text('x'); print('done')"
    assert cell.run(writing, writable=("in", "out/file", "missing")) == "done"
    assert REFUSED in cell.run("(place / 'out/new').touch()", writable=("in", "out/file"))


@needs_landlock
def test_programs_run_and_are_shut_in_as_well(cell: Cell) -> None:
    code = f"""
for command in ("cat seen/file", "cat out/file", "/lib64/../bin/sh -c 'echo x > in/new'"):
    print(subprocess.run(["/bin/sh", "-c", f"cd {cell.place}/in && cd .. && {{command}}"], stderr=-1).returncode)
"""
    assert cell.run(code).split() == ["seen0", "1", "0"]
    assert (cell.place / "in/new").read_text() == "x\n"


@needs_landlock
def test_devices_that_everybody_needs_are_there(cell: Cell) -> None:
    code = """
for device in ("null", "zero", "full", "random", "urandom"):
    with open(f"/dev/{device}", "r+b", buffering=0) as file:
        file.read(1)
        file.write(b"x") if device != "full" else None
subprocess.run(["/bin/sh", "-c", "echo done | cat /dev/stdin 2> /dev/null"])
"""
    assert cell.run(code) == "done"


@needs_landlock
@pytest.mark.skipif(os.getuid() != 0, reason="others cannot make devices anyway")
@pytest.mark.parametrize(("kind", "number"), [("S_IFCHR", (1, 3)), ("S_IFBLK", (7, 0))])
def test_devices_are_made_nowhere(cell: Cell, kind: str, number: tuple[int, int]) -> None:
    told = cell.run(f"import stat; os.mknod(place / 'in/device', stat.{kind}, os.makedev(*{number}))")
    assert told.startswith(f"PermissionError: {REFUSED}")


@needs_landlock
@pytest.mark.skipif(os.getuid() != 0, reason="others have no capabilities anyway")
def test_capabilities_are_given_up_for_good(cell: Cell) -> None:
    code = 'subprocess.run(["/bin/sh", "-c", "grep -h -e CapEff -e CapPrm -e NoNewPrivs /proc/self/status"])'
    assert cell.run(code).split() == ["CapPrm:", "0" * 16, "CapEff:", "0" * 16, "NoNewPrivs:", "1"]


@needs_landlock
def test_environment_of_others_is_not_read(cell: Cell) -> None:
    code = f"print(len(open('/proc/self/environ').read()) > 0); open('/proc/{os.getpid()}/environ').read()"
    assert cell.run(code).startswith("PermissionError")
    assert cell.run(code.partition(";")[0]) == "True"


@since(4)
def test_tcp_is_refused(cell: Cell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connecting = f"socket.create_connection(('127.0.0.1', {server.getsockname()[1]}))"
        assert cell.run(connecting).startswith(f"PermissionError: {REFUSED}")
    assert cell.run("socket.create_server(('127.0.0.1', 0))").startswith(f"PermissionError: {REFUSED}")


@since(6)
def test_abstract_sockets_and_processes_outside_are_not_reached(cell: Cell) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0talaria-{os.getpid()}")
        server.listen()
        code = f"socket.socket(socket.AF_UNIX).connect('\\0talaria-{os.getpid()}')"
        assert cell.run(code).startswith("PermissionError")
    assert cell.run(f"os.kill({os.getpid()}, 0)").startswith("PermissionError")
    assert cell.run("child = subprocess.Popen(['sleep', '60']); child.kill(); print(child.wait())") == "-9"


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (1, (0x1FFF, 0, 0)),
        (2, (0x3FFF, 0, 0)),
        (3, (0x7FFF, 0, 0)),
        (4, (0x7FFF, 3, 0)),
        (5, (0xFFFF, 3, 0)),
        (6, (0xFFFF, 3, 3)),
        (7, (0xFFFF, 3, 3)),
    ],
)
def test_every_right_that_a_version_knows_is_handled(version: int, expected: tuple[int, int, int]) -> None:
    assert landlock.make_access_masks(version) == expected


def test_other_systems_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert landlock.abi() == 0
    with pytest.raises(OSError, match="this kernel has no Landlock") as fault:
        landlock.restrict([], [])
    assert fault.value.errno == errno.ENOTSUP
