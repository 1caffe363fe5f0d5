"""Talaria put together as in production, in a test's folder: real settings, model and chat servers on loopback.

The store is in memory and sleeping advances the time, unless a test asks for the disk or the real clock.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

from talaria.app.build import Application, OpenStore, open_application
from talaria.app.gateway_app import GatewayApp, open_gateway_app
from talaria.app.settings import Settings
from talaria.config.load import decode
from talaria.config.paths import secrets_file
from talaria.config.secrets import environment as read_environment
from talaria.config.secrets import find_secrets
from talaria.core.clock import Clock, SystemClock
from talaria.core.entries import Entry, MessageAdded, TurnOrigin
from talaria.core.errors import BadConfig
from talaria.core.events import Event, Notice
from talaria.core.ids import SessionId
from talaria.core.messages import Message, user
from talaria.core.redaction import Redactor
from talaria.providers.base import Provider
from talaria.providers.upstream import Upstream
from talaria.runtime.session import LiveSession
from talaria.runtime.turn_runner import Report
from talaria.store.base import Store
from talaria.store.memory import MemoryStore
from talaria.testing.manual_clock import ManualClock
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.chat_service import SeenMessage
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.telegram_server import TelegramServer
from talaria.tools.base import Tool
from talaria.tools.function import tool

OWNER = "1001"
"""Who may write to the bot of the Telegram server."""

EventT = TypeVar("EventT", bound=Event)


def open_memory_store(_: Path, clock: Clock) -> MemoryStore:
    return MemoryStore(clock)


class Harness:
    """`async with Harness(tmp_path) as talaria:`, then `ask` for turns, or `serve` for a gateway. `config` (sections of
    config.yaml) and `environment` may be changed before either."""

    def __init__(
        self,
        folder: Path,
        *,
        model_server: ModelServer | None = None,
        telegram: TelegramServer | None = None,
        tools: Iterable[Tool | Callable[..., Any]] | None = (),
        environment: Mapping[str, str] | None = None,
        clock: ManualClock | None = None,
        store: OpenStore = open_memory_store,
        **config: Any,
    ) -> None:
        """`model_server`, `telegram`: servers that are running. Without one, and unless `config` names a model, a model
        server is started. `tools`: None means the builtin ones."""
        self.home = folder / "home"
        self._folder = folder
        self.model = model_server or ModelServer()
        self.clock = clock or ManualClock(auto=True)
        self.gateway_clock: Clock = SystemClock()
        """Chat servers run in real time, and so does a gateway."""
        self.environment = dict(environment or {})
        self.config: dict[str, Any] = config
        self.events: list[Event] = []
        """Of the last turn that `ask` ran."""
        self._telegram = telegram
        self._tools = None if tools is None else [one if isinstance(one, Tool) else tool(one) for one in tools]
        self._starts_model = model_server is None and "model" not in config
        self.open_store = store
        self.gateway: GatewayApp | None = None
        """The one that `serve` opened."""
        self.silent_platform = ""
        """The name of a platform that counts as connected before anything is heard from it."""
        self._stack = AsyncExitStack()
        self._app: Application | None = None
        self._live: LiveSession | None = None

    async def __aenter__(self) -> Self:
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._starts_model:
            self._stack.enter_context(self.model)
        if "model" not in self.config:
            self.config["model"] = {"default": "test-model", "base_url": self.model.base_url}
        if self._telegram is not None:
            self.add_platform("telegram", {**self._telegram.settings, "allowed_users": [OWNER]})
        return self

    async def __aexit__(self, *_: object) -> None:
        self._app = self._live = None
        await self._stack.aclose()

    def settings(self) -> Settings:
        """`config` as if it were in config.yaml, with what `.env` in the home says."""
        config = decode(self.config, self.home / "config.yaml")
        environment = read_environment(secrets_file(self.home), self.environment)
        return Settings(self.home, config, environment, Redactor(find_secrets(environment, config)))

    async def open(self) -> Application:
        """The application, which stays open until the harness ends. `ask` opens it by itself."""
        if self._app is None:
            self._app = await self._stack.enter_async_context(
                open_application(
                    self.settings(), tools=self._tools, kind="test", clock=self.clock, open_store=self.open_store
                )
            )
        return self._app

    @property
    def project(self) -> Path:
        """Where its conversations work."""
        project = self._folder / "project"
        project.mkdir(exist_ok=True)
        return project

    @property
    def app(self) -> Application:
        if self.gateway is not None:
            return self.gateway.app
        if self._app is None:
            raise RuntimeError("Nothing is open: call `open` or `ask`, or use `serve`.")
        return self._app

    @property
    def store(self) -> Store:
        return self.app.store

    @property
    def live(self) -> LiveSession:
        """The conversation of `ask`, unless that is given another."""
        if self._live is None:
            self._live = self.session()
        return self._live

    def session(
        self, id: str = "one", *, cwd: Path | None = None, origin: TurnOrigin = "terminal", **options: Any
    ) -> LiveSession:
        """A new conversation. `options` are those of `Application.session`."""
        return self.app.session(id=SessionId(id), cwd=cwd or self.project, origin=origin, **options)

    async def ask(self, text: str = "go", live: LiveSession | None = None) -> Report:
        """Run one turn; its events are in `events`."""
        await self.open()
        self.events.clear()
        async with asyncio.timeout(PATIENCE_S):
            return await (live or self.live).ask(user(text), self.events.append)

    def events_of(self, kind: type[EventT]) -> list[EventT]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def notices(self) -> list[str]:
        return [event.text for event in self.events_of(Notice)]

    async def entries(self, live: LiveSession | None = None) -> list[Entry]:
        return [recorded.entry for recorded in await self.store.journal.entries((live or self.live).id)]

    async def messages(self, live: LiveSession | None = None) -> list[Message]:
        return [entry.message for entry in await self.entries(live) if isinstance(entry, MessageAdded)]

    async def restart(self) -> None:
        """As if this process had ended and another had opened the conversation."""
        app = self.app
        await app.store.owners.leave(app.owner)
        self._app = replace(app, owner=await app.store.owners.join("test"))
        row = await app.store.sessions.get(self.live.id)
        self._live = self._app.session(row, id=self.live.id, cwd=self.project, origin="terminal")

    def wrap_providers(self, wrap: Callable[[Provider], Provider]) -> None:
        """From now on, models are reached through what `wrap` makes of each provider."""
        reach = self.app.upstream.provider
        self._app = replace(self.app, upstream=Upstream(lambda endpoint: wrap(reach(endpoint)), self.clock))
        self._live = None

    @property
    def telegram(self) -> TelegramServer:
        if self._telegram is None:
            raise RuntimeError("This harness has no Telegram server: pass `telegram=`.")
        return self._telegram

    def add_platform(self, name: str, settings: Mapping[str, Any]) -> None:
        gateway = self.config.setdefault("gateway", {})
        gateway.setdefault("workspace", str(self.home.parent / "people"))
        gateway.setdefault("platforms", {})[name] = dict(settings)

    @asynccontextmanager
    async def serve(self, *, is_api_only: bool = False) -> AsyncGenerator[GatewayApp]:
        """A gateway in this process, connected, until the end of the block, which drains it. `is_api_only`: it serves
        the HTTP API and no chats, as `talaria api` does."""
        async with open_gateway_app(
            self.settings(), is_api_only=is_api_only, clock=self.gateway_clock, open_store=self.open_store
        ) as gateway_app:
            if gateway_app.problems:
                raise BadConfig(" ".join(gateway_app.problems.values()))
            self.gateway = gateway_app
            running = asyncio.create_task(gateway_app.gateway.run())
            try:
                await self.until(lambda: self._is_connected(gateway_app))
                yield gateway_app
            finally:
                gateway_app.gateway.stop()
                async with asyncio.timeout(PATIENCE_S):
                    await running

    def _is_connected(self, gateway_app: GatewayApp) -> bool:
        health = gateway_app.gateway.health
        is_heard = (one.heard_at or (one.name == self.silent_platform and one.state == "connected") for one in health)
        return len(health) == len(gateway_app.gateway.platforms) and all(is_heard)

    async def until(self, holds: Callable[[], bool | Awaitable[bool]]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = holds()
                if found if isinstance(found, bool) else await found:
                    return
                await asyncio.sleep(0.01)

    async def wait_for_messages(self, count: int, *, user: str = OWNER, chat: str = "") -> list[SeenMessage]:
        """What the bot has sent to a Telegram chat, once there are `count` messages."""
        async with asyncio.timeout(PATIENCE_S):
            return list(await self.telegram.wait_for(count, user=user, chat=chat))

    async def session_of(self, key: str) -> SessionId:
        """The session of the chat with this key."""
        chat = await self.store.chats.get(key)
        if chat is None:
            raise LookupError(f"No chat has the key {key}.")
        return chat.session
