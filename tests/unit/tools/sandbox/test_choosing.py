from pathlib import Path

import pytest

from talaria.core.clock import SystemClock
from talaria.core.ids import SessionId
from talaria.tools.base import Scope
from talaria.tools.sandbox.base import Level
from talaria.tools.sandbox.chooser import SandboxChooser
from talaria.tools.sandbox.sandbox_settings import Backend, DockerSettings, SshSettings, TerminalSettings
from talaria.tools.workspaces import Workspaces


@pytest.mark.parametrize(
    ("backend", "level", "about"),
    [
        ("bubblewrap", "strict", "bubblewrap"),
        ("landlock", "landlock", "Landlock and seccomp"),
        ("seatbelt", "seatbelt", "seatbelt"),
        ("docker", "container", "podman, debian"),
        ("ssh", "remote", "on ann@there over ssh"),
        ("local", "none", "no sandbox, as terminal.backend says"),
    ],
)
def test_sandbox_is_the_one_that_was_set(backend: Backend, level: Level, about: str) -> None:
    docker, ssh = DockerSettings(program="podman", image="debian"), SshSettings(host="ann@there")
    sandbox = SandboxChooser(TerminalSettings(backend=backend, docker=docker, ssh=ssh)).sandbox
    assert (sandbox.level, sandbox.about) == (level, about)


@pytest.mark.parametrize(
    ("settings", "can_send"),
    [
        (TerminalSettings(backend="bubblewrap"), False),
        (TerminalSettings(backend="bubblewrap", network=("pypi.org",)), True),
        (TerminalSettings(backend="landlock", network=("pypi.org",)), False),
        (TerminalSettings(backend="docker"), False),
        (TerminalSettings(backend="docker", docker=DockerSettings(network="bridge")), True),
        (TerminalSettings(backend="local"), True),
        (TerminalSettings(backend="ssh"), True),
    ],
)
def test_commands_can_tell_others_something_where_they_have_a_network(
    tmp_path: Path, settings: TerminalSettings, *, can_send: bool
) -> None:
    scope = Scope(SessionId("session-1"), tmp_path, tmp_path / "spill")
    assert Workspaces(settings, tmp_path, SystemClock()).can_send(scope) == can_send
