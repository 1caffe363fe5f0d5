"""All servers of an application. The composition root opens them and asks for their tools when a session begins.

What the model calls the tools of servers: `mcp_<server>_<tool>`, in signs that every wire takes, each name once.
The tools of servers as tools of ours.
"""

import asyncio
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """For pairs of server and tool, in order. Who comes first keeps a plain name; a mark tells the others apart."""
    taken: set[str] = set()
    names: list[str] = []
    for server, tool in tools:
        name = next(name for name in _candidates(server, tool) if name not in taken)
        taken.add(name)
        names.append(name)
    return names


def _candidates(server: str, tool: str) -> Iterator[str]:
    """The same in every process: a session's tools keep their names."""
    plain = _STRANGE.sub("_", f"mcp_{server}_{tool}")
    if len(plain) <= MAX_CHARS:
        yield plain
    for attempt in count():
        mark = hashlib.sha256(f"{attempt}\0{server}\0{tool}".encode()).hexdigest()[:MARK_CHARS]
        yield f"{plain[: MAX_CHARS - MARK_CHARS - 1]}_{mark}"


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
        given = decode_arguments(arguments, self.spec.name, dict[str, Any])
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

    async def run(self, run: Run) -> RichResult:  # noqa: ARG002
        answer = await self.tool.connection.call(self.tool.offer.name, self.arguments)
        if answer.is_error:
            raise ToolFailed(answer.text or f"{self.tool.offer.name} failed and did not say why.")
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
    """`async with open_servers(…) as servers`: returns at once for servers whose tools are known from last time; one
    that never answered is waited for, up to its `connect_timeout`, the first time only."""
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
        await asyncio.gather(*(one.recall() for one in self._connections))
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
        """Waits until each server has been tried once, also those whose tools are known."""
        await asyncio.gather(*(one.first_try() for one in self._connections))

    def problem(self, name: str) -> str:
        """Why a server is away, or nothing; goes on behind its name."""
        return next(one.problem for one in self._connections if one.name == name)

    def find_refused_hosts(self, name: str) -> tuple[str, ...]:
        """Hosts that a server asked for in vain from the sandbox."""
        confined = next(one.confined for one in self._connections if one.name == name)
        return confined.refused if confined else ()

    def tools(self) -> Sequence[Tool]:
        """As they are known now, for a session that begins now; what changes later is for the next."""
        return tools_of(self._connections)

    @property
    def notices(self) -> tuple[str, ...]:
        """What a person should know of servers that are not as they should be."""
        return tuple(notice for one in self._connections for notice in _notices(one))


def _notices(one: ServerConnection) -> Iterator[str]:
    if one.problem:
        has_tools = one.listing is not None and one.listing.is_known
        yield f"The MCP server {one.name} {one.problem}." + ("" if has_tools else " Its tools are missing here.")
    elif one.listing is not None and not one.listing.is_known:
        yield f"The MCP server {one.name} has not answered yet; its tools come with the next conversation."
    refused = one.listing.refused if one.listing else ()
    if refused:
        more = f", and {len(refused) - MAX_NAMED} more" if len(refused) > MAX_NAMED else ""
        yield f"Of the MCP server {one.name} some tools cannot be used: {'; '.join(refused[:MAX_NAMED])}{more}."
