"""A gateway in this process, between people on a chat service and a scripted model."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from talaria.app.gateway_app import GatewayApp, open_gateway_app
from talaria.app.settings import Settings, read_settings
from talaria.config.load import decode
from talaria.core.ids import SessionId
from talaria.store.base import Store
from talaria.testing import ModelServer
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.chat_service import SeenMessage
from talaria.testing.servers.telegram_server import TelegramServer

OWNER = "1001"


class House:
    def __init__(self, home: Path, model: ModelServer, telegram: TelegramServer) -> None:
        self.home = home
        self.model = model
        self.telegram = telegram
        self.config: dict[str, Any] = {
            "model": {
                "default": "scripted",
                "provider": "custom",
                "base_url": model.url,
                "api_key": "key",
                "wire": "openai_chat",
            },
            "gateway": {"workspace": str(home.parent / "people"), "platforms": {}},
        }
        self.platform("telegram", {**telegram.settings, "allowed_users": [OWNER]})
        self.options: dict[str, Any] = {}
        """Of `open_gateway_app`: another clock."""
        self.board: GatewayApp | None = None
        self.silent = ""
        """A platform that says nothing by itself."""

    def platform(self, name: str, settings: Mapping[str, Any]) -> None:
        self.config["gateway"]["platforms"][name] = dict(settings)

    def settings(self) -> Settings:
        plain = read_settings(self.home)
        return Settings(self.home, decode(self.config, self.home / "config.yaml"), plain.environment, plain.redactor)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[GatewayApp]:
        """Until the end of the block; leaving it drains."""
        async with open_gateway_app(self.settings(), **self.options) as board:
            assert not board.problems
            self.board = board
            running = asyncio.create_task(board.gateway.run())
            try:
                await self.until(lambda: self._is_connected(board))
                yield board
            finally:
                board.gateway.stop()
                async with asyncio.timeout(PATIENCE_S):
                    await running

    def _is_connected(self, board: GatewayApp) -> bool:
        health = board.gateway.health
        is_there = all(one.heard_at or (one.name == self.silent and one.state == "connected") for one in health)
        return len(health) == len(self.config["gateway"]["platforms"]) and is_there

    @property
    def store(self) -> Store:
        assert self.board is not None
        return self.board.app.store

    async def until(self, holds: Callable[[], bool | Awaitable[bool]]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = holds()
                if found if isinstance(found, bool) else await found:
                    return
                await asyncio.sleep(0.01)

    async def said(self, count: int, *, user: str = OWNER, chat: str = "") -> list[SeenMessage]:
        """What the bot has said there, once it has said so many things."""
        async with asyncio.timeout(PATIENCE_S):
            return list(await self.telegram.wait_for(count, user=user, chat=chat))

    async def session_of(self, key: str) -> SessionId:
        chat = await self.store.chats.get(key)
        assert chat is not None
        return chat.session
