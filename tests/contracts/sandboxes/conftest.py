"""One suite over every place where commands can run: the tools are called as the model calls them."""

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import pytest
from msgspec import structs
from tests.contracts.sandboxes.desktop import Desktop, git, make
from tests.contracts.sandboxes.git_server import LOGIN, GitServer
from tests.contracts.sandboxes.github_server import TOKEN, GitHubServer
from tests.contracts.sandboxes.tls_server import served
from tests.ports import reserved_port

from talaria.core.clock import SystemClock
from talaria.core.errors import Denied
from talaria.core.ids import CallId, SessionId
from talaria.core.messages import ToolCall, ToolResult
from talaria.store.base import NewSession, Store
from talaria.store.memory import MemoryStore
from talaria.tools.base import Invocation, OpenGate, Scope, Tool
from talaria.tools.builtin.terminal import process_tools, terminal_tools
from talaria.tools.executor import Executor
from talaria.tools.registry import Toolbox
from talaria.tools.sandbox import bubblewrap, landlocked, seatbelt
from talaria.tools.sandbox.sandbox_settings import Backend, DockerSettings, SshSettings, TerminalSettings
from talaria.tools.sandbox_permissions import PermissionKind
from talaria.tools.workspaces import Workspaces

Use = Callable[..., Awaitable[ToolResult]]


NEAR: tuple[Backend, ...] = ("seatbelt", "local") if sys.platform == "darwin" else ("bubblewrap", "landlock", "local")
ELSEWHERE: tuple[Backend, ...] = ("docker", "ssh")


def pytest_configure(config: pytest.Config) -> None:
    marker = "everywhere: the core of the suite; also in a container and over ssh, where every test takes a second"
    config.addinivalue_line("markers", marker)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    own = (marker.args[0] for marker in metafunc.definition.iter_markers("parametrize"))
    if "backend" in metafunc.fixturenames and "backend" not in own:
        is_core = metafunc.definition.get_closest_marker("everywhere")
        metafunc.parametrize("backend", (*NEAR, *ELSEWHERE) if is_core else NEAR, indirect=True)


def _unavailable(backend: Backend) -> str | None:
    match backend:
        case "bubblewrap":
            return bubblewrap.fault()
        case "landlock":
            return landlocked.fault()
        case "seatbelt":
            return seatbelt.fault()
        case _:
            return None


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Backend:
    name: Backend = request.param
    reason = _unavailable(name)
    if reason is not None:
        pytest.skip(f"commands in {name}: {reason}")
    return name


ENGINE = """\
[containers]
default_ulimits = []
volumes = [{volumes}]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "{runtime}"
"""


@pytest.fixture(scope="session")
def podman() -> Iterator[DockerSettings]:
    """A real engine with an image that was made here: its programs are this machine's."""
    runtime = "runc" if shutil.which("runc") else "crun"
    with TemporaryDirectory(prefix="podman-") as name:  # it refuses long paths
        folder = Path(name)
        for program, volumes in (("podman", '"/usr:/usr:ro"'), ("podman-without-programs", "")):
            (folder / f"{program}.conf").write_text(ENGINE.format(volumes=volumes, runtime=runtime))
            call = f"podman --root {folder}/images --runroot {folder}/run --storage-driver vfs"
            (folder / program).write_text(f'#!/bin/sh\nCONTAINERS_CONF={folder}/{program}.conf exec {call} "$@"\n')
            (folder / program).chmod(0o755)
        _make_image(folder / "image.tar")
        settings = DockerSettings(image="localhost/talaria-test", program=str(folder / "podman"))
        for words in (
            ("import", str(folder / "image.tar"), settings.image),
            ("run", "--rm", "--network", "none", settings.image, "python3", "-V"),
        ):
            made = subprocess.run((settings.program, *words), capture_output=True, text=True, check=False)
            if made.returncode != 0:
                pytest.skip(f"commands in containers: {made.stderr.strip()}")
        yield settings
        subprocess.run((settings.program, "rm", "--force", "--all"), capture_output=True, check=True)


def _make_image(file: Path) -> None:
    with tarfile.open(file, "w") as image:
        for name in ("etc", "proc", "root", "run", "sys", "tmp", "usr", "var/tmp", "dev"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755
            image.addfile(folder)
        for name in ("bin", "sbin", "lib", "lib64"):
            if Path("/", name).is_symlink():
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, str(Path("/", name).readlink())
                image.addfile(link)


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshSettings]:
    """A real server on loopback for whoever runs the tests; its keys differ in what they meet there."""
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("commands over ssh: sshd is not installed")
    folder = tmp_path_factory.mktemp("sshd")
    before = {"person": "", "noisy": "echo Welcome; ", "bare": "PATH=/nowhere; "}
    with (folder / "keys").open("w") as keys:
        for name in ("host", "stranger", *before):
            subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name), check=True)
        for name, words in before.items():
            command = f'command="{words}eval \\"$SSH_ORIGINAL_COMMAND\\"" ' if words else ""
            keys.write(command + (folder / f"{name}.pub").read_text())
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with reserved_port() as port:
        yield from _served_by_ssh(program, folder, port)


