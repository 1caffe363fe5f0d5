"""Where our own programs read a project for the model: a sandbox that shows what the session's commands see, read-only.

It is not the commands' own sandbox: a search knows the secrets that it must not report, and commands could inspect a
process next to them.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from msgspec import structs

from talaria.core.aio import in_thread
from talaria.core.errors import ToolFailed
from talaria.tools.sandbox.base import Level, Sandbox, SandboxPolicy, ToolHost

LEVELS: frozenset[Level] = frozenset(("strict", "landlock", "seatbelt"))
"""Where such a sandbox is used: a container has another Python, if any, and starts slowly."""
MAX_OPEN = 8
"""For all sessions. Each is a process or two, and takes a moment to open again."""
PACKAGE = Path(__file__).resolve().parents[2]


class Reader:
    """For one session. Opened at its first use, and kept open until `close`."""

    users = 0
    """How many programs run in it."""

    def __init__(self, sandbox: Sandbox, look: Callable[[], SandboxPolicy]) -> None:
        """`look`: returns what commands see; not on the loop."""
        self._sandbox = sandbox
        self._look = look
        self._opening = asyncio.Lock()
        self._open = AsyncExitStack()
        self._host: ToolHost | None = None

    async def host(self) -> ToolHost | None:
        """None: no command could run in this project either. Raises `ToolFailed` if the sandbox does not start."""
        async with self._opening:
            if self._host is None or not self._host.is_alive:
                await self._leave()
                try:
                    view = await in_thread(self._look)
                except ToolFailed:
                    return None
                if view.hidden and self._sandbox.level == "landlock":  # which cannot hide anything
                    return None
                self._host = await self._open.enter_async_context(self._sandbox.open(read_only(view)))
            return self._host

    async def close(self) -> None:
        async with self._opening:
            await self._leave()

    async def _leave(self) -> None:
        self._host = None
        await self._open.aclose()


def read_only(view: SandboxPolicy) -> SandboxPolicy:
    """The policy with nothing writable and no network, plus the programs that read there."""
    return structs.replace(
        view,
        is_read_only=True,
        reads=(*view.reads, PACKAGE),
        guarded=(),
        own=(),
        unwanted=(),
        has_egress=False,
        binds=tuple(bind for bind in view.binds if not bind.is_writable),
    )
