"""A key that a command prints, as password managers and cloud tools do."""

import asyncio
import contextlib
import os
import signal

from talaria.model.errors import KeyRejected
from talaria.model.secret import Secret

PATIENCE_S = 60.0
MAX_KEY_BYTES = 64 << 10


async def key_from(command: str) -> Secret:
    """What the command prints, without blanks around it. Raises `KeyRejected`: without its output, which is secret."""
    process = await asyncio.create_subprocess_shell(
        command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            printed, _ = await process.communicate()
    except TimeoutError:
        raise KeyRejected(f"The key_command in config.yaml gave no key within {PATIENCE_S:g} s.") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    key = printed[:MAX_KEY_BYTES].decode("utf-8", "replace").strip()
    if process.returncode:
        raise KeyRejected(f"The key_command in config.yaml failed with code {process.returncode}: run it by hand.")
    if not key or "\n" in key:
        raise KeyRejected("The key_command in config.yaml printed no key, or more than one line: run it by hand.")
    return Secret(key)
