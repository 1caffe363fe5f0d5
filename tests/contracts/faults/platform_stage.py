"""Where the platform fault table is played: a gateway between a scripted model, the service that misbehaves, and one
that does not, where people are told of what could not be delivered. Its clock runs fast."""

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Self

import aiohttp
import msgspec
import pytest
from aiohttp import web
from tests.gateways import gateway_harness
from tests.ports import reserved_port
from tests.servers.discord_server import DiscordServer
from tests.servers.slack_server import SlackServer

from talaria.app.gateway_app import GatewayApp, open_gateway_app
from talaria.core.secret import Secret
from talaria.gateway.gateway_status import Health
from talaria.gateway.service import Gateway
from talaria.platforms.webhook import config
from talaria.store.chat_ports import OutboxRow, OutboxState
from talaria.testing import ModelServer
from talaria.testing.harness import OWNER, Harness
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.chat_service import Fault, LostAnswer, Refusal, SeenMessage, Slow
from talaria.testing.servers.telegram_server import TelegramServer

LONG = [pytest.mark.long]
PACE = 40.0
TYPING_UNDER_WAY = 0.5
"""Of a pause: a sign of typing that comes so early may have been on its way."""
PEOPLE = ("1001", "1002", "1003", "1004")
SECRET = "a-secret-of-enough-letters"
EVERY_STATE: tuple[OutboxState, ...] = ("pending", "started", "sent", "failed", "expired")

Call = Literal["send", "edit", "delete", "typing"]


