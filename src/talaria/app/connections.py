"""Connections to model endpoints, all over one HTTP client, which is loaded when first needed."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from talaria.config import paths
from talaria.config.schema import Config
from talaria.config.selection import DEMO, ModelChoice, local_servers
from talaria.core.clock import Clock
from talaria.providers.base import Endpoint, Provider
from talaria.providers.demo import DemoProvider

if TYPE_CHECKING:
    from talaria.net.client import HttpClient


class Connections:
    def __init__(self, home: Path, clock: Clock, program: str = "talaria") -> None:
        self._program = program
        self._home = home
        self._clock = clock
        self._stack = AsyncExitStack()
        self._client: HttpClient | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def provider(self, endpoint: Endpoint) -> Provider:
        if endpoint.provider == DEMO:
            return DemoProvider(paths.secrets_file(self._home), self._program)
        from talaria.net.client import HttpClient  # noqa: PLC0415  (takes 100 ms, which the demo does not need)
        from talaria.providers.http_provider import HttpProvider, wire_for  # noqa: PLC0415

        if self._client is None:
            self._client = HttpClient(self._clock)
            self._stack.push_async_exit(self._client)
        return HttpProvider(endpoint, wire_for(endpoint.wire), self._client, self._clock)


async def local_choice(config: Config, environment: Mapping[str, str], clock: Clock) -> ModelChoice | None:
    """Find a model server that is running on this machine, or at an address from the settings."""
    from talaria.providers import server_discovery  # noqa: PLC0415

    listening = await server_discovery.open_ports(local_servers(config, environment))
    if not listening:
        return None
    from talaria.net.client import HttpClient  # noqa: PLC0415

    async with HttpClient(clock) as client:
        found = await server_discovery.first_model(listening, client)
    return ModelChoice(found.provider, found.model) if found else None
