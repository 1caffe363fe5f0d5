"""What is particular to commands in a container and on another machine; real ones, of podman and of sshd."""

import os
import select
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec import structs

from talaria.core.errors import ToolFailed
from talaria.core.messages import ToolResult
from talaria.tools.sandbox.base import Sandbox, SandboxPolicy, ToolHost
from talaria.tools.sandbox.docker import Docker
from talaria.tools.sandbox.running_command import SandboxCommand
from talaria.tools.sandbox.sandbox_settings import DockerSettings, SshSettings, TerminalSettings
from talaria.tools.sandbox.ssh import Ssh

Use = Callable[..., Awaitable[ToolResult]]

over_ssh = pytest.mark.parametrize("backend", ["ssh"], indirect=True)
elsewhere = pytest.mark.parametrize("backend", ["docker", "ssh"], indirect=True)


class Said:
    def __init__(self) -> None:
        self.text = ""

    def add(self, chunk: bytes) -> None:
        self.text += chunk.decode()

    def skip(self, size_bytes: int) -> None: ...


async def said(host: ToolHost, command: str) -> str:
    sink = Said()
    await host.start(SandboxCommand(command=command), sink).wait()
    return sink.text.strip()


async def refusal(sandbox: Sandbox, view: SandboxPolicy) -> str:
    with pytest.raises(ToolFailed) as refused:
        async with sandbox.open(view):
            pass
    return str(refused.value)


def opened_line(folder: Path) -> int:
    """A named pipe: its end is seen when none of those that have it open for writing is left."""
    os.mkfifo(folder / "line")
    return os.open(folder / "line", os.O_RDONLY | os.O_NONBLOCK)


def is_let_go(line: int) -> bool:
    poll = select.poll()
    poll.register(line, select.POLLIN)
    try:
        return bool(poll.poll(10_000)) and os.read(line, 1) == b""
    finally:
        os.close(line)


def containers(engine: DockerSettings) -> set[bytes]:
    return set(subprocess.check_output((engine.program, "ps", "--all", "--quiet")).split())


@pytest.fixture
def view(cwd: Path) -> SandboxPolicy:
    return SandboxPolicy(project=cwd, home=Path.home())


@elsewhere
@pytest.mark.parametrize("workdir", ["nowhere", "file"])
async def test_working_directory_that_is_none_is_told_by_those_over_there(use: Use, cwd: Path, workdir: str) -> None:
    (cwd / "file").touch()
    assert f"bash in {workdir}: No" in (await use("terminal", command="pwd", workdir=workdir)).text


@elsewhere
async def test_hosts_that_commands_could_not_be_held_to_are_refused(
    settings: TerminalSettings, view: SandboxPolicy
) -> None:
    sandbox = Docker(settings.docker) if settings.backend == "docker" else Ssh(settings.ssh)
    assert "terminal.network lists hosts" in await refusal(sandbox, structs.replace(view, has_egress=True))


async def test_container_has_no_more_than_was_given_to_it(
    podman: DockerSettings, cwd: Path, view: SandboxPolicy
) -> None:
    odd = cwd / 'a "b", c:d'
    for folder in ("guarded", "hidden", odd.name):
        (cwd / folder).mkdir()
        (cwd / folder / "file").write_text(folder)
    (cwd / ".env").write_text("SECRET=1")
    outside = cwd.parent / "outside"
    outside.write_text("secret")
    limits = structs.replace(view.limits, processes=77)
    shown = structs.replace(
        view,
        guarded=(cwd / "guarded", odd),
        hidden=(cwd / "hidden", cwd / ".env"),
        environment={"TZ": "UTC", "PATH": "/of/this/machine"},
        limits=limits,
    )
    before = containers(podman)
    async with Docker(podman).open(shown) as host:
        assert len(containers(podman) - before) == 1
        assert not [*Path(podman.program).parent.rglob("ctr.log")]  # where what is said would be kept
        assert await said(host, "cat guarded/file") == "guarded"
        for path in ("guarded/file", odd / "file", "hidden/new", "/etc/new", "/usr/new"):
            assert (await said(host, f"echo x > {str(path)!r}")).endswith(
                ("Read-only file system", "Permission denied")
            )
        assert await said(host, "ls -A hidden; cat .env; echo x > .env") == ""
        assert "No such file" in await said(host, f"cat {outside}")
        assert await said(host, "ls /sys/class/net") == "lo"
        assert (
            await said(host, "grep -E '^(CapEff|NoNewPrivs)' /proc/self/status") == f"CapEff:\t{0:016x}\nNoNewPrivs:\t1"
        )
        assert await said(host, "cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null") == "77"
        assert await said(host, "touch ~/x /tmp/x new && id -u && echo $HOME $TZ") == f"{os.getuid()}\n{view.home} UTC"
    assert (cwd / "new").stat().st_uid == os.getuid()
    assert (cwd / ".env").read_text() == "SECRET=1"
    assert containers(podman) <= before