class QuickClock:
    """Runs `pace` times as fast as the world; its calendar can be turned on."""

    def __init__(self, pace: float = PACE) -> None:
        self.pace = pace
        self.turned_on_s = 0.0

    def now(self) -> float:
        return time.time() + self.turned_on_s

    def monotonic(self) -> float:
        return time.monotonic() * self.pace

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.pace)

    async def expire(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class WebhookServer:
    """A program that speaks to the agent by HTTP, and is answered so. Its users are its chats."""

    def __init__(self) -> None:
        self._gateway_port = 0
        self._around = ExitStack()
        self._faults: deque[Fault] = deque()
        self._calls: list[dict[str, Any]] = []
        self._taken: dict[str, SeenMessage] = {}
        self._chats: dict[str, list[str]] = {}
        self._said = 0
        self.troubled: set[str] = set()
        """Chats in which nothing works."""

    async def __aenter__(self) -> Self:
        self._gateway_port = self._around.enter_context(reserved_port())
        app = web.Application()
        app.router.add_post("/answers", self._take)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        self._around.close()

    @property
    def settings(self) -> Mapping[str, Any]:
        url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/answers"
        return {"secret": SECRET, "routes": {"ci": {"reply_url": url}}, "listen_port": self._gateway_port}

    async def say(self, text: str, *, user: str = OWNER, chat: str = "", thread: str = "") -> str:
        self._said += 1
        await self.post({"id": str(self._said), "text": text, "chat": chat or user, "thread": thread})
        return str(self._said)

    async def post(self, message: Mapping[str, str]) -> int:
        """The status of the answer."""
        body = json.dumps(message).encode()
        headers = config.sign(Secret(SECRET), body, time.time())
        address = f"http://127.0.0.1:{self._gateway_port}/webhook/ci"
        async with aiohttp.ClientSession() as session, session.post(address, data=body, headers=headers) as answer:
            return answer.status

    def list_messages(self, *, user: str = OWNER, chat: str = "") -> Sequence[SeenMessage]:
        return [self._taken[key] for key in self._chats.get(chat or user, ())]

    def fault(self, method: str, *faults: Fault) -> None:
        self._faults.extend(faults)

    def calls(self, method: str) -> Sequence[Mapping[str, Any]]:
        return self._calls if method == "answer" else ()

    async def _take(self, request: web.Request) -> web.Response:
        """What has a key that it knows is the same message."""
        given = await request.json()
        self._calls.append({**given, "at": time.monotonic()})
        fault = self._faults.popleft() if self._faults else None
        if given["chat"] in self.troubled:
            fault = Refusal(500)
        if isinstance(fault, Refusal):
            after = {} if fault.retry_after_s is None else {"Retry-After": f"{fault.retry_after_s:g}"}
            return web.Response(status=fault.status, headers=after)
        if given["key"] not in self._taken:
            self._taken[given["key"]] = SeenMessage(given["key"], given["text"])
            self._chats.setdefault(given["chat"], []).append(given["key"])
        if isinstance(fault, LostAnswer) and request.transport is not None:
            request.transport.abort()
        if isinstance(fault, Slow):
            await asyncio.sleep(fault.seconds)
        return web.Response()


class Place(msgspec.Struct, frozen=True):
    """How a service names things, and how it refuses them."""

    name: str
    serve: Callable[[], Any]
    platform: str
    calls: Mapping[Call, str]
    """Its methods."""
    settings: Mapping[str, Any] = {}
    person: Callable[[str], str] = lambda user: user
    """As the settings name them."""
    is_keyed: bool = False
    """A second message with the same key is recognised."""
    blocked: Refusal = Refusal(403)
    rejected: Refusal = Refusal(400)
    unparsable: Refusal | None = None
    """What it says to markup that it does not understand."""
    no_entry: Refusal = Refusal(401)


def webhook_at(port: int) -> Mapping[str, Any]:
    return {"webhook": {"url": f"http://127.0.0.1:{port}/hook", "secret_token": SECRET, "listen_port": port}}


TELEGRAM = Place(
    "telegram",
    TelegramServer,
    "telegram",
    {"send": "sendMessage", "edit": "editMessageText", "delete": "deleteMessage", "typing": "sendChatAction"},
    blocked=Refusal(403, words="Forbidden: bot was blocked by the user"),
    rejected=Refusal(400, words="Bad Request: message is too long"),
    unparsable=Refusal(400, words="Bad Request: can't parse entities: Unsupported start tag"),
)
HOOKED = msgspec.structs.replace(TELEGRAM, name="telegram-webhook")
DISCORD = Place(
    "discord",
    DiscordServer,
    "discord",
    {"send": "create_message", "edit": "edit_message", "delete": "delete_message", "typing": "trigger_typing"},
    is_keyed=True,
    blocked=Refusal(403, words="Cannot send messages to this user", extra={"code": 50007}),
    rejected=Refusal(400, words="Must be 2000 or fewer in length.", extra={"code": 50035}),
)
SLACK = Place(
    "slack",
    SlackServer,
    "slack",
    {"send": "chat.postMessage", "edit": "chat.update", "delete": "chat.delete"},
    {"ping_s": 0.2},
    lambda user: f"U{user}",
    blocked=Refusal(200, words="not_in_channel"),
    rejected=Refusal(200, words="too_many_attachments"),
    unparsable=Refusal(200, words="invalid_blocks"),
    no_entry=Refusal(200, words="token_revoked"),
)
WEBHOOK = Place(
    "webhook",
    WebhookServer,
    "webhook",
    {"send": "answer"},
    person=lambda _: "ci",
    is_keyed=True,
    blocked=Refusal(410),
)
EVERYWHERE = (TELEGRAM, HOOKED, DISCORD, SLACK, WEBHOOK)
CHATS = (TELEGRAM, DISCORD, SLACK)


class Stage:
    """Inside `staged`."""

    def __init__(self, place: Place, service: Any, harness: Harness, elsewhere: Any) -> None:
        self.place = place
        self.service = service
        self.harness = harness
        self.model = harness.model
        self.clock = QuickClock()
        self._elsewhere = elsewhere
        self.gateway_app: GatewayApp | None = None

    @asynccontextmanager
    async def begun(self) -> AsyncGenerator[Gateway]:
        """It may not be connected yet. Leaving drains."""
        self.harness.gateway_clock = self.clock
        async with open_gateway_app(
            self.harness.settings(), clock=self.harness.gateway_clock, open_store=self.harness.open_store
        ) as gateway_app:
            assert not gateway_app.problems
            self.gateway_app = self.harness.gateway = gateway_app
            running = asyncio.create_task(gateway_app.gateway.run())
            try:
                yield gateway_app.gateway
            finally:
                gateway_app.gateway.stop()
                async with asyncio.timeout(PATIENCE_S):
                    await running

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Gateway]:
        async with self.begun() as gateway:
            names = self.harness.config["gateway"]["platforms"]
            await self.until(lambda: all(self._health(name).state == "connected" for name in names))
            yield gateway

    @property
    def health(self) -> Health:
        return self._health(self.place.platform)

    def _health(self, name: str) -> Health:
        assert self.gateway_app is not None
        return next((one for one in self.gateway_app.gateway.health if one.name == name), Health(name))

    async def until(self, holds: Callable[[], bool | Awaitable[bool]]) -> None:
        await self.harness.until(holds)

    async def say(self, text: str, **where: str) -> str:
        return await self.service.say(text, **where)

    def texts(self, **where: str) -> list[str]:
        return [one.text for one in self.service.list_messages(**where)]

    def elsewhere(self) -> list[str]:
        """What is read in the home channel of the other service."""
        return [one.text for one in self._elsewhere.list_messages()]

    async def settled(self, turns: int) -> None:
        """Until that many turns are answered, one way or the other."""
        await self.until(lambda: len(self.model.requests) >= turns)
        await self.until(self._is_settled)

    async def _is_settled(self) -> bool:
        return not await self.harness.store.inbox.list_sessions() and not await self.has_something_due()

    async def has_something_due(self) -> bool:
        return bool(await self.harness.store.outbox.list_targets())

    async def has_been_put_off(self) -> bool:
        """After a failure that says why."""
        return any(row.error for row in await self.rows("pending"))

    async def rows(self, *states: OutboxState) -> list[OutboxRow]:
        """Of the outbox, oldest first."""
        return list(reversed(await self.harness.store.outbox.list(states or EVERY_STATE)))

    def calls(self, what: Call) -> Sequence[Mapping[str, Any]]:
        return self.service.calls(self.place.calls[what]) if what in self.place.calls else ()

    def fault(self, what: Call, *faults: Fault) -> None:
        self.service.fault(self.place.calls[what], *faults)

    def written(self) -> list[tuple[float, Call]]:
        """When anything was asked for that people see."""
        return [(one["at"], each) for each in self.place.calls for one in self.calls(each)]

    def early(self, what: Call, faults: Sequence[Fault], under_way: float = 0.0) -> list[str]:
        """What was written although the service had just asked for a rest, with these as its first answers.

        `under_way`: what comes in this part of a pause may have been on its way by then, and does not count.
        """
        found: list[str] = []
        for refused, fault in zip(self.calls(what), faults, strict=False):
            pause_s = (getattr(fault, "retry_after_s", None) or 0.0) / self.clock.pace
            for at, each in self.written():
                unheard = TYPING_UNDER_WAY if each == "typing" else under_way
                if pause_s * unheard < at - refused["at"] < pause_s:
                    found.append(f"{each} {refused['at'] + pause_s - at:.3f} s too early")
        return found


