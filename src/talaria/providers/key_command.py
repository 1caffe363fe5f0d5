"""A key that a command prints, as password managers and cloud tools do."""

import contextlib
import os
import signal
import subprocess

from talaria.core.errors import KeyRejected
from talaria.core.secret import Secret
from talaria.waiting import in_thread

PATIENCE_S = 60.0


async def key_from(command: str) -> Secret:
    """What the command prints, without blanks around it. Raises `KeyRejected`: without its output, which is secret."""
    return Secret(await in_thread(lambda: _printed(command)))


def _printed(command: str) -> str:
    """Until the command ends: what it leaves running in the background is ended, and does not keep us waiting."""
    try:
        process = subprocess.Popen(  # noqa: S602  (the person's own command, from their settings)
            command,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as fault:
        raise KeyRejected(f"The key_command in config.yaml cannot be run: {type(fault).__name__}.") from fault
    with process:
        try:
            code = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise KeyRejected(f"The key_command in config.yaml gave no key within {PATIENCE_S:g} s.") from None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        printed = process.stdout.read() if process.stdout else b""
    if code:
        raise KeyRejected(f"The key_command in config.yaml failed with code {code}: run it by hand.")
    key = printed.decode("utf-8", "replace").strip()
    if not key or "\n" in key:
        raise KeyRejected("The key_command in config.yaml printed no key, or more than one line: run it by hand.")
    return key
