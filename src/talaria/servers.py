"""The MCP servers of an application: those of the settings, and of a project whose list the person trusts."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from talaria.model.clock import Clock
from talaria.tools.mcp.entries import ServerEntry

if TYPE_CHECKING:
    from talaria.tools.mcp.servers import Servers

_OF_PROJECT = ".mcp.json"


class Listed(msgspec.Struct, frozen=True):
    entries: Mapping[str, ServerEntry] = {}
    notices: tuple[str, ...] = ()
    """What is to be said of others."""
    programs: tuple[Path, ...] = ()
    """The files that they name."""

    async def opened(
        self, home: Path, clock: Clock, environment: Mapping[str, str], stack: AsyncExitStack
    ) -> "Servers | None":
        if not self.entries:
            return None
        from talaria.tools.mcp.servers import open_servers  # noqa: PLC0415  (who has none does not pay for them)

        return await stack.enter_async_context(open_servers(self.entries, home, clock, environment))


def listed(configured: Mapping[str, ServerEntry], home: Path, environment: Mapping[str, str]) -> Listed:
    """Looks at the file system: not on the loop."""
    project = Path.cwd()
    if not configured and not (project / _OF_PROJECT).exists():
        return Listed()
    from talaria.tools.mcp.project import choose  # noqa: PLC0415

    chosen = choose(configured, project, home, environment)
    programs = tuple(path for entry in chosen.entries.values() for path in entry.programs())
    return Listed(chosen.entries, chosen.notices, programs)
