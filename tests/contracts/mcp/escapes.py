"""The whole escape matrix, tried by an MCP server: `python escapes.py BACKEND HOME`.

BACKEND is a sandbox or `outside`; HOME is Talaria's own, and exists. Prints the verdicts as JSON.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import msgspec

from talaria.core.clock import SystemClock
from talaria.tools.mcp.sandboxing import ServerSandboxes
from talaria.tools.mcp.server_entries import SandboxNeeds, ServerEntry
from talaria.tools.mcp.servers import McpTool, open_servers
from talaria.tools.sandbox.base import Level
from talaria.tools.sandbox.canaries import Canaries
from talaria.tools.sandbox.probes import ProbeResult, judge
from talaria.tools.sandbox.sandbox_settings import Backend, TerminalSettings

SERVER = Path(__file__).parents[2] / "security" / "hostile_mcp_server.py"
LEVELS: dict[str, Level] = {"bubblewrap": "strict", "landlock": "landlock", "outside": "none"}


async def findings(backend: str, home: Path) -> list[ProbeResult]:
    settings, clock = TerminalSettings(max_processes=256, scratch_mb=32), SystemClock()
    is_outside = backend == "outside"
    if not is_outside:
        settings = msgspec.structs.replace(settings, backend=cast("Backend", backend))
    with TemporaryDirectory(prefix="talaria-trial-") as folder:
        project = Path(folder).resolve() / "project"
        project.mkdir()
        person = Path.home().resolve()
        with Canaries(project=project, home=person, agent_home=home, limits=settings.sandbox_limits) as canaries:
            entry = ServerEntry(
                command=sys.executable,
                args=("-I", "-S", str(SERVER)),
                cwd=str(project),
                sandbox=False if is_outside else SandboxNeeds(write=(".",)),
            )
            sandboxes = ServerSandboxes(settings, home, clock, configured=["evil"])
            async with open_servers({"evil": entry}, home, clock, os.environ, sandboxes) as servers:
                (tool,) = cast("list[McpTool]", servers.tools())
                attempts = json.dumps({"matrix": ("run", *canaries.arguments)})
                told = await tool.connection.call("attack", {"attempts": attempts})
            said = json.JSONDecoder().raw_decode(told.text)[0]["matrix"]
            return judge(said.splitlines(), canaries)


def main() -> None:
    backend, home = sys.argv[1:]
    found = asyncio.run(findings(backend, Path(home)))
    print(json.dumps({one.name: [one.verdict(LEVELS[backend]), one.has_succeeded, one.detail] for one in found}))


if __name__ == "__main__":
    main()
