"""The gateway as in the product, on the chat service of lines.

`python -m benchmarks.gateway_program ADDRESS FOLDER WHO`: WHO may speak is `everybody` or the name of one chat; or it
is `api`: then everybody may, and the HTTP API is served too, with the token TOKEN, on the port in the file `api-port`.
"""

# ruff: noqa: ARG002  (a platform that can do little still has all of the port's methods)

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

from benchmarks.api_clients import TOKEN
from benchmarks.chat_service import Line, Said
from benchmarks.serving import serve
from talaria.api.api_settings import ApiSettings
from talaria.api.api_tokens import digest_of
from talaria.app.gateway_app import GatewayApp, open_gateway_app
from talaria.app.settings import Settings
from talaria.cli.gateway import log as gateway_log
from talaria.config.schema import Config, ModelConfig
from talaria.core.redaction import Redactor
from talaria.core.secret import Secret
from talaria.gateway.gateway_settings import GatewaySettings
from talaria.gateway.service import PlatformSpec
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
from talaria.store.api_ports import API, ApiToken

PERSON = "api:bench"
_MOST = 100
"""Of one batch."""
_KEY = "sk-bench-4f7a1c02e9b3"
"""So that there is something to be kept out of all that is written and shown."""


class LinePlatform:
    name = "lines"
    account = "bench"
    capabilities = Capabilities(max_chars=4096)

    def __init__(self) -> None:
        self.line = Line(self._hear)
        self._heard: list[Said] = []
        self._news = asyncio.Event()
        self._ids = count()

    def _hear(self, batch: list[Said]) -> None:
        self._heard += batch
        self._news.set()

    async def receive(self, cursor: str | None) -> AsyncGenerator[Batch]:
        while True:
            await self._news.wait()
            batch, self._heard = self._heard[:_MOST], self._heard[_MOST:]
            if not self._heard:
                self._news.clear()
            yield Batch(tuple(_arrival(*said) for said in batch))

    async def acknowledge(self, batch: Batch) -> None:
        pass

    async def send(self, message: Outbound) -> SentId:
        self.line.say(message.where.chat, message.text)
        return SentId(str(next(self._ids)))

    async def edit(self, sent: SentId, message: Outbound) -> None:
        raise Rejected("Lines cannot be edited.")

    async def delete(self, sent: SentId, where: Address) -> None: ...
    async def show_typing(self, where: Address) -> None: ...
    async def react(self, where: Address, message_id: str, emoji: str) -> None: ...
    async def answer(self, press: Press, text: str) -> None: ...
    async def fetch(self, attachment: Attachment, to: Path, max_bytes: int) -> None:
        raise Rejected("Nothing is attached to a line.")

    async def chat_info(self, where: Address) -> ChatInfo:
        return ChatInfo(where, "dm", where.chat)

    async def create_thread(self, where: Address, name: str) -> Address | None:
        return None

    async def offer_commands(self, menu: Sequence[tuple[str, str]]) -> None: ...


def _arrival(chat: str, id: str, text: str) -> Arrival:
    return Arrival(id, Address("lines", chat), "dm", Sender(chat), text)


async def main(url: str, folder: Path, who: str) -> None:
    is_served = who == API
    config = Config(
        model=ModelConfig(provider="custom", default="test", base_url=url, api_key=Secret(_KEY)),
        gateway=GatewaySettings(workspace=str(folder.parent / "project"), max_live_sessions=1024),
        api=ApiSettings(enabled=is_served, port=0, requests_per_minute=10**9),
    )
    redactor = Redactor([_KEY])
    gateway_log.set_up(folder, redactor, is_shown=False)
    platform = LinePlatform()

    @asynccontextmanager
    async def opened(_: object) -> AsyncGenerator[LinePlatform]:
        yield platform

    anybody = who in ("everybody", API)
    allowed = PlatformSettings(allow_all_users=True) if anybody else PlatformSettings(allowed_users=(who,))
    door = PlatformSpec("lines", allowed, opened)
    async with open_gateway_app(Settings(folder, config, {}, redactor)) as app:
        gateway = app.gateway
        await gateway.reload(app.app, config.gateway, (*gateway.state.specs.values(), door))
        running = asyncio.create_task(gateway.run())
        if is_served:
            await _tell_port(app, folder / "api-port")
        await serve(platform.line)
        gateway.stop()
        await running


async def _tell_port(app: GatewayApp, file: Path) -> None:
    scopes = ("chat", "runs", "sessions")
    await app.app.store.api_tokens.add(ApiToken(name="bench", digest=digest_of(TOKEN), scopes=scopes))
    await app.gateway.state.gatekeeper.refresh()
    from talaria.api.api_platform import ApiPlatform

    platform = await app.gateway.state.links.wait(API)
    assert isinstance(platform, ApiPlatform)
    file.write_text(str(platform.port))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
