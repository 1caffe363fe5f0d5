"""Discord's gateway socket frame by frame, against a gateway whose every word is the test's."""

import asyncio
import json
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from aiohttp import WSMsgType, web

from talaria.platforms.base import NotTaken, Refused
from talaria.platforms.discord import gateway_socket, rest
from talaria.platforms.discord.gateway_socket import Channels, DiscordSocket, SocketEvent
from talaria.testing.patience import PATIENCE_S

TOKEN = "discord-token"
ME = "9000"
DISPATCH, BEAT, IDENTIFY, RESUME, RECONNECT, INVALID, HELLO, ACKNOWLEDGED = 0, 1, 2, 6, 7, 9, 10, 11
GUILD = {"id": "3000", "channels": [{"id": "2001", "type": 0, "last_message_id": "5"}], "threads": [], "roles": []}
LONG_MS = 3_600_000


@dataclass
class Line:
    """One connection of the client."""

    socket: web.WebSocketResponse
    query: dict[str, str]
    frames: asyncio.Queue[Any] = field(default_factory=asyncio.Queue[Any])
    """What the client sends; at the end the code with which it closes."""
    packing: Any = field(default_factory=zlib.compressobj)

    async def tell(self, op: int, body: object = None, **more: Any) -> None:
        await self.socket.send_bytes(self.packed({"op": op, "d": body, **more}))

    def packed(self, frame: object) -> bytes:
        return self.packing.compress(json.dumps(frame).encode()) + self.packing.flush(zlib.Z_SYNC_FLUSH)

    async def dispatch(self, event: str, body: object, sequence: int) -> None:
        await self.tell(DISPATCH, body, t=event, s=sequence)

    async def hear(self, op: int) -> Any:
        """The body of the client's next frame of that kind; others are passed over."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                frame = await self.frames.get()
                if not isinstance(frame, int) and frame["op"] == op:
                    return frame["d"]

    async def closing_code(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                frame = await self.frames.get()
                if isinstance(frame, int):
                    return frame

    async def welcome(self, *, resume_url: str = "", is_acknowledging: bool = True) -> Any:
        """Up to READY; what the client said of itself."""
        await self.tell(HELLO, {"heartbeat_interval": LONG_MS})
        await self.hear(BEAT)
        if is_acknowledging:
            await self.tell(ACKNOWLEDGED)
        told = await self.hear(IDENTIFY)
        ready = {"session_id": "s1", "application": {"id": "9002"}, "resume_gateway_url": resume_url}
        await self.dispatch("READY", ready, 1)
        return told


class ScriptedGateway:
    def __init__(self) -> None:
        self._lines: asyncio.Queue[Line] = asyncio.Queue()
        self.url = ""

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(timeout=0.1)
        await socket.prepare(request)
        line = Line(socket, {"path": request.path, **request.query})
        self._lines.put_nowait(line)
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                line.frames.put_nowait(json.loads(message.data))
        line.frames.put_nowait(socket.close_code)
        return socket

    async def next_line(self) -> Line:
        async with asyncio.timeout(PATIENCE_S):
            return await self._lines.get()


@pytest.fixture
async def gateway() -> AsyncIterator[ScriptedGateway]:
    scripted = ScriptedGateway()
    app = web.Application()
    app.router.add_get("/{place:.*}", scripted.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    scripted.url = f"ws://127.0.0.1:{runner.addresses[0][1]}"
    yield scripted
    await runner.cleanup()


class Client:
    """The socket, opened in a task, so that the test can play the other side meanwhile."""

    def __init__(self, gateway: ScriptedGateway) -> None:
        self.opened: asyncio.Future[DiscordSocket] = asyncio.get_running_loop().create_future()
        self.leave = asyncio.Event()
        self.greeted: list[SocketEvent] = []
        self._gateway = gateway

    async def run(self) -> None:
        try:
            async with rest.connect("http://discord.invalid", TOKEN) as api:
                self.channels = Channels(api, ME)
                async with DiscordSocket(api, self._gateway.url, self.channels, self._greet) as socket:
                    self.opened.set_result(socket)
                    await self.leave.wait()
        except Exception as error:  # noqa: BLE001  (the test's to look at)
            self.opened.set_exception(error)

    async def _greet(self, told: SocketEvent) -> None:
        self.greeted.append(told)


@asynccontextmanager
async def connecting(gateway: ScriptedGateway) -> AsyncGenerator[Client]:
    client = Client(gateway)
    async with asyncio.timeout(2 * PATIENCE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(client.run())
        yield client
        client.leave.set()


async def events(socket: DiscordSocket, count: int) -> list[Any]:
    """The next ones that are no heartbeats."""
    found: list[Any] = []
    while len(found) < count:
        found += [msgspec.json.decode(each.body) for each in await socket.take() if each.kind != "heartbeat"]
    return found


async def test_it_says_who_we_are_and_which_messages_we_want(gateway: ScriptedGateway) -> None:
    async with connecting(gateway) as client:
        line = await gateway.next_line()
        told = await line.welcome()
        socket = await client.opened
    assert line.query == {"path": "/", "v": "10", "encoding": "json", "compress": "zlib-stream"}
    assert (told["token"], told["intents"]) == (TOKEN, 1 << 0 | 1 << 9 | 1 << 12 | 1 << 15)
    assert set(told["properties"]) == {"os", "browser", "device"}
    assert socket.application == "9002"
    assert await line.closing_code() == 1000


async def test_the_heart_beats_at_once_on_demand_and_in_time_with_the_last_number(gateway: ScriptedGateway) -> None:
    async with connecting(gateway) as client:
        line = await gateway.next_line()
        await line.tell(HELLO, {"heartbeat_interval": LONG_MS})
        assert await line.hear(BEAT) is None
        await line.dispatch("READY", {"session_id": "s1", "application": {"id": "1"}}, 41)
        await client.opened
        await line.tell(BEAT)
        assert await line.hear(BEAT) == 41
        await line.tell(HELLO, {"heartbeat_interval": 20})
        for _ in range(5):
            assert await line.hear(BEAT) == 41
            await line.tell(ACKNOWLEDGED)


async def test_a_session_is_resumed_where_it_was_and_at_the_address_that_was_given_for_that(
    gateway: ScriptedGateway,
) -> None:
    async with connecting(gateway) as client:
        line = await gateway.next_line()
        await line.welcome(resume_url=f"{gateway.url}/again?x=1")
        socket = await client.opened
        await line.dispatch("MESSAGE_CREATE", {"id": "1"}, 7)
        assert await events(socket, 1) == [{"id": "1"}]
        await line.tell(RECONNECT)
        assert await line.closing_code() == 4000
        again = await gateway.next_line()
        await again.tell(HELLO, {"heartbeat_interval": LONG_MS})
        assert await again.hear(BEAT) == 7
        assert await again.hear(RESUME) == {"token": TOKEN, "session_id": "s1", "seq": 7}
        await again.dispatch("MESSAGE_CREATE", {"id": "2"}, 8)
        assert await events(socket, 1) == [{"id": "2"}]
    assert again.query["path"] == "/again"
    assert {"v", "x"} <= again.query.keys()


@pytest.mark.parametrize("is_acknowledged", [False, True])
async def test_a_line_is_resumed_only_if_it_has_worked(gateway: ScriptedGateway, is_acknowledged: bool) -> None:
    async with connecting(gateway) as client:
        line = await gateway.next_line()
        await line.welcome(is_acknowledging=is_acknowledged)
        socket = await client.opened
        await line.socket.close(code=4000)
        if is_acknowledged:
            line = await gateway.next_line()
            await line.tell(HELLO, {"heartbeat_interval": LONG_MS})
            await line.hear(RESUME)
            await line.socket.close(code=4000)  # nothing was told in between
        with pytest.raises(NotTaken, match="closed the connection"):
            await events(socket, 1)


@pytest.mark.parametrize(
    ("code", "failure", "words"),
    [(4000, NotTaken, "closed the connection"), (4004, Refused, "token"), (4012, Refused, "update Talaria")],
)
async def test_a_line_that_is_closed_while_it_is_opened_says_why(
    gateway: ScriptedGateway, code: int, failure: type[Exception], words: str
) -> None:
    async with connecting(gateway) as client:
        line = await gateway.next_line()
        await line.tell(HELLO, {"heartbeat_interval": LONG_MS})
        await line.hear(IDENTIFY)
        await line.socket.close(code=code)
        with pytest.raises(failure, match=words):
            await client.opened


@pytest.mark.parametrize(
    ("op", "body"),
    [
        (HELLO, {"heartbeat_interval": 0}),
        (HELLO, None),
        (RECONNECT, None),
        (INVALID, True),
        (INVALID, False),
        (DISPATCH, {"session_id": 5}),
    ],
)
async def test_a_greeting_that_nobody_can_follow_ends_in_a_new_attempt(
    gateway: ScriptedGateway, op: int, body: object
) -> None:
    async with connecting(gateway) as client:
        line = await gateway.next_line()
        if op == DISPATCH:
            await line.tell(HELLO, {"heartbeat_interval": LONG_MS})
        await line.tell(op, body, t="READY")
        with pytest.raises(NotTaken):
            await client.opened


@pytest.mark.parametrize("size", [1, 3, 7])
async def test_a_frame_may_come_in_pieces_or_as_text(gateway: ScriptedGateway, size: int) -> None:
    async with connecting(gateway) as client:
        line = await gateway.next_line()
        await line.welcome()
        socket = await client.opened
        packed = line.packed({"op": DISPATCH, "t": "MESSAGE_CREATE", "s": 2, "d": {"id": "é" * 500}})
        for at in range(0, len(packed), size):
            await line.socket.send_bytes(packed[at : at + size])
        plain = {"op": DISPATCH, "t": "MESSAGE_CREATE", "s": 3, "d": {"id": "2"}}
        await line.socket.send_str(json.dumps(plain))
        assert await events(socket, 2) == [{"id": "é" * 500}, {"id": "2"}]


async def send_a_bomb(line: Line) -> None:
    await line.socket.send_bytes(line.packing.compress(b"x" * 5000) + line.packing.flush(zlib.Z_SYNC_FLUSH))


async def send_rubbish(line: Line) -> None:
    await line.socket.send_bytes(b"not packed at all")


async def send_a_giant(line: Line) -> None:
    await line.socket.send_bytes(b"x" * 5000)


@pytest.mark.parametrize(
    ("send", "words"),
    [
        (send_a_bomb, "more than 4,096 bytes"),
        (send_rubbish, "cannot be decompressed"),
        (send_a_giant, "cannot be read"),
    ],
)
async def test_what_is_too_large_or_broken_ends_the_line_and_is_not_asked_for_again(
    gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch, send: Callable[[Line], Any], words: str
) -> None:
    monkeypatch.setattr(gateway_socket, "_MAX_FRAME_BYTES", 4096)
    async with connecting(gateway) as client:
        line = await gateway.next_line()
        await line.welcome()
        socket = await client.opened
        await send(line)
        with pytest.raises(NotTaken, match=words):
            await events(socket, 1)


async def test_frames_of_other_kinds_are_passed_over(gateway: ScriptedGateway) -> None:
    async with connecting(gateway) as client:
        line = await gateway.next_line()
        await line.welcome()
        socket = await client.opened
        odd_frames: list[Any] = [[], 5, {"op": "x"}, {}, {"op": 99}, {"op": 0}, {"op": 0, "t": "TYPING_START", "s": 3}]
        for odd in odd_frames:
            await line.socket.send_bytes(line.packed(odd))
        await line.dispatch("INTERACTION_CREATE", {"id": "1"}, 4)
        assert await events(socket, 1) == [{"id": "1"}]
        assert [msgspec.json.decode(each.body) for each in client.greeted] == [{"id": "1"}]


class Heard:
    """What a bot knows after these events."""

    def __init__(self, *events: tuple[str, Any]) -> None:
        self.channels = Channels(rest=None, account=ME)  # pyright: ignore[reportArgumentType]  (nothing is asked)
        for event, body in events:
            self.channels.apply(event, msgspec.Raw(msgspec.json.encode(body)))

    @property
    def known(self) -> list[str]:
        return [id for id in ("2001", "2002", "2500") if self.channels.find_known(id)]


THREAD = {"id": "2500", "type": 11, "parent_id": "2001", "guild_id": "3000", "last_message_id": "9"}
TEXT = {"id": "2002", "type": 0, "guild_id": "3000"}
OWN_ROLE = {"id": "9001", "tags": {"bot_id": ME}}


Events = list[tuple[str, Any]]
COMING_AND_GOING: list[tuple[Events, list[str]]] = [
    ([("GUILD_CREATE", GUILD)], ["2001"]),
    ([("GUILD_CREATE", {**GUILD, "threads": [THREAD], "channels": [{"id": "odd"}, TEXT, 5]})], ["2002", "2500"]),
    ([("GUILD_CREATE", {"id": "3000", "unavailable": True})], []),
    ([("GUILD_CREATE", GUILD), ("GUILD_DELETE", {"id": "3000"})], []),
    ([("GUILD_CREATE", GUILD), ("GUILD_DELETE", {"id": "3001"})], ["2001"]),
    ([("GUILD_CREATE", GUILD), ("GUILD_DELETE", {"id": "3000", "unavailable": True})], ["2001"]),
    ([("CHANNEL_CREATE", TEXT), ("THREAD_CREATE", THREAD)], ["2002", "2500"]),
    ([("CHANNEL_CREATE", {"id": "2002", "type": 1})], []),
    ([("THREAD_LIST_SYNC", {"guild_id": "3000", "threads": [{**THREAD, "guild_id": None}]})], ["2500"]),
    ([("CHANNEL_CREATE", TEXT), ("CHANNEL_DELETE", TEXT)], []),
    ([("THREAD_CREATE", THREAD), ("THREAD_DELETE", {"id": "2500"})], []),
    ([("THREAD_CREATE", THREAD), ("THREAD_UPDATE", {**THREAD, "thread_metadata": {"archived": True}})], []),
    ([("GUILD_CREATE", {}), ("GUILD_CREATE", None), ("CHANNEL_CREATE", []), ("CHANNEL_DELETE", "x")], []),
]


@pytest.mark.parametrize(("events", "known"), COMING_AND_GOING)
def test_channels_come_and_go_as_the_gateway_tells(events: Events, known: list[str]) -> None:
    assert Heard(*events).known == known


def test_a_thread_is_known_with_its_channel_its_server_and_its_last_message() -> None:
    channels = Heard(("GUILD_CREATE", {**GUILD, "threads": [{**THREAD, "guild_id": None}]})).channels
    told = channels["2500"]
    assert (str(told.address), told.guild_id, told.last_message_id) == ("discord:2001:2500", "3000", "9")
    assert channels["77"].address.chat == "77"


@pytest.mark.parametrize(
    ("events", "role"),
    [
        ([("GUILD_CREATE", {**GUILD, "roles": [{"id": "1"}, {"id": "2", "tags": {"bot_id": "8"}}, OWN_ROLE]})], "9001"),
        ([("GUILD_ROLE_CREATE", {"guild_id": "3000", "role": OWN_ROLE})], "9001"),
        ([("GUILD_ROLE_UPDATE", {"guild_id": "3001", "role": OWN_ROLE})], ""),
        ([("GUILD_CREATE", {**GUILD, "roles": [OWN_ROLE]}), ("GUILD_DELETE", {"id": "3000"})], ""),
    ],
)
def test_our_own_role_of_a_server_is_known(events: Events, role: str) -> None:
    assert Heard(*events).channels.role("3000") == role
