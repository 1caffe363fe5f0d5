"""Many messages at once: strangers by the thousand, and more of them than can be answered for a while."""

import asyncio
import re
import tracemalloc
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from talaria.app.build import Application, open_application
from talaria.app.settings import Settings
from talaria.config.schema import Config, ModelConfig
from talaria.gateway.gateway_settings import GatewaySettings
from talaria.gateway.gateway_state import PlatformSpec
from talaria.gateway.service import Gateway
from talaria.platforms.base import (
    Address,
    Arrival,
    Attachment,
    Batch,
    Capabilities,
    ChatInfo,
    Outbound,
    PlatformSettings,
    Press,
    Rejected,
    Sender,
    SentId,
)
from talaria.testing import ModelServer
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.model_server import RecordedRequest

BATCH = 100
STRANGERS = 10_000
CHATS, MESSAGES = 20, 100


class Square:
    """A place where everybody can be heard, in this process."""

    name = "square"
    account = "us"
    capabilities = Capabilities(max_chars=4096)

    def __init__(self) -> None:
        self.sent: dict[str, list[str]] = defaultdict(list)
        self._said: asyncio.Queue[Batch] = asyncio.Queue()
        self._changed = asyncio.Condition()
        self._acknowledged = 0

    def say(self, arrivals: Sequence[Arrival]) -> None:
        for start in range(0, len(arrivals), BATCH):
            cursor = arrivals[start].message_id
            self._said.put_nowait(Batch(tuple(arrivals[start : start + BATCH]), cursor))

    async def taken(self, count: int) -> None:
        """Until so many messages are on the gateway's disk, or known to concern nobody."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(lambda: self._acknowledged >= count)

    async def answered(self, words: int) -> None:
        """Until all answers together have so many words."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(
                lambda: sum(len(text.split()) for texts in self.sent.values() for text in texts) >= words
            )

    async def receive(self, cursor: str | None) -> AsyncGenerator[Batch]:
        while True:
            yield await self._said.get()

    async def acknowledge(self, batch: Batch) -> None:
        async with self._changed:
            self._acknowledged += len(batch.items)
            self._changed.notify_all()

    async def send(self, message: Outbound) -> SentId:
        async with self._changed:
            self.sent[message.where.chat].append(message.text)
            self._changed.notify_all()
        return SentId(message.key)

    async def edit(self, sent: SentId, message: Outbound) -> None:
        raise Rejected("What was said was said.")

    async def delete(self, sent: SentId, where: Address) -> None: ...
    async def show_typing(self, where: Address) -> None: ...
    async def react(self, where: Address, message_id: str, emoji: str) -> None: ...
    async def answer(self, press: Press, text: str) -> None: ...
    async def fetch(self, attachment: Attachment, to: Path, max_bytes: int) -> None:
        raise Rejected("Nobody carries anything.")

    async def chat_info(self, where: Address) -> ChatInfo:
        return ChatInfo(where, "dm", where.chat)

    async def create_thread(self, where: Address, name: str) -> Address | None:
        return None

    async def offer_commands(self, menu: Sequence[tuple[str, str]]) -> None: ...


@asynccontextmanager
async def gateway(tmp_path: Path, model: ModelServer, square: Square, *, is_open: bool) -> AsyncGenerator[Application]:
    """Until the end of the block; leaving it drains."""
    config = Config(model=ModelConfig(provider="custom", default="scripted", base_url=model.base_url))
    settings = GatewaySettings(workspace=str(tmp_path / "people"))

    @asynccontextmanager
    async def opened(_: object) -> AsyncGenerator[Square]:
        yield square

    door = PlatformSpec(square.name, PlatformSettings(allow_all_users=is_open), opened)
    async with open_application(Settings(tmp_path / "home", config, {}), tools=(), kind="gateway") as app:
        gateway = Gateway(app, settings, [door])
        running = asyncio.create_task(gateway.run())
        try:
            yield app
        finally:
            gateway.stop()
            async with asyncio.timeout(PATIENCE_S):
                await running


def said(chat: int, number: int) -> Arrival:
    return Arrival(f"{chat}-{number}", Address("square", str(chat)), "dm", Sender(str(chat)), f"word-{number}")


def strangers(numbers: Iterable[int]) -> list[Arrival]:
    return [said(number, 0) for number in numbers]


async def test_strangers_by_the_thousand_reach_nobody_and_leave_nothing(tmp_path: Path) -> None:
    square = Square()
    with ModelServer() as model:
        async with gateway(tmp_path, model, square, is_open=False) as app:
            square.say(strangers(range(1_000)))
            await square.taken(1_000)
            tracemalloc.start()
            try:
                for start in range(1_000, STRANGERS, 1_000):
                    square.say(strangers(range(start, start + 1_000)))
                    await square.taken(start + 1_000)
                kept_bytes, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert await app.store.sessions.list() == []
            assert await app.store.inbox.list_sessions() == []
            assert len(await app.store.access.requests()) == 3
            assert await app.store.inbox.cursor("square", "us") == "9900-0"
        assert model.requests == []
        assert kept_bytes < 1 << 20
    told = [text for texts in square.sent.values() for text in texts]
    assert len(told) == 3
    assert all("talaria pairing approve square" in text for text in told)


def echo(request: RecordedRequest) -> str:
    """The words of what the person said last."""
    return " ".join(re.findall(r"word-\d+", request.body.decode().rpartition('"role":"user"')[2]))


async def test_what_has_queued_up_is_answered_in_order_and_each_once(tmp_path: Path) -> None:
    square = Square()
    with ModelServer(respond=echo) as model:
        async with gateway(tmp_path, model, square, is_open=True) as app:
            square.say([said(chat, number) for number in range(MESSAGES) for chat in range(CHATS)])
            await square.answered(CHATS * MESSAGES)
            sessions = await app.store.sessions.list()
        async with gateway(tmp_path, model, square, is_open=True) as app:
            assert await app.store.inbox.list_sessions() == []
            assert await app.store.outbox.list_targets() == []
    in_order = [f"word-{number}" for number in range(MESSAGES)]
    assert len(sessions) == CHATS
    assert {chat: " ".join(texts).split() for chat, texts in square.sent.items()} == {
        str(chat): in_order for chat in range(CHATS)
    }
