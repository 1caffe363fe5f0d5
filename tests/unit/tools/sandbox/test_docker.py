"""Where engines differ; the contract suite tries a real one."""

import os
from pathlib import Path

import msgspec
import pytest

from talaria.tools.sandbox.base import SandboxPolicy
from talaria.tools.sandbox.docker import Engine, arguments
from talaria.tools.sandbox.sandbox_settings import DockerSettings

PERSON = f"{os.getuid()}:{os.getgid()}"
DOCKER = '{"SecurityOptions": ["name=seccomp,profile=default"]}'
ROOTLESS_DOCKER = '{"SecurityOptions": ["name=seccomp,profile=default", "name=rootless"]}'
PODMAN = '{"host": {"arch": "amd64", "security": {"rootless": false}}}'
ROOTLESS_PODMAN = '{"host": {"arch": "amd64", "security": {"rootless": true}}}'


@pytest.mark.parametrize(
    ("told", "user"),
    [
        (DOCKER, ("--user", PERSON)),
        (ROOTLESS_DOCKER, ("--user", "0:0")),
        (PODMAN, ("--user", PERSON)),
        (ROOTLESS_PODMAN, ("--userns", "keep-id", "--user", PERSON)),
    ],
)
def test_files_of_the_person_are_theirs_inside_too(told: str, user: tuple[str, ...]) -> None:
    words = run(told, SandboxPolicy(project=Path("/p"), home=Path("/h")))
    start = words.index("--userns" if "--userns" in words else "--user")
    assert words[start : start + len(user)] == user


@pytest.mark.parametrize(("told", "is_bare"), [(DOCKER, False), (PODMAN, True)])
def test_podman_is_told_not_to_copy_what_lies_below_a_hidden_folder(told: str, is_bare: bool, tmp_path: Path) -> None:
    words = run(told, SandboxPolicy(project=tmp_path.parent, home=Path("/h"), hidden=(tmp_path,)))
    (mount,) = (word for word in words if word.startswith("type=tmpfs"))
    assert ("notmpcopyup" in mount.split(",")) == is_bare


def test_place_that_is_shown_twice_is_mounted_once() -> None:
    project = Path("/p")
    words = run(
        DOCKER, SandboxPolicy(project=project, home=project, reads=(project, Path("/r")), guarded=(Path("/r"),))
    )
    targets = [word for word in words if "target=" in word]
    assert targets == ["type=bind,source=/p,target=/p", "type=bind,source=/r,target=/r,ro"]
    assert not any(word.startswith("/p:") for word in words)


def run(told: str, view: SandboxPolicy) -> tuple[str, ...]:
    return arguments(view, DockerSettings(), msgspec.json.decode(told, type=Engine), "talaria-1")
