"""Where commands run and what they may reach, as the person has set it.

Also where Talaria keeps what belongs to a project but is not in it (package caches, a copy of git's settings), and
which of the person's environment variables commands may get: those that `terminal.env` lists, but no secrets, and
nothing that decides which code runs or where connections go.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from talaria.core.errors import ToolFailed
from talaria.core.fs import safe_file_name
from talaria.core.secret import says_secret, words_of
from talaria.core.text import parse_size
from talaria.tools.output import SpillLimits
from talaria.tools.sandbox.base import SandboxLimits
from talaria.tools.sandbox.resource_limits import memory_of_machine


def project_folder(home: Path, root: Path) -> Path:
    """Below Talaria's home, named after the project's root; may not exist yet. A project that moves gets another."""
    digest = hashlib.sha256(str(root).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return home / "projects" / f"{safe_file_name(root.name)[:40]}-{digest}"


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ACCOUNTS = ("AWS_", "AZURE_", "GCP_", "GOOGLE_", "GH_", "GITHUB_", "GITLAB_", "OPENAI_", "ANTHROPIC_", "TALARIA_")
"""Of services: most of what their programs read is for logging in."""
_LOADED = (
    *("LD_", "DYLD_", "BASH_", "GIT_", "SSH_", "GPG_", "DBUS_", "MALLOC_", "GLIBC_", "SYSTEMD_", "SUDO_", "DOCKER_"),
    *("PS0", "PS1", "PS2", "PS3", "PS4", "NODE_OPTIONS", "NODE_TLS", "PERL5", "RUBYOPT", "RUBYLIB"),
)
_CONTROLLING = frozenset(
    {
        *("BASHOPTS", "SHELLOPTS", "ENV", "IFS", "CDPATH", "FPATH", "ZDOTDIR", "PROMPT_COMMAND", "EXECIGNORE"),
        *("PATH", "HOME", "SHELL", "USER", "LOGNAME", "PWD", "OLDPWD", "TMPDIR", "TMP", "TEMP", "XDG_RUNTIME_DIR"),
        *("PYTHONSTARTUP", "PYTHONHOME", "PYTHONBREAKPOINT", "PYTHONINSPECT", "PYTHONUSERBASE", "NODE_USE_ENV_PROXY"),
        *("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "GCONV_PATH", "LOCPATH", "NLSPATH", "TERMINFO"),
        *("HOSTALIASES", "LOCALDOMAIN", "RES_OPTIONS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"),
    }
)
_LOGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#@]+@")


def check_names(names: Sequence[str]) -> None:
    """Raises `ValueError` for the first that commands must not get."""
    for name in names:
        if (reason := refusal(name)) is not None:
            raise ValueError(f"terminal.env lists {name[:80]!r}, which {reason}; take it off the list")


def refusal(name: str) -> str | None:
    """Why commands must not get a variable; None: they may."""
    upper = name.upper()
    if not _NAME.fullmatch(name):
        return "is not the name of one variable"
    if says_secret(words_of(name)) or upper.startswith(_ACCOUNTS) or "SECRET" in upper or "PASSW" in upper:
        return "is named like a secret, and commands get no secrets"
    if upper in _CONTROLLING or upper.startswith(_LOADED):
        return "decides what programs run or load, and is not passed to commands"
    if upper.endswith("_PROXY"):
        return "names a proxy, and commands have one of their own"
    return None


def select_variables(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Those that are set. Raises `ToolFailed` for a value with a user name or password in an address."""
    found = {name: environment[name] for name in names if name in environment}
    for name, value in found.items():
        if _LOGIN.search(value):
            raise ToolFailed(
                f"Commands do not run: terminal.env lists {name}, whose value has a login in its address "
                f"(scheme://user:password@host), and commands get no secrets. Remove the login from the value, or "
                f"{name} from the list."
            )
    return found


Backend = Literal["auto", "bubblewrap", "landlock", "seatbelt", "local", "docker", "ssh"]
Count = Annotated[int, msgspec.Meta(ge=1)]
LEAST_SHARE_BYTES = 1 << 30
_HOST_PATTERN = re.compile(r"\*|(?:\*\.)?[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?")


