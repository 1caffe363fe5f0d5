"""The gateway socket of `DiscordServer`: sessions that can be resumed, heartbeats, compression, close codes."""

import asyncio
import importlib
import json
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from aiohttp import WSCloseCode, WSMsgType, web
from tests.servers.discord_world import APPLICATION, BOT, GUILD, DiscordWorld, Json

from talaria.testing.patience import PATIENCE_S

_DISPATCH, _HEARTBEAT, _IDENTIFY, _RESUME, _RECONNECT, _INVALID, _HELLO, _ACK = 0, 1, 2, 6, 7, 9, 10, 11
_MESSAGE_CONTENT = 1 << 15
_KEPT_EVENTS = 1000
_KEPT_SESSIONS = 10


@dataclass(slots=True)
class GatewaySession:
    id: str
    sequence: int = 0
    told: deque[Json] = field(default_factory=lambda: deque[Json](maxlen=_KEPT_EVENTS))
    socket: "Socket | None" = None


class Socket:
    """One connection of a client."""

    def __init__(self, request: web.Request, response: web.WebSocketResponse) -> None:
        self._request = request
        self.response = response
        self.is_cut = False
        """By us: then the session waits to be resumed."""
        self._pack = _packer(request.query.get("compress", ""))

    def cut(self) -> None:
        transport = self._request.transport
        if transport is not None:
            transport.abort()

    async def send(self, frame: Json) -> None:
        text = json.dumps(frame)
        with suppress(ConnectionError, RuntimeError):  # the client is gone, and may resume
            if self._pack is None:
                await self.response.send_str(text)
            else:
                await self.response.send_bytes(self._pack(text.encode()))


class DiscordGateway:
    def __init__(self, world: DiscordWorld, token: str, heartbeat_s: float) -> None:
        self._world = world
        self._token = token
        self._heartbeat_s = heartbeat_s
        self._sessions: dict[str, GatewaySession] = {}
        self._changed = asyncio.Condition()
        self.identified = 0
        """How many sessions were begun."""
        self.resumed = 0
        self.beats = 0
        """How many heartbeats have come."""
        self.acknowledges = True
        """Heartbeats."""
        self.allows_content = True
        self.resumes = True
        self.hangs_up_on_resume = False
        self.starts_left = 1000
        """How often the bot may still connect anew."""
        self.starts_reset_s = 0.0
        self.url = ""

    async def tell(self, event: str, data: Json) -> None:
        """Every session hears of it: those that are away when they resume."""
        for session in list(self._sessions.values()):
            session.sequence += 1
            frame = {"op": _DISPATCH, "t": event, "s": session.sequence, "d": data}
            session.told.append(frame)
            if session.socket is not None:
                await session.socket.send(frame)

    async def close(self, code: int) -> None:
        for socket in self._sockets():
            socket.is_cut = True
            await socket.response.close(code=code)

    def cut(self) -> None:
        """Without a word."""
        for socket in self._sockets():
            socket.is_cut = True
            socket.cut()

    async def order(self, op: int, data: object = None) -> None:
        for socket in self._sockets():
            await socket.send({"op": op, "d": data})

    async def reconnect(self) -> None:
        """As Discord asks for it before it restarts a machine of its own."""
        await self.order(_RECONNECT)

    async def invalidate(self, *, is_resumable: bool = False) -> None:
        sockets = self._sockets()
        await self.order(_INVALID, is_resumable)
        for socket in sockets if not is_resumable else ():
            self._drop(socket)

    async def wait_until(self, holds: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(holds)

    @property
    def connections(self) -> int:
        return len(self._sockets())

    def _sockets(self) -> list[Socket]:
        return [session.socket for session in self._sessions.values() if session.socket is not None]

    def _drop(self, socket: Socket) -> None:
        self._sessions = {id: each for id, each in self._sessions.items() if each.socket is not socket}

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        response = web.WebSocketResponse(max_msg_size=0)
        await response.prepare(request)
        socket = Socket(request, response)
        await socket.send({"op": _HELLO, "d": {"heartbeat_interval": int(self._heartbeat_s * 1000)}})
        try:
            async for message in response:
                if message.type is WSMsgType.TEXT:
                    await self._hear(socket, json.loads(message.data))
        finally:
            await self._left(socket)
        return response

    async def _left(self, socket: Socket) -> None:
        """A client that says goodbye with 1000 or 1001 gives its session up."""
        if not socket.is_cut and socket.response.close_code in (WSCloseCode.OK, WSCloseCode.GOING_AWAY):
            self._drop(socket)
        for session in self._sessions.values():
            if session.socket is socket:
                session.socket = None
        await self._notify()

    async def _hear(self, socket: Socket, frame: Json) -> None:
        match frame["op"]:
            case op if op == _HEARTBEAT:
                self.beats += 1
                if self.acknowledges:
                    await socket.send({"op": _ACK})
            case op if op == _IDENTIFY:
                await self._identify(socket, frame["d"])
            case op if op == _RESUME:
                await self._resume(socket, frame["d"])
            case _:
                await socket.response.close(code=4001)
        await self._notify()

    async def _identify(self, socket: Socket, asked: Json) -> None:
        if asked["token"] != self._token:
            await socket.response.close(code=4004)
            return
        if asked["intents"] & _MESSAGE_CONTENT and not self.allows_content:
            await socket.response.close(code=4014)
            return
        self.identified += 1
        session = GatewaySession(f"session-{self.identified}", socket=socket)
        self._sessions[session.id] = session
        for old in list(self._sessions)[:-_KEPT_SESSIONS]:
            del self._sessions[old]
        await self._greet(session)

    async def _greet(self, session: GatewaySession) -> None:
        ready = {
            "v": 10,
            "user": self._world.user(BOT),
            "guilds": [{"id": GUILD, "unavailable": True}],
            "session_id": session.id,
            "resume_gateway_url": self.url,
            "application": {"id": APPLICATION, "flags": 0},
        }
        for event, data in (("READY", ready), ("GUILD_CREATE", self._world.guild())):
            await self._tell_one(session, event, data)

    async def _resume(self, socket: Socket, asked: Json) -> None:
        if self.hangs_up_on_resume:
            await socket.response.close(code=4000)
            return
        session = self._sessions.get(asked["session_id"])
        if session is None or not self.resumes or asked["token"] != self._token:
            await socket.send({"op": _INVALID, "d": False})
            return
        self.resumed += 1
        session.socket = socket
        for frame in [frame for frame in session.told if frame["s"] > asked["seq"]]:
            await socket.send(frame)
        await self._tell_one(session, "RESUMED", {})

    async def _tell_one(self, session: GatewaySession, event: str, data: Json) -> None:
        session.sequence += 1
        if session.socket is not None:
            await session.socket.send({"op": _DISPATCH, "t": event, "s": session.sequence, "d": data})

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _packer(compression: str) -> Callable[[bytes], bytes] | None:
    """One stream for all messages of a connection, each ending at a boundary."""
    if compression == "zlib-stream":
        packing = zlib.compressobj()
        return lambda content: packing.compress(content) + packing.flush(zlib.Z_SYNC_FLUSH)
    if compression == "zstd-stream":  # asked for by clients on Python 3.14
        stream = importlib.import_module("compression.zstd").ZstdCompressor()
        return lambda content: stream.compress(content, mode=stream.FLUSH_BLOCK)
    return None
