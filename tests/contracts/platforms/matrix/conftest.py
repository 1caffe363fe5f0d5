"""A real homeserver for all tests of a run; accounts of its own for each."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest

from talaria.core.clock import SystemClock
from talaria.core.secret import Secret
from talaria.platforms.base import Address, Arrival, Batch, Kit, Outbound, Platform
from talaria.platforms.matrix.config import MatrixSettings
from talaria.platforms.matrix.platform import open as open_matrix
from talaria.testing.servers.synapse import Homeserver, Synapse

ENOUGH_S = 30.0


class Ear:
    """What a platform hears, from a cursor on."""

    def __init__(self, stream: AsyncGenerator[Batch], cursor: str | None) -> None:
        self._stream = stream
        self.cursor = cursor

    async def batch(self) -> Batch:
        async with asyncio.timeout(ENOUGH_S):
            batch = await anext(self._stream)
        self.cursor = batch.cursor or self.cursor
        return batch

    async def arrivals(self, count: int = 1) -> Sequence[Arrival]:
        found: list[Arrival] = []
        while len(found) < count:
            found += [item for item in (await self.batch()).items if isinstance(item, Arrival)]
        return found

    async def arrival(self) -> Arrival:
        (found,) = await self.arrivals()
        return found


class Connect(Protocol):
    def __call__(
        self, *, home: str = "home", allowed: Sequence[str] = ("1001",), **settings: Any
    ) -> AbstractAsyncContextManager[Platform]: ...


Listen = Callable[..., AbstractAsyncContextManager[Ear]]
Words = Callable[..., Outbound]


@pytest.fixture(scope="session")
def homeserver(tmp_path_factory: pytest.TempPathFactory) -> Generator[Homeserver]:
    with Homeserver(tmp_path_factory.mktemp("homeserver")) as running:
        yield running


@pytest.fixture
async def server(homeserver: Homeserver) -> AsyncGenerator[Synapse]:
    async with Synapse(homeserver) as there:
        yield there


@pytest.fixture
def connect(server: Synapse, tmp_path: Path) -> Connect:
    def opened(
        *, home: str = "home", allowed: Sequence[str] = ("1001",), **settings: Any
    ) -> AbstractAsyncContextManager[Platform]:
        ids = {server.id_of(user) for user in allowed}
        kit = Kit(home=tmp_path / home, clock=SystemClock(), is_allowed=lambda sender: sender.id in ids)
        return open_matrix(decoded({**server.settings, **settings}), kit)

    return opened


def decoded(settings: dict[str, Any]) -> MatrixSettings:
    def secret(type_: type, value: Any) -> Any:
        return Secret(value) if type_ is Secret else value

    return msgspec.convert(settings, MatrixSettings, dec_hook=secret)


@pytest.fixture
def listen() -> Listen:
    @asynccontextmanager
    async def listening(platform: Platform, cursor: str | None = None) -> AsyncGenerator[Ear]:
        """Connected: what is said from now on is heard."""
        async with aclosing(platform.receive(cursor)) as stream:
            ear = Ear(stream, cursor)
            if cursor is None:
                assert (await ear.batch()).items == ()
            yield ear

    return listening


@pytest.fixture
def words() -> Words:
    def outbound(chat: str, text: str, *, key: str = "key-1", thread: str = "", **more: Any) -> Outbound:
        return Outbound(where=Address("matrix", chat, thread), text=text, key=key, **more)

    return outbound
