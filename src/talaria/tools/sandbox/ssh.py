"""Commands on another machine, over ssh: as the person is known there, with all that this account can do there."""

import os
import shlex
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from talaria.core.aio import in_thread
from talaria.core.errors import ToolFailed
from talaria.tools.sandbox.base import Level, SandboxPolicy, ToolHost
from talaria.tools.sandbox.host_delivery import ARRIVAL, FOLDER, environment, program
from talaria.tools.sandbox.launching import Launch, launch_host
from talaria.tools.sandbox.sandbox_settings import SshSettings

START_S = 60.0
_COMMAND = f"exec python3 -I -S -c {shlex.quote(ARRIVAL)}"
"""For whichever shell is theirs over there."""
_ALWAYS = (
    *("-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", "-o", "ClearAllForwardings=yes"),
    *("-o", "ControlMaster=no", "-o", "ControlPath=none"),  # when our ssh ends, the connection does
)
_UNLESS_SET = ("-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3")
_NO_SUCH_PROGRAM = 127


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
            raise ToolFailed(f"Commands cannot run: terminal.network lists hosts, and {host} cannot be held to them.")
        folder = f"{FOLDER}{os.urandom(8).hex()}"
        sent = await in_thread(lambda: program(view, folder, cwd=self._settings.cwd, environment=environment(view)))
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
    """Why there is no tool host over there, in a sentence."""
    if "host key" in said.lower() and "changed" in said.lower():
        return f"the key of {host} is not the one that is known here: find out why before you trust it."
    if "Host key verification failed" in said:
        return f"{host} is not known here yet: connect to it once with ssh and confirm its key."
    if "Permission denied" in said:
        return f"{host} does not let us in without asking: it needs a key that is there without a password. ({said})"
    if code == _NO_SUCH_PROGRAM:
        return f"there is no python3 on {host}."
    return f"{host}: {said or f'exit code {code}'}"
