import pytest

from talaria.tools.sandbox.base import Level
from talaria.tools.sandbox.choosing import Choosing
from talaria.tools.sandbox.settings import Backend, DockerSettings, SshSettings, TerminalSettings


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
    sandbox = Choosing(TerminalSettings(backend=backend, docker=docker, ssh=ssh)).sandbox
    assert (sandbox.level, sandbox.about) == (level, about)
