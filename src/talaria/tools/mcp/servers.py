"""All servers of an application. The composition root opens them and asks for their tools when a session begins."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from talaria.core.clock import Clock
from talaria.tools.base import Tool
from talaria.tools.mcp.sandboxing import ServerSandboxes
from talaria.tools.mcp.server_connection import ServerConnection
from talaria.tools.mcp.server_entries import ServerEntry
from talaria.tools.mcp.server_tools import tools_of

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

    def refused(self, name: str) -> tuple[str, ...]:
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