def is_this_machine(host: str) -> bool:
    name = host.strip().lower().rstrip(".")
    return name in ("localhost", "::1", "[::1]") or name.endswith(".localhost")


class DockerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    image: str = "python:3.13"
    """It must contain bash and python3."""
    program: str = "docker"
    """Or podman."""
    network: str = "none"
    """As `docker run --network` takes it."""


class SshSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: str = ""
    """As `ssh` takes it; it must have bash and python3."""
    cwd: str = "~"
    """Where commands begin there."""
    options: tuple[str, ...] = ()
    """More options for the `ssh` command, such as -p 2222."""


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For one session. Sizes are written like 512M or 4G."""

    memory: str | int = "75%"
    """For all its commands together; may be a share of the machine's memory, which is then at least 1 GiB."""
    cpu_weight: Annotated[int, msgspec.Meta(ge=1, le=100)] = 100
    """While the processors are busy: with 100, all commands together get as much as one other program."""

    kept_output: str | int = "1G"
    """For output that was too long for the model and is kept in files."""
    kept_output_total: str | int = "10G"
    """The same for all sessions together."""

    def __post_init__(self) -> None:
        parse_size(self.memory, 1)
        for size in (self.kept_output, self.kept_output_total):
            parse_size(size)

    @property
    def spill_limits(self) -> SpillLimits:
        return SpillLimits(session_bytes=parse_size(self.kept_output), home_bytes=parse_size(self.kept_output_total))

    @property
    def memory_bytes(self) -> int:
        machine = memory_of_machine()
        if str(self.memory).strip().endswith("%"):
            return max(LEAST_SHARE_BYTES, parse_size(self.memory, machine)) if machine else 0
        return parse_size(self.memory)


class TerminalSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    backend: Backend = "auto"
    """`auto`: the best sandbox that works here. `local`: on the machine itself, so you are asked about commands."""
    timeout_s: Count = 120
    """After this time a command is stopped, unless it asks for another limit."""
    network: tuple[str, ...] = ()
    """Hosts that commands may reach, such as pypi.org or *.github.com."""
    ports: tuple[Annotated[int, msgspec.Meta(ge=1, le=65535)], ...] = ()
    """Ports of this machine whose services commands may use, such as 5432 of a database."""
    read: tuple[str, ...] = ()
    """More files and folders that commands may read; tools read them without asking."""
    write: tuple[str, ...] = ()
    """More folders that commands may write to; tools read them without asking."""
    env: tuple[str, ...] = ()
    """Names of your environment variables that commands get; names of secrets are refused."""
    cache_gb: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    """For what package managers download, per project; 0: nothing is kept."""
    max_processes: Count = 512
    scratch_mb: Count = 1024
    """For /tmp and for the home that commands see, each."""
    limits: LimitSettings = LimitSettings()
    docker: DockerSettings = DockerSettings()
    ssh: SshSettings = SshSettings()

    def __post_init__(self) -> None:
        for host in self.network:
            if is_this_machine(host):
                raise ValueError(f"network: {host!r} is this machine itself: list the port of the service in `ports`")
            if _HOST_PATTERN.fullmatch(host):
                continue
            import ipaddress  # noqa: PLC0415  (people mostly list names)

            try:
                ipaddress.ip_address(host)
            except ValueError:
                fault = f"network: {host!r} is not the name of a host, such as pypi.org or *.github.com"
                raise ValueError(fault) from None
        for name, paths in (("read", self.read), ("write", self.write)):
            for path in paths:
                if not path.startswith(("/", "~")):
                    raise ValueError(f"{name}: {path!r} is not a full path; begin it with / or ~/")
                if "\0" in path:
                    raise ValueError(f"{name}: {path!r} contains a NUL")
                try:
                    Path(path).expanduser()
                except RuntimeError:
                    raise ValueError(f"{name}: {path!r} begins with the name of an unknown user") from None
        if self.env:
            check_names(self.env)

    @property
    def sandbox_limits(self) -> SandboxLimits:
        return SandboxLimits(
            processes=self.max_processes,
            scratch_bytes=self.scratch_mb << 20,
            memory_bytes=self.limits.memory_bytes,
            cpu_weight=self.limits.cpu_weight,
        )