def played(rows: Sequence[Any]) -> pytest.MarkDecorator:
    """Each row on each of its places; all but one of them, another each time, in the long run."""
    cases = [
        pytest.param(row, place, id=f"{row.name}-{place.name}", marks=[] if nth == number % len(row.places) else LONG)
        for number, row in enumerate(rows)
        for nth, place in enumerate(row.places)
    ]
    return pytest.mark.parametrize(("row", "place"), cases)


def at(*places: Place) -> pytest.MarkDecorator:
    """There; from the third on in the long run."""
    cases = [pytest.param(one, id=one.name, marks=LONG if nth > 1 else []) for nth, one in enumerate(places)]
    return pytest.mark.parametrize("place", cases)


@asynccontextmanager
async def staged(place: Place, folder: Path) -> AsyncGenerator[Stage]:
    async with AsyncExitStack() as stack:
        model = stack.enter_context(ModelServer())
        service = await stack.enter_async_context(place.serve())
        other = await stack.enter_async_context(DiscordServer() if place.platform == "telegram" else TelegramServer())
        telegram = other if isinstance(other, TelegramServer) else service
        harness = await stack.enter_async_context(gateway_harness(folder, model, telegram))
        harness.config["gateway"]["platforms"].clear()
        more = webhook_at(stack.enter_context(reserved_port())) if place is HOOKED else place.settings
        people = list(dict.fromkeys(map(place.person, PEOPLE)))
        harness.add_platform(place.platform, {**service.settings, **more, "allowed_users": people})
        if isinstance(other, TelegramServer):
            other.group(OWNER)
            harness.add_platform("telegram", {**other.settings, "allowed_users": [OWNER], "home_channel": OWNER})
        else:
            harness.add_platform("discord", {**other.settings, "allowed_users": [OWNER], "home_channel": other.dm()})
        yield Stage(place, service, harness, other)
