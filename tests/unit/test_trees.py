"""Folders that others change while we work in them: names lead down from a descriptor, and never through a link.

Everything runs twice: with `openat2`, and step by step as where the kernel lacks it."""

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import talaria
from talaria.core.trees import Entry, Root

OUTSIDE = "nobody may see or change this"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "outside/inner").mkdir(parents=True)
    for name in ("a", "inner/a"):
        (tmp_path / "outside" / name).write_text(OUTSIDE)
    return tmp_path / "outside"


@pytest.fixture
def folder(tmp_path: Path, outside: Path) -> Path:
    """With links of every kind that lead out."""
    (tmp_path / "tree/deep/er").mkdir(parents=True)
    (tmp_path / "tree/a").write_text("ours")
    (tmp_path / "tree/deep/er/a").write_text("ours")
    (tmp_path / "tree/file").symlink_to(outside / "a")
    (tmp_path / "tree/link").symlink_to(outside)
    (tmp_path / "tree/deep/up").symlink_to("../../outside")
    (tmp_path / "tree/deep/er/magic").symlink_to("/proc/self/root" + str(outside))
    return tmp_path / "tree"


@pytest.fixture(params=[False, True], ids=["openat2", "step by step"])
def root(request: pytest.FixtureRequest, folder: Path) -> Iterator[Root]:
    with Root.open(folder, is_stepwise=request.param) as opened:
        yield opened


LEADING_OUT = ["file", "link/a", "link/inner/a", "deep/up/a", "deep/up/inner/a", "deep/er/magic/a"]
ELSEWHERE = ["../outside/a", "deep/../../outside/a", "{outside}/a", "/etc/hostname"]
USES: dict[str, Callable[[Root, str], object]] = {
    "open": lambda root, name: root.open_file(name).close(),
    "read": lambda root, name: root.read(name, 10),
    "replace": lambda root, name: root.replace(name, b"x", mode=None),
    "append": lambda root, name: root.append(name, 0o600).close(),
    "create": lambda root, name: root.create(name, 0o600).close(),
    "enter": lambda root, name: root.folder(name).close(),
    "make": lambda root, name: root.make_folder(name).close(),
}
CHANGES: dict[str, Callable[[Root, str], object]] = {
    "unlink": lambda root, name: root.remove(name),
    "remove a folder": lambda root, name: root.remove_folder(name),
    "remove a tree": lambda root, name: root.remove_tree(name),
    "move away": lambda root, name: root.move(name, root, "moved"),
    "move to": lambda root, name: root.move("a", root, name),
    "stat": lambda root, name: root.info(name),
}


def untouched(outside: Path) -> bool:
    names = sorted(str(one.relative_to(outside)) for one in outside.rglob("*"))
    return names == ["a", "inner", "inner/a"] and all(
        (outside / one).read_text() == OUTSIDE for one in ("a", "inner/a")
    )


@pytest.mark.parametrize("name", [*LEADING_OUT, *ELSEWHERE])
@pytest.mark.parametrize("use", USES)
def test_no_name_leads_out(root: Root, outside: Path, use: str, name: str) -> None:
    """Control: the same name as a path does."""
    with pytest.raises(OSError, match=r"link|leads out|exists|directory"):
        USES[use](root, name.format(outside=outside))
    assert untouched(outside)


@pytest.mark.parametrize("name", ["link/a", "link/inner", "deep/up/a", "deep/er/magic/a", *ELSEWHERE])
@pytest.mark.parametrize("use", CHANGES)
def test_nothing_outside_is_moved_removed_or_looked_at(root: Root, outside: Path, use: str, name: str) -> None:
    with pytest.raises(OSError, match=r"link|leads out"):
        CHANGES[use](root, name.format(outside=outside))
    assert untouched(outside)


@pytest.mark.parametrize("name", ["link", "deep/up", "deep/er/magic", "link/inner", "deep/up/inner"])
def test_no_folder_is_entered_or_made_through_a_link(root: Root, outside: Path, name: str) -> None:
    for enter, inner in ((root.folder, ""), (root.make_folder, ""), (root.make_folder, "/new")):
        with pytest.raises(OSError, match="it is a link"):
            enter(name + inner)
    assert untouched(outside)


@pytest.mark.parametrize("name", ["file", "link"])
def test_a_link_itself_can_be_looked_at_moved_and_removed(root: Root, outside: Path, name: str) -> None:
    assert root.read_link(name).startswith(str(outside))
    root.move(name, root, "deep/er/moved")
    root.remove("deep/er/moved")
    assert root.find(name) is None
    assert untouched(outside)