async def test_docker_that_is_not_installed_is_told(view: SandboxPolicy) -> None:
    told = await refusal(Docker(DockerSettings(program="/nowhere/docker")), view)
    assert told == "Commands cannot run: /nowhere/docker: it is not installed."


async def test_docker_without_its_daemon_is_told(view: SandboxPolicy, tmp_path: Path) -> None:
    program = tmp_path / "docker"
    program.write_text('#!/bin/sh\necho \'{"ServerErrors": ["Cannot connect to the Docker daemon."]}\'\n')
    program.chmod(0o755)
    told = await refusal(Docker(DockerSettings(program=str(program))), view)
    assert told == f"Commands cannot run: {program} does not answer: Cannot connect to the Docker daemon."


async def test_image_that_cannot_be_had_is_told(podman: DockerSettings, view: SandboxPolicy) -> None:
    told = await refusal(Docker(structs.replace(podman, image="Nowhere")), view)
    assert told.startswith("Commands cannot run: there is no image Nowhere: Error: ")


async def test_image_without_python_is_told(podman: DockerSettings, view: SandboxPolicy) -> None:
    bare = structs.replace(podman, program=f"{podman.program}-without-programs")
    assert await refusal(Docker(bare), view) == f"Commands cannot run: there is no python3 in {bare.image}."


def changed(settings: SshSettings, old: str, new: str) -> SshSettings:
    return structs.replace(settings, options=tuple(word.replace(old, new) for word in settings.options))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("/known", "/unknown", "is not a known host yet: connect to it once with ssh and confirm its key."),
        ("/known", "/changed", "the host key of 127.0.0.1 has changed"),
        ("/person", "/stranger", "denied the login: it needs a key that works without a password prompt"),
        ("/person", "/bare", "there is no python3 on 127.0.0.1."),
    ],
)
async def test_way_that_is_barred_is_told(
    sshd: SshSettings, view: SandboxPolicy, old: str, new: str, told: str
) -> None:
    assert told in await refusal(Ssh(changed(sshd, old, new)), view)


async def test_host_that_cannot_be_reached_is_told(sshd: SshSettings, view: SandboxPolicy) -> None:
    nobody = structs.replace(sshd, options=("-F", "none", "-p", "1"))
    assert "Connection refused" in await refusal(Ssh(nobody), view)
    assert await refusal(Ssh(SshSettings()), view) == "Commands cannot run: terminal.ssh.host is not set."


async def test_folder_that_is_not_over_there_is_told(sshd: SshSettings, view: SandboxPolicy) -> None:
    lost = structs.replace(sshd, cwd="/no/such")
    told = "Commands cannot run: 127.0.0.1: the folder /no/such: No such file or directory"
    assert await refusal(Ssh(lost), view) == told


async def test_ssh_that_is_not_installed_is_told(view: SandboxPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert await refusal(Ssh(SshSettings(host="there")), view) == "Commands cannot run: ssh: it is not installed."


async def test_words_of_a_login_shell_are_no_part_of_the_conversation(sshd: SshSettings, view: SandboxPolicy) -> None:
    async with Ssh(changed(sshd, "/person", "/noisy")).open(view) as host:
        assert await said(host, "echo $HOME") == str(Path.home())


@over_ssh
async def test_connection_that_is_lost_ends_what_runs_over_there_and_the_next_command_begins_anew(
    use: Use, cwd: Path
) -> None:
    line = opened_line(cwd)
    above = "host=$(cut -d' ' -f4 /proc/$PPID/stat); server=$(cut -d' ' -f4 /proc/$host/stat)"
    result = await use("terminal", command=f"exec 9>line; {above}; (setsid sleep 1000 &); kill -9 $server; sleep 1000")
    assert "lost" in result.text
    assert is_let_go(line)
    assert (await use("terminal", command="echo on")).text == "on\n\n[exit code 0]"