def _served_by_ssh(program: str, folder: Path, port: int) -> Iterator[SshSettings]:
    options = (f"HostKey {folder}/host", f"AuthorizedKeysFile {folder}/keys", f"Port {port}")
    more = ("ListenAddress 127.0.0.1", "StrictModes no", "UsePAM no", "PidFile none", "PasswordAuthentication no")
    path = f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin"
    bare = f"SetEnv SHLVL=2 PATH={path} HOME={Path.home()}"  # as it is not the first, bash reads no .bashrc
    (folder / "config").write_text("\n".join((*options, *more, bare, "")))
    for known, key in (("known", "host"), ("changed", "stranger")):
        (folder / known).write_text(f"[127.0.0.1]:{port} {(folder / f'{key}.pub').read_text()}")
    server = subprocess.Popen((program, "-D", "-e", "-f", folder / "config"), stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    with server.stderr as said:
        assert "Server listening" in said.readline()
        words = (
            "-F",
            "none",
            "-p",
            str(port),
            "-i",
            str(folder / "person"),
            "-o",
            f"UserKnownHostsFile={folder}/known",
        )
        yield SshSettings(host="127.0.0.1", options=words)
        server.terminate()
        server.wait()


@pytest.fixture
def scope(tmp_path: Path) -> Scope:
    cwd, spill = tmp_path / "work", tmp_path / "home/spill"
    cwd.mkdir()
    spill.mkdir(parents=True)
    return Scope(SessionId("session-1"), cwd, spill / "session-1", turn="turn-1")


@pytest.fixture
def cwd(scope: Scope) -> Path:
    return scope.cwd


@pytest.fixture
def settings(backend: Backend, cwd: Path, request: pytest.FixtureRequest) -> TerminalSettings:
    match backend:
        case "docker":
            return TerminalSettings(backend=backend, docker=request.getfixturevalue("podman"))
        case "ssh":
            there = structs.replace(request.getfixturevalue("sshd"), cwd=str(cwd))
            return TerminalSettings(backend=backend, ssh=there)
        case _:
            return TerminalSettings(backend=backend)


@pytest.fixture
async def workspaces(tmp_path: Path, settings: TerminalSettings) -> AsyncIterator[Workspaces]:
    opened = Workspaces(settings, tmp_path / "home", SystemClock())
    yield opened
    await opened.aclose()


@pytest.fixture
def port() -> Iterator[int]:
    """Of a server on all addresses of this machine, which answers "reached"."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"reached")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("0.0.0.0", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


class Alone(OpenGate):
    """Nobody is there to allow changes of files that other programs obey; `granted` was allowed before."""

    def __init__(self, granted: Mapping[PermissionKind, str] | None = None) -> None:
        self._granted = granted or {}

    async def list_grants(self, kind: PermissionKind, scope: Scope) -> tuple[tuple[str, ...], ...]:
        return ((self._granted[kind],),) if kind in self._granted else ()

    async def admit(self, call: ToolCall, invocation: Invocation, scope: Scope) -> None:
        if invocation.claim.writes:
            raise Denied(f"{call.name} in {scope.cwd}: nobody is here.")
        await super().admit(call, invocation, scope)


@pytest.fixture
def granted(tmp_path: Path, backend: Backend) -> Iterator[Mapping[PermissionKind, str]]:
    """With TEST_WITH_GRANTS a folder, and where that is possible with a repository, a port, a socket; else nothing."""
    if not os.environ.get("TEST_WITH_GRANTS") or backend not in ("bubblewrap", "landlock"):
        yield {}
        return
    folder = tmp_path / "granted"
    folder.mkdir()
    if backend == "landlock":
        yield {"write": str(folder)}
        return
    subprocess.run(["git", "init", "-q", folder], check=True)
    config = (folder / ".git/config").read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as service, socket.socket(socket.AF_UNIX) as database:
        database.bind(str(tmp_path / "db.sock"))
        database.listen()
        port = str(service.getsockname()[1])
        yield {"write": str(folder), "port": port, "socket": str(tmp_path / "db.sock")}
    assert (folder / ".git/config").read_bytes() == config


@pytest.fixture
def use(scope: Scope, workspaces: Workspaces, granted: Mapping[PermissionKind, str]) -> Use:
    """`await use("terminal", command="true")`"""
    return calling(scope, (*terminal_tools(workspaces), *process_tools(workspaces)), Alone(granted))


def calling(scope: Scope, tools: Sequence[Tool], gate: Alone) -> Use:
    executor = Executor(Toolbox(tools), gate, scope)

    async def call(name: str, /, *, call_id: str = "call_1", **arguments: object) -> ToolResult:
        return await executor.call(ToolCall(CallId(call_id), name, json.dumps(arguments)))

    return call


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with MemoryStore(SystemClock()) as opened:
        for session in ("s1", "s2"):
            await opened.sessions.create(NewSession(SessionId(session), "terminal"))
        yield opened


@pytest.fixture
async def desktop(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desktop]:
    if (reason := bubblewrap.fault()) is not None:
        pytest.skip(f"commands in bubblewrap: {reason}")
    (tmp_path / "person").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    made = Desktop(store, await store.owners.join("test"), tmp_path)
    yield made
    await made.close()


@pytest.fixture
def server(tmp_path: Path, desktop: Desktop, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitServer]:
    """With `shop.git`, of which the project is a clone; the person's git has the login."""
    assert desktop.folder == tmp_path
    monkeypatch.delenv("GIT_SSL_CAINFO", raising=False)
    folder = tmp_path / "server"
    folder.mkdir()
    subprocess.run(("git", "init", "-q", "--bare", "-b", "main", str(folder / "shop.git")), check=True)
    subprocess.run(("git", "init", "-q", "--bare", "-b", "main", str(folder / "other.git")), check=True)
    with served(GitServer(folder)) as serving:
        person = tmp_path / "person"
        (person / ".gitconfig").write_text(
            f"[user]\nname = Ada\nemail = ada@example.org\n[http]\nsslCAInfo = {serving.certificate}\n"
            f"[credential]\nhelper = store\n"
        )
        (person / ".git-credentials").write_text(f"https://{LOGIN}@{serving.address.removeprefix('https://')}\n")
        work = make(tmp_path / "work")
        git(work, "remote", "add", "origin", f"{serving.address}/shop.git")
        git(work, "push", "-q", "origin", "main")
        serving.requests.clear()
        yield serving


@pytest.fixture
def by_ssh(sshd: SshSettings, server: GitServer, desktop: Desktop, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of `shop.git` at a real ssh server; the person's ssh has the key for it."""
    options = dict(zip(sshd.options[::2], sshd.options[1::2], strict=True))
    program = f"ssh -F none -i {options['-i']} -o {options['-o']}"
    git(desktop.folder, "config", "--global", "core.sshCommand", program)
    address = f"ssh://{getpass.getuser()}@127.0.0.1:{options['-p']}{server.folder}/shop.git"
    git(desktop.folder / "work", "remote", "set-url", "origin", address)
    return address


@pytest.fixture(scope="module")
def gpg_home() -> Iterator[Path]:
    if shutil.which("gpg") is None:
        pytest.skip("signing with gpg: gpg is not installed")
    with TemporaryDirectory(prefix="gpg-") as name:  # its sockets need a short path
        home = Path(name)
        make = ("--batch", "--passphrase", "", "--quick-gen-key", "Ada <ada@example.org>", "ed25519", "sign")
        environment = {**os.environ, "GNUPGHOME": name}
        subprocess.run(("gpg", "--homedir", name, *make), env=environment, capture_output=True, check=True)
        yield home
        subprocess.run(("gpgconf", "--homedir", name, "--kill", "all"), check=False, capture_output=True)


@pytest.fixture
def github(tmp_path: Path, desktop: Desktop, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitHubServer]:
    """With a login of the person; the project is a clone of `o/shop` there."""
    assert desktop.folder == tmp_path
    if shutil.which("gh") is None:
        pytest.skip("gh is not installed")
    with ExitStack() as around:
        try:
            serving = around.enter_context(served(GitHubServer(tmp_path)))
        except PermissionError:
            pytest.skip("gh: only root may serve on port 443 here")
        for name, value in (("GH_HOST", serving.host), ("GH_ENTERPRISE_TOKEN", TOKEN)):
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("SSL_CERT_FILE", str(serving.certificate))
        (tmp_path / "person/.gitconfig").write_text("[user]\nname = Ada\nemail = ada@example.org\n")
        work = make(tmp_path / "work")
        git(work, "remote", "add", "origin", f"https://{serving.host}/o/shop.git")
        git(work, "switch", "-qc", "topic")
        yield serving