FILTERED = """\
import ctypes, struct, sys
sys.path.insert(0, sys.argv[1])
from talaria.core.trees import Root
code = (0x20, 0, 0, 0), (0x15, 0, 1, 437), (0x06, 0, 0, 0x50000 | int(sys.argv[3])), (0x06, 0, 0, 0x7FFF0000)
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))
given = struct.pack("HxxxxxxP", len(code), ctypes.addressof(program))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, given, 0, 0) == 0  # no new privileges; a filter
root = Root.open(sys.argv[2])
assert root.read("deep/er/a", 9) == b"ours"
try:
    root.read("deep/up/inner/a", 9)
except OSError as fault:
    print(fault.strerror)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has openat2")
@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM])
def test_where_openat2_is_refused_the_walk_goes_step_by_step(folder: Path, code: int) -> None:
    """By an old kernel, or by the filter of a container."""
    source = str(Path(talaria.__file__).parents[1])
    words = (sys.executable, "-I", "-S", "-c", FILTERED, source, folder, str(code))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout) == ("", "it is a link, or leads through one\n")


def test_paths_do_lead_out(folder: Path) -> None:
    """The control of all above: what is refused would have worked."""
    assert all((folder / name).read_text() == OUTSIDE for name in LEADING_OUT)


@pytest.mark.parametrize("name", ["pipe", "socket", "device", "deep"])
def test_only_plain_files_are_opened_and_nobody_waits(
    root: Root, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)  # the names of sockets are short
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        if name == "device":
            with Root.open("/dev") as devices, pytest.raises(OSError, match="device"):
                devices.read("null", 1)
            return
        with pytest.raises(OSError, match="folder, device or pipe"):
            root.read(name, 1)
        with pytest.raises(OSError, match="folder, device or pipe"):
            root.replace(name, b"x", mode=None)


def test_a_tree_is_read_written_walked_and_removed(root: Root, folder: Path) -> None:
    with root.make_folder("new/one", 0o700) as made:
        made.replace("x", b"content", mode=0o640)
        made.replace("x", b"other", mode=None)
        with made.create("y", 0o600) as file:
            file.write(b"y")
    assert root.read("new/one/x", 3) == b"oth"
    assert (folder / "new/one/x").stat().st_mode & 0o777 == 0o640
    assert (folder / "new").stat().st_mode & 0o777 == 0o700
    inode = (folder / "new/one/y").stat().st_ino
    assert ("new/one", Entry("y", is_folder=False, is_plain_file=True, inode=inode)) in list(root.descend())
    root.move("new/one/x", root, "deep/x")
    root.remove_tree("new")
    assert {f"{place}/{entry.name}".lstrip("/") for place, entry in root.descend()} == {
        *("a", "file", "link", "deep", "deep/er", "deep/up", "deep/x", "deep/er/a", "deep/er/magic")
    }


def test_a_link_is_followed_on_purpose_only_inside(root: Root, folder: Path) -> None:
    (folder / "CLAUDE.md").symlink_to("deep/linked")
    (folder / "deep/linked").symlink_to("er/../er/a")
    (folder / "around").symlink_to("deep")
    (folder / "full").symlink_to(folder / "deep")
    (folder / "loop").symlink_to("loop")
    assert root.follow("a") == "a"
    for name in ("CLAUDE.md", "around/er/a", "around/../a", "full/er/a", "./deep//linked"):
        assert root.read(root.follow(name), 9) == b"ours"
    for name in ("file", "link/a", "deep/up", "deep/up/a", "loop", "..", "deep/../../outside/a"):
        with pytest.raises(OSError, match=r"link|leads out"):
            root.read(root.follow(name), 9)


def test_a_missing_folder_is_missing_and_a_file_is_not_a_folder(root: Root) -> None:
    assert root.find("nowhere/a") is None
    assert root.find("a/b") is None
    for name in ("nowhere/b/c", "deep/nowhere/c"):
        with pytest.raises(FileNotFoundError):
            root.read(name, 1)
    with pytest.raises(NotADirectoryError):
        root.read("deep/er/a/b", 1)


def test_no_descriptor_is_left_open(root: Root) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = count()
    for use in (*USES.values(), *CHANGES.values()):
        for name in ("deep/er/a", "link/a", "deep/er/new", "nowhere/a/b", "..", ""):
            try:
                use(root, name)
            except OSError as fault:
                assert fault.errno != errno.EBADF, fault  # noqa: PT017
    assert count() == before
