"""The tools of servers as tools of ours."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from talaria.core.errors import ToolFailed
from talaria.core.tool_spec import ToolSpec
from talaria.tools.base import AfterCrash, Claim, Effect, Run, Scope, Shown, Tool, decoded
from talaria.tools.mcp.names import named
from talaria.tools.mcp.offers import ServerTool
from talaria.tools.mcp.server_connection import ServerConnection
from talaria.tools.person import ARGUMENTS, Proposal, pretty_json

MARGIN_S = 10.0
"""A call ends itself in time; only if that fails the executor ends it."""


@dataclass(frozen=True, slots=True)
class McpTool:
    """Fixed: what its server changes later is another tool, of another session."""

    connection: ServerConnection
    offer: ServerTool
    spec: ToolSpec
    after_crash: AfterCrash = "once"

    @property
    def toolset(self) -> str:
        return f"mcp:{self.connection.name}"

    @property
    def timeout_s(self) -> float:
        return self.connection.entry.timeout + MARGIN_S

    def prepare(self, arguments: str, scope: Scope) -> "McpInvocation":  # noqa: ARG002
        given = decoded(arguments, self.spec.name, dict[str, Any])
        headline = f"Let the MCP server {self.connection.name} do {self.offer.name}?"
        question = Proposal(headline, pretty_json(given), ARGUMENTS)
        claim = Claim(sends=not self.offer.is_reading, reveals=True, is_untrusted=True)
        return McpInvocation(self, given, self.offer.effect, claim, question)


@dataclass(frozen=True, slots=True)
class McpInvocation:
    tool: McpTool
    arguments: dict[str, Any]
    effect: Effect
    claim: Claim
    question: Proposal | None

    async def run(self, run: Run) -> Shown:  # noqa: ARG002
        answer = await self.tool.connection.call(self.tool.offer.name, self.arguments)
        if answer.is_error:
            raise ToolFailed(answer.text or f"{self.tool.offer.name} failed and did not say why.")
        return Shown(answer.text, answer.images)


def tools_of(connections: Iterable[ServerConnection]) -> tuple[Tool, ...]:
    offered = [
        (connection, offer)
        for connection in connections
        for offer in (connection.listing.offers if connection.listing else ())
        if connection.entry.tools.admits(offer.name)
    ]
    names = named((connection.name, offer.name) for connection, offer in offered)
    return tuple(
        McpTool(connection, offer, ToolSpec(name, offer.description, offer.parameters))
        for name, (connection, offer) in zip(names, offered, strict=True)
    )
