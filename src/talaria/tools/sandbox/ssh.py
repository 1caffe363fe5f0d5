"""Commands on another machine, over ssh: under the person's account there, with all that it may do."""

import os
import shlex
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from talaria.core.aio import in_thread
from talaria.core.errors import ToolFailed
from talaria.tools.sandbox.base import Level, SandboxPolicy, ToolHost
from talaria.tools.sandbox.launching import (
    ARRIVAL,
    FOLDER,
    NO_SUCH_PROGRAM,
    Launch,
    launch_host,
    pack_host,
    portable_environment,
)
from talaria.tools.sandbox.sandbox_settings import SshSettings

START_S = 60.0
_COMMAND = f"exec python3 -I -S -c {shlex.quote(ARRIVAL)}"
"""For any shell that the account has."""
_ALWAYS = (
    *("-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", "-o", "ClearAllForwardings=yes"),
    *("-o", "ControlMaster=no", "-o", "ControlPath=none"),  # when our ssh ends, the connection does
)
_UNLESS_SET = ("-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3")


class Ssh:
    level: Level = "remote"

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings
        self.about = f"on {settings.host} over ssh"

    @asynccontextmanager
    async def open(self, view: SandboxPolicy) -> AsyncGenerator[ToolHost]:
        host = self._settings.host
        if not host:
            raise ToolFailed("Commands cannot run: terminal.ssh.host is not set.")
        if view.has_egress:
            raise ToolFailed(
                f"Commands cannot run: terminal.network lists hosts, and {host} cannot be limited to them."
            )
        folder = f"{FOLDER}{os.urandom(8).hex()}"
        own = portable_environment(view)
        sent = await in_thread(lambda: pack_host(view, folder, cwd=self._settings.cwd, environment=own))
        launch = Launch(
            argv=("ssh", *_ALWAYS, *self._settings.options, *_UNLESS_SET, "--", host, _COMMAND),
            environment=os.environ,
            sent=sent,
            start_s=START_S,
            explain=lambda said, code: explain_failure(host, said, code),
        )
        async with launch_host(launch) as opened:
            yield opened


def explain_failure(host: str, said: str, code: int | None) -> str:
    """Why the tool host did not start there, in a sentence."""
    if "host key" in said.lower() and "changed" in said.lower():
        return f"the host key of {host} has changed: find out why before you trust it."
    if "Host key verification failed" in said:
        return f"{host} is not a known host yet: connect to it once with ssh and confirm its key."
    if "Permission denied" in said:
        return f"{host} denied the login: it needs a key that works without a password prompt. ({said})"
    if code == NO_SUCH_PROGRAM:
        return f"there is no python3 on {host}."
    return f"{host}: {said or f'exit code {code}'}"
