"""Services of this machine that listen on a socket in a file: told exactly, opened by a yes, and closed at once."""

import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.contracts.sandboxes.conftest import Use
from tests.contracts.sandboxes.desktop import Ada, Desktop, until

from talaria.store.base import Store
from talaria.tools.base import PRIVATE

CLIENT = """
import array, socket, sys
made = socket.socket(socket.AF_UNIX)
made.connect(sys.argv[1])
made.sendall(b"ping")
print(made.recv(100).decode())
"""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Path]:
    """A socket of the person, outside the project; whoever listens there answers each message."""
    folder = tmp_path / "services"
    folder.mkdir()
    yield from serve(folder / "db.sock")


def serve(path: Path, begin: bytes = b"heard ") -> Iterator[Path]:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def answer(client: socket.socket) -> None:
        with client, suppress(OSError):
            while words := client.recv(100):
                client.sendall(begin + words)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield path
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@pytest.fixture
def client(desktop: Desktop) -> str:
    (desktop.folder / "work").mkdir(exist_ok=True)
    (desktop.folder / "work/client.py").write_text(CLIENT)
    return "python3 client.py"


async def revoke(store: Store) -> None:
    for grant in await store.grants.list():
        await store.grants.revoke(grant.id)


async def test_a_socket_is_opened_by_a_yes(desktop: Desktop, client: str, database: Path) -> None:
    blocked = await desktop.run(f"{client} {database}", None)
    assert "heard" not in blocked.text
    assert f'[sandbox: the socket {database} was blocked; ask for it with needs: ["socket {database}"]]' in blocked.text
    ada = Ada("session")
    opened = await desktop.run(f"{client} {database}", ada, needs=[f"socket {database}"])
    assert opened.text.startswith("heard ping"), opened.text
    (question,) = ada.asked
    assert question.title == "Open a socket of this machine?"
    assert (
        question.headline
        == f"Let commands connect, as you, to whatever listens on the socket {database} of this machine?"
    )
    again = await desktop.run(f"{client} {database}; {client} {database}; ls {database.parent}", None)
    assert again.text.splitlines()[:3] == ["heard ping", "heard ping", "db.sock"], "nothing else of that folder"


async def test_a_yes_for_once_is_for_one_command(desktop: Desktop, client: str, database: Path) -> None:
    await desktop.run(f"{client} {database}", Ada("once"), needs=[f"socket {database}"])
    later = await desktop.run(f"{client} {database}", None)
    assert "heard" not in later.text
    assert f"the socket {database} was blocked" in later.text


async def test_a_socket_is_closed_when_its_grant_is_revoked_and_connections_end(
    desktop: Desktop, client: str, database: Path, store: Store
) -> None:
    hold = (
        "import pathlib, socket, sys, threading\n"
        "made = socket.socket(socket.AF_UNIX)\n"
        "made.connect(sys.argv[1])\n"
        "pathlib.Path('connected').touch()\n"
        "assert made.recv(1) == b''\n"
        "pathlib.Path('ended').touch()\n"
        "threading.Event().wait()\n"
    )
    work = desktop.folder / "work"
    (work / "hold.py").write_text(hold)
    await desktop.run(f"python3 hold.py {database}", Ada("session"), needs=[f"socket {database}"], background=True)
    await until((work / "connected").exists)
    await revoke(store)
    later = await desktop.run(f"{client} {database}", None)
    assert "heard" not in later.text
    await until((work / "ended").exists)


async def test_a_socket_by_another_name_is_the_one_it_leads_to(
    desktop: Desktop, client: str, database: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(database.parent)
    ada = Ada("once")
    opened = await desktop.run(f"{client} {database}", ada, needs=[f"socket {link}/db.sock"])
    assert opened.text.startswith("heard ping")
    assert str(database) in ada.asked[0].headline
    assert str(link) not in ada.asked[0].headline


async def test_a_socket_is_opened_where_temporary_files_are_behind_a_link_and_far_away(
    desktop: Desktop, client: str, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = tmp_path / ("long" * 30)
    far.mkdir()
    (tmp_path / "link").symlink_to(far)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "link"))
    opened = await desktop.run(f"{client} {database}", Ada("once"), needs=[f"socket {database}"])
    assert opened.text.startswith("heard ping"), opened.text
    assert list(far.iterdir()) == [], "its file is only in the sandbox"


