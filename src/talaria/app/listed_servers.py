"""The MCP servers of an application: from the settings, and from the project if its list is trusted."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from talaria.config.schema import Config
from talaria.core.clock import Clock
from talaria.tools.mcp.server_entries import ServerEntry

if TYPE_CHECKING:
    from talaria.tools.mcp.sandboxing import ServerSandboxes
    from talaria.tools.mcp.servers import Servers


_OF_PROJECT = ".mcp.json"


class ListedServers(msgspec.Struct, frozen=True):
    entries: Mapping[str, ServerEntry] = {}
    notices: tuple[str, ...] = ()
    """About servers that were left out."""
    programs: tuple[Path, ...] = ()
    """The files that their command lines name."""
    configured: frozenset[str] = frozenset()
    """Servers from the settings; the others are the project's."""
    earlier: frozenset[str] = frozenset()
    """Servers that stay outside the sandbox, because an earlier version ran them there."""

    def sandboxes(self, home: Path, clock: Clock, config: Config) -> "ServerSandboxes":
        from talaria.tools.mcp.sandboxing import ServerSandboxes  # noqa: PLC0415

        return ServerSandboxes(
            config.terminal,
            home,
            clock,
            private=config.web.allow_private,
            configured=self.configured,
            earlier=self.earlier,
        )

    async def open(
        self, home: Path, config: Config, clock: Clock, environment: Mapping[str, str], stack: AsyncExitStack
    ) -> "Servers | None":
        if not self.entries:
            return None
        from talaria.tools.mcp.servers import open_servers  # noqa: PLC0415  (only loaded if there are any)

        sandboxes = self.sandboxes(home, clock, config)
        return await stack.enter_async_context(open_servers(self.entries, home, clock, environment, sandboxes))


def find_servers(configured: Mapping[str, ServerEntry], home: Path, environment: Mapping[str, str]) -> ListedServers:
    """Reads the disk, so do not call it in the event loop."""
    project = Path.cwd()
    if not configured and not (project / _OF_PROJECT).exists():
        return ListedServers()
    from talaria.tools.mcp.project_servers import choose, find_earlier  # noqa: PLC0415

    chosen = choose(configured, project, home, environment)
    programs = tuple(path for entry in chosen.entries.values() for path in entry.programs())
    return ListedServers(
        chosen.entries, chosen.notices, programs, frozenset(configured), find_earlier(configured, home)
    )
