"""No sandbox: commands run on this machine as the person, who is asked about each of them.

Also one command outside the sandbox, which a person has allowed word for word. It begins in a fresh shell: nothing that
sandboxed commands have left takes part in it, neither a function nor a program in a folder of theirs.
"""

import os
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from talaria.tools.sandbox.base import Level, SandboxPolicy, ToolHost
from talaria.tools.sandbox.launching import Launch, launch_host, program_in, settings_for
from talaria.tools.sandbox.sandbox_policy import filter_environment

SOURCE = str(Path(__file__).parents[3])


class Local:
    level: Level = "none"

    def __init__(self, about: str = "no sandbox, as terminal.backend says") -> None:
        self.about = about

    @asynccontextmanager
    async def open(self, view: SandboxPolicy) -> AsyncGenerator[ToolHost]:
        folder = f"/tmp/talaria-{os.urandom(8).hex()}"  # noqa: S108
        async with launch_host(make_bare_launch(view, view.environment, folder)) as host:
            yield host


def make_bare_launch(view: SandboxPolicy, environment: Mapping[str, str], folder: str, **more: Any) -> Launch:
    """A tool host with nothing around it."""
    argv = program_in(SOURCE, sys.executable, settings_for(view, folder, **more))
    return Launch(argv=argv, environment=environment)


_AT_HOME = frozenset(
    {
        *("SSH_AUTH_SOCK", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY"),
        *("XDG_CONFIG_HOME", "GNUPGHOME", "GH_CONFIG_DIR", "GH_HOST", "GIT_CONFIG_GLOBAL", "GIT_SSL_CAINFO"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    }
)
"""What the person's programs expect, and commands in the sandbox never get."""
_NO_LOCAL_REPOSITORY = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "protocol.file.allow",
    "GIT_CONFIG_VALUE_0": "never",
}
"""Git would run the hooks of a repository on this machine, which commands may have made, however it is named."""


@asynccontextmanager
async def open_outside(
    place: Path, shared: Sequence[Path], environment: Mapping[str, str], *, is_by_grant: bool
) -> AsyncGenerator[ToolHost]:
    """`shared`: all that sandboxed commands can write. `is_by_grant`: the person was not asked about this command."""
    made = {**outside_environment(shared, environment), **(_NO_LOCAL_REPOSITORY if is_by_grant else {})}
    view = SandboxPolicy(project=place, home=Path.home(), environment=made)
    async with Local().open(view) as host:
        yield host


def outside_environment(shared: Sequence[Path], environment: Mapping[str, str]) -> dict[str, str]:
    kept = {name: environment[name] for name in _AT_HOME if name in environment}
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    safe = (one for one in folders if Path(one).is_absolute() and not is_in(Path(one), shared))
    made = {**filter_environment(environment), **kept, "PATH": os.pathsep.join(safe)}
    made.pop("VIRTUAL_ENV", None)
    return made


def is_in(path: Path, shared: Sequence[Path]) -> bool:
    real = path.resolve()
    return any(one.is_relative_to(root) for one in (path, real) for root in shared)