async def test_a_socket_in_the_project_that_is_hidden_can_be_opened(desktop: Desktop, client: str) -> None:
    path = desktop.folder / "work/dev.sock"
    for served in serve(path):
        assert "heard" not in (await desktop.run(f"{client} {served}", None)).text
        opened = await desktop.run(f"{client} {served}", Ada("session"), needs=["socket dev.sock"])
        assert opened.text.startswith("heard ping"), opened.text


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_folder_to_write_opens_no_sockets_in_it(
    desktop: Desktop, client: str, database: Path, is_first: bool
) -> None:
    if not is_first:
        await desktop.run("true", None)
    need = f"write {database.parent}"
    opened = await desktop.run(f"{client} {database}; touch {database.parent}/new", Ada("session"), needs=[need])
    assert (database.parent / "new").exists()
    assert "heard" not in opened.text
    both = await desktop.run(f"{client} {database}", Ada("session"), needs=[f"socket {database}"])
    assert both.text.startswith("heard ping"), both.text


async def test_no_descriptor_passes_through(desktop: Desktop, database: Path) -> None:
    (desktop.folder / "work").mkdir()
    (desktop.folder / "work/hand.py").write_text(
        "import os, socket, sys\n"
        "made = socket.socket(socket.AF_UNIX)\n"
        "made.connect(sys.argv[1])\n"
        "socket.send_fds(made, [b'take'], [os.open('/', os.O_RDONLY)])\n"
        "print(made.recv(100).decode())\n"
    )
    received: list[int] = []
    path = database.parent / "other.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def take() -> None:
            client, _ = listener.accept()
            with client:
                words, descriptors, _, _ = socket.recv_fds(client, 100, 4)
                received.extend(descriptors)
                client.sendall(b"took " + words)

        threading.Thread(target=take, daemon=True).start()
        result = await desktop.run(f"python3 hand.py {path}", Ada("once"), needs=[f"socket {path}"])
    assert "took take" in result.text
    assert received == []


async def test_a_socket_is_not_opened_by_an_earlier_yes_once_private_data_was_read(
    desktop: Desktop, client: str, database: Path
) -> None:
    await desktop.run(f"{client} {database}", Ada("session"), needs=[f"socket {database}"])
    assert "heard" not in (await desktop.run(f"{client} {database}", None, heard=PRIVATE)).text
    ada = Ada("no")
    await desktop.run(f"{client} {database}", ada, heard=PRIVATE, needs=[f"socket {database}"])
    assert ada.asked[0].offered == ("no", "once")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("services/missing.sock", "services/missing.sock does not exist."),
        ("services/file", "services/file is not a socket."),
        ("services", "services is not a socket."),
        ("services/docker.sock", "stays closed: the programs that listen there run commands for you, or use your keys"),
        ("services/S.gpg-agent", "stays closed"),
        ("services/innocent", "stays closed"),
        ("person/.ssh/control", "is private."),
        ("person/.ssh/none", "is private."),
        ("/run/user/1000/bus", "stays closed"),
        ("/var/run/docker.sock", "stays closed"),
        ("nobody\0here", "is not a usable path"),
    ],
)
async def test_what_is_not_a_socket_to_open_is_refused_in_one_sentence(
    desktop: Desktop, database: Path, tmp_path: Path, name: str, sentence: str
) -> None:
    (tmp_path / "services/file").touch()
    (tmp_path / "person/.ssh").mkdir(parents=True)
    (tmp_path / "services/innocent").symlink_to(tmp_path / "services/docker.sock")
    for other in ("services/docker.sock", "services/S.gpg-agent", "person/.ssh/control"):
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(tmp_path / other))
    ada = Ada("always")
    refused = await desktop.run("true", ada, needs=[f"socket {tmp_path / name}"])
    assert refused.is_error
    assert sentence in refused.text
    assert "\n" not in refused.text.strip()
    assert ada.asked == []


async def test_a_grant_for_what_has_become_a_link_opens_nothing(desktop: Desktop, client: str, database: Path) -> None:
    await desktop.run("true", Ada("session"), needs=[f"socket {database}"])
    other = database.parent / "docker.sock"
    for served in serve(other):
        database.unlink()
        database.symlink_to(served)
        assert "heard" not in (await desktop.run(f"{client} {database}; {client} {served}", None)).text


async def test_a_link_put_in_the_place_of_an_open_socket_leads_nowhere(desktop: Desktop, client: str) -> None:
    """The folder around the socket is the project's own, so commands can move it away."""
    folder = desktop.folder / "work/run"
    folder.mkdir(parents=True)
    other = desktop.folder / "docker.sock"
    swap = f"mv run old && mkdir run && ln -s {other} run/dev.sock && {client} old/dev.sock"
    for served in serve(folder / "dev.sock"):
        for _ in serve(other, b"everything "):
            opened = await desktop.run(f"{client} {served}; {swap}", Ada("session"), needs=["socket run/dev.sock"])
            assert opened.text.startswith("heard ping"), opened.text
            assert (folder / "dev.sock").readlink() == other
            assert "everything" not in opened.text


