"""Where commands run and what they may reach, as the person has set it."""

from typing import Annotated, Literal

import msgspec

from talaria.tools.sandbox.base import Limits

Backend = Literal["auto", "bubblewrap", "landlock", "seatbelt", "local", "docker", "ssh"]
Count = Annotated[int, msgspec.Meta(ge=1)]


class DockerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    image: str = "python:3.13"
    """With bash and python3 in it."""
    program: str = "docker"
    """Or podman."""
    network: str = "none"
    """As `docker run --network` takes it."""


class SshSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: str = ""
    """As `ssh` takes it; there must be bash and python3."""
    cwd: str = "~"
    """Where commands begin over there."""
    options: tuple[str, ...] = ()
    """More for the `ssh` command, such as -p 2222."""


class TerminalSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    backend: Backend = "auto"
    """`auto` is the best sandbox that works here; `local` runs on the machine itself, so commands are asked about."""
    timeout_s: Count = 120
    """After which a command is stopped, unless it asks for another time."""
    network: tuple[str, ...] = ()
    """Hosts that commands may reach, such as pypi.org or *.github.com."""
    read: tuple[str, ...] = ()
    """Further files and folders that commands may read; tools read them without asking."""
    write: tuple[str, ...] = ()
    """Further folders that commands may write to; tools read them without asking."""
    max_processes: Count = 512
    scratch_mb: Count = 1024
    """Of /tmp and of the home that commands see, each."""
    docker: DockerSettings = DockerSettings()
    ssh: SshSettings = SshSettings()

    @property
    def limits(self) -> Limits:
        return Limits(processes=self.max_processes, scratch_bytes=self.scratch_mb << 20)
