"""All servers of an application, and their tools. The composition root opens them; each session asks for the tools.

Tools are called `mcp_<server>_<tool>`, in characters that every provider accepts, and no two have the same name.
"""

import asyncio
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Self

from talaria.core.clock import Clock
from talaria.core.errors import ToolFailed
from talaria.core.messages import ToolSpec
from talaria.tools.base import AfterCrash, Claim, Effect, RichResult, Run, Scope, Tool, decode_arguments
from talaria.tools.mcp.offers import ServerTool
from talaria.tools.mcp.sandboxing import ServerSandboxes
from talaria.tools.mcp.server_connection import ServerConnection
from talaria.tools.mcp.server_entries import ServerEntry
from talaria.tools.person import ARGUMENTS, Proposal, pretty_json

MAX_CHARS = 64
MARK_CHARS = 6
_STRANGE = re.compile(r"[^A-Za-z0-9_-]")


def make_names(tools: Iterable[tuple[str, str]]) -> list[str]:
    """For pairs of server and tool, in order. The first keeps the plain name; a hash tells others apart. The names are
    the same in every process, since a session's tools keep theirs."""
    names: dict[str, None] = {}
    for server, tool in tools:
        plain = name = _STRANGE.sub("_", f"mcp_{server}_{tool}")
        for attempt in count():
            if len(name) <= MAX_CHARS and name not in names:
                break
            mark = hashlib.sha256(f"{attempt}\0{server}\0{tool}".encode()).hexdigest()[:MARK_CHARS]
            name = f"{plain[: MAX_CHARS - MARK_CHARS - 1]}_{mark}"
        names[name] = None
    return list(names)


MARGIN_S = 10.0
"""Calls end in time by themselves; the executor ends one only if that fails."""


@dataclass(frozen=True, slots=True)
class McpTool:
    """Fixed for the session: later changes by the server apply to later sessions."""

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
        given = decode_arguments(arguments, self.spec.name, dict[str, Any])
        headline = f"Let the MCP server {self.connection.name} run {self.offer.name}?"
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

    async def run(self, run: Run) -> RichResult:  # noqa: ARG002
        answer = await self.tool.connection.call(self.tool.offer.name, self.arguments)
        if answer.is_error:
            raise ToolFailed(answer.text or f"{self.tool.offer.name} failed without giving a reason.")
        return RichResult(answer.text, answer.images)


def tools_of(connections: Iterable[ServerConnection]) -> tuple[Tool, ...]:
    offered = [
        (connection, offer)
        for connection in connections
        for offer in (connection.listing.offers if connection.listing else ())
        if connection.entry.tools.admits(offer.name)
    ]
    names = make_names((connection.name, offer.name) for connection, offer in offered)
    return tuple(
        McpTool(connection, offer, ToolSpec(name, offer.description, offer.parameters))
        for name, (connection, offer) in zip(names, offered, strict=True)
    )


MAX_NAMED = 3


def open_servers(
    entries: Mapping[str, ServerEntry],
    home: Path,
    clock: Clock,
    environment: Mapping[str, str],
    sandboxes: ServerSandboxes,
) -> "Servers":
    """`async with open_servers(…) as servers` does not wait for servers whose tools are known from last time. A new
    server is waited for, up to its `connect_timeout`, but only the first time."""
    return Servers(
        [
            ServerConnection(name, entry, home, clock, environment, sandboxes.confine(name, entry))
            for name, entry in entries.items()
            if entry.enabled
        ]
    )


class Servers:
    def __init__(self, connections: Sequence[ServerConnection]) -> None:
        self._connections = connections

    async def __aenter__(self) -> Self:
        await asyncio.gather(*(one.load_listing() for one in self._connections))
        unknown = [one for one in self._connections if one.listing is None]
        for one in self._connections:
            one.open()
        try:
            await asyncio.gather(*(one.first_try() for one in unknown))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(one.close() for one in self._connections), return_exceptions=True)

    async def first_tries(self) -> None:
        """Waits until each server has been tried once, including those whose tools are known."""
        await asyncio.gather(*(one.first_try() for one in self._connections))

    def problem(self, name: str) -> str:
        """Why a server is away, or nothing; continues a sentence that begins with its name."""
        return next(one.problem for one in self._connections if one.name == name)

    def find_refused_hosts(self, name: str) -> tuple[str, ...]:
        """Hosts that a server in the sandbox was refused."""
        confined = next(one.confined for one in self._connections if one.name == name)
        return confined.refused if confined else ()

    def tools(self) -> Sequence[Tool]:
        """As they are known now, for a session that begins now."""
        return tools_of(self._connections)

    @property
    def notices(self) -> tuple[str, ...]:
        """What a person should know about servers with problems."""
        notices: list[str] = []
        for one in self._connections:
            server, listing = f"The MCP server {one.name}", one.listing
            if one.problem:
                has_tools = listing is not None and listing.is_known
                notices.append(f"{server} {one.problem}." + ("" if has_tools else " Its tools are missing here."))
            elif listing is not None and not listing.is_known:
                notices.append(f"{server} has not answered yet; its tools will be in the next conversation.")
            if listing is not None and (refused := listing.refused):
                more = f", and {len(refused) - MAX_NAMED} more" if len(refused) > MAX_NAMED else ""
                problems = "; ".join(refused[:MAX_NAMED])
                notices.append(f"Some tools of the MCP server {one.name} cannot be used: {problems}{more}.")
        return tuple(notices)