@pytest.mark.parametrize(
    ("address", "told"),
    [
        (
            "('127.0.0.1', 5999)",
            "port 5999 of this machine was blocked, and nothing in the sandbox listens on its own port 5999",
        ),
        ("('192.0.2.7', 6000)", "192.0.2.7:6000 was blocked: only programs that use the proxy"),
        ("('0.0.0.0', 5998)", "port 5998 of this machine was blocked"),
    ],
)
async def test_what_a_program_could_not_connect_to_is_told_although_it_says_nothing(
    desktop: Desktop, address: str, told: str
) -> None:
    quiet = f"import socket\ntry: socket.create_connection({address}, 5)\nexcept OSError: raise SystemExit(3)"
    result = await desktop.run(f'python3 -c "{quiet}"', None)
    assert f"[sandbox: {told}" in result.text
    assert "probably" not in result.text


async def test_a_server_of_the_command_itself_is_not_told_once_it_has_answered(desktop: Desktop) -> None:
    (desktop.folder / "work").mkdir()
    (desktop.folder / "work/both.py").write_text(
        "import socket\n"
        "made = socket.socket()\n"
        "try: made.connect(('127.0.0.1', 5997))\n"
        "except OSError: pass\n"
        "listener = socket.create_server(('127.0.0.1', 5997))\n"
        "socket.create_connection(('127.0.0.1', 5997))\n"
        "raise SystemExit('failed otherwise')\n"
    )
    result = await desktop.run("python3 both.py", None)
    assert "failed otherwise" in result.text
    assert "[sandbox:" not in result.text


async def test_paths_without_end_and_odd_names_do_no_harm(desktop: Desktop) -> None:
    (desktop.folder / "work").mkdir()
    (desktop.folder / "work/odd.py").write_text(
        "import os, socket\n"
        "deep = '/tmp/' + 'd' * 200\n"
        "for _ in range(15):\n"
        "    os.mkdir(deep)\n"
        "    os.chdir(deep)\n"
        "    deep = 'd' * 200\n"
        "for number in range(40):\n"
        "    for name in (f's{number}', b'\\xff\\xfe%d' % number, f'\\x1b[31m{number}'):\n"
        "        made = socket.socket(socket.AF_UNIX)\n"
        "        try: made.connect(name)\n"
        "        except OSError: pass\n"
        "    made = socket.socket()\n"
        "    made.connect_ex(('127.0.0.1', 7000 + number))\n"
        "raise SystemExit(4)\n"
    )
    result = await desktop.run("python3 odd.py", None)
    assert "[exit code 4]" in result.text
    assert result.text.count("[sandbox:") == 3
    assert "\x1b" not in result.text


async def test_long_names_of_sockets_do_not_keep_a_command_from_ending(desktop: Desktop) -> None:
    (desktop.folder / "work").mkdir()
    (desktop.folder / "work/long.py").write_text(
        "import os, socket\n"
        "for place in ['/tmp/' + '\U0001f600' * 60, *['\U0001f600' * 60] * 3]:\n"
        "    os.mkdir(place)\n"
        "    os.chdir(place)\n"
        "for number in range(32):\n"
        "    socket.socket(socket.AF_UNIX).connect_ex(f's{number}')\n"
        "raise SystemExit(4)\n"
    )
    result = await desktop.run("python3 long.py", None, timeout_s=10)
    assert "[exit code 4]" in result.text


async def test_a_scan_of_ports_is_not_told_port_by_port(desktop: Desktop) -> None:
    scan = "import socket\nfor port in range(7000, 7200): socket.socket().connect_ex(('127.0.0.1', port))\nexit(4)"
    result = await desktop.run(f'python3 -c "{scan}"', None)
    assert "[exit code 4]" in result.text
    assert "[sandbox:" not in result.text


def own_socket(tmp_path: Path) -> Path:
    """In Talaria's own home, where its processes tell each other what they do."""
    path = tmp_path / "home/run/7-ab.sock"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"], indirect=True)
async def test_commands_do_not_reach_the_sockets_of_talarias_processes(use: Use, cwd: Path, tmp_path: Path) -> None:
    (cwd / "client.py").write_text(CLIENT)
    for path in serve(own_socket(tmp_path)):
        outside = subprocess.run([sys.executable, cwd / "client.py", path], capture_output=True, text=True, check=False)
        assert "heard ping" in outside.stdout, "it can be reached"
        result = await use("terminal", command=f"python3 client.py {path}")
        assert "heard" not in result.text
        assert "Error" in result.text


async def test_the_sockets_of_talarias_processes_cannot_be_opened(
    desktop: Desktop, client: str, tmp_path: Path
) -> None:
    ada = Ada("always")
    link = desktop.folder / "work/link.sock"
    for path in serve(own_socket(tmp_path)):
        link.symlink_to(path)
        for given in (path, link):
            refused = await desktop.run(f"{client} {path}", ada, needs=[f"socket {given}"])
            assert refused.is_error
            assert "is private" in refused.text
    assert ada.asked == []
