"""Discord's Gateway: identify, heartbeat, resume; and what its events say about channels.

One task reads, and sends the heartbeats. A broken connection is resumed if it has ever worked. If it cannot be resumed,
that is reported, so that the platform is reopened and fetches what was missed.
"""

import asyncio
import logging
import sys
import zlib
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import Annotated, Any, Literal, Self

import aiohttp
import msgspec

from talaria.platforms.base import NotTaken, PlatformFailure, Refused
from talaria.platforms.discord.incoming import (
    DiscordChannel,
    DiscordGuild,
    DiscordRole,
    ObjectId,
    RoleChange,
    ThreadList,
    read,
)
from talaria.platforms.discord.rest import PORTAL, Rest

log = logging.getLogger(__name__)

_CONNECT_S = 30.0
_MAX_WAITING = 1000
_MAX_TAKEN = 100
_MAX_FETCHED = 1000
_MAX_FRAME_BYTES = 1 << 26
_MISSED_BEATS = 2
_GUILDS, _GUILD_MESSAGES, _DIRECT_MESSAGES, _MESSAGE_CONTENT = 1 << 0, 1 << 9, 1 << 12, 1 << 15
_INTENTS = _GUILDS | _GUILD_MESSAGES | _DIRECT_MESSAGES | _MESSAGE_CONTENT
_GOODBYE, _BE_BACK = 1000, 4000
"""Close codes. The first makes Discord forget the session."""
_FRAME_END = b"\x00\x00\xff\xff"
_CLOSINGS = {
    4004: f"Discord does not accept the bot's token: copy it again from {PORTAL}.",
    4010: "Discord refuses the connection because of a wrong shard (4010).",
    4011: "The bot is in too many servers for one connection: Discord requires sharding (4011).",
    4012: "Discord no longer supports this version of its protocol: update Talaria.",
    4013: "Discord does not know the requested intents: update Talaria.",
    4014: f"Discord withholds the text of messages: switch on Message Content Intent at {PORTAL}, under Bot.",
}
"""Close codes after which reconnecting would not help."""
_EVENTS: dict[str | None, Literal["message", "deletion", "interaction"]] = {
    "MESSAGE_CREATE": "message",
    "MESSAGE_DELETE": "deletion",
    "MESSAGE_DELETE_BULK": "deletion",
    "INTERACTION_CREATE": "interaction",
}


class SocketEvent(msgspec.Struct, frozen=True):
    """An event; `heartbeat` is an acknowledged one, which proves that the connection is alive."""

    kind: Literal["message", "deletion", "interaction", "heartbeat"]
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Op(IntEnum):
    DISPATCH = 0
    HEARTBEAT = 1
    IDENTIFY = 2
    RESUME = 6
    RECONNECT = 7
    INVALID_SESSION = 9
    HELLO = 10
    HEARTBEAT_ACK = 11


class _Frame(msgspec.Struct, frozen=True):
    op: _Op
    s: int | None = None
    t: str | None = None
    d: msgspec.Raw = msgspec.Raw(b"null")


class _Hello(msgspec.Struct, frozen=True):
    heartbeat_interval: Annotated[float, msgspec.Meta(gt=0)]


class _Ready(msgspec.Struct, frozen=True):
    session_id: str
    application: ObjectId
    resume_gateway_url: str = ""


class _Broken(Exception):
    """The connection is lost; the session may be resumed in a new one."""


class _Connection:
    """One WebSocket, until it breaks."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, sequence: int | None) -> None:
        self._socket = socket
        self._unpacking = zlib.decompressobj()
        self._text = bytearray()
        """What has arrived of the next frame."""
        self._tail = b""
        self._interval_s = 0.0
        self._beat_at: float | None = None
        self._acknowledged_at = 0.0
        self._ops: set[_Op] = set()
        self.sequence = sequence
        """The sequence number of the last event."""

    @property
    def has_worked(self) -> bool:
        return self._ops >= {_Op.DISPATCH, _Op.HEARTBEAT_ACK}

    async def send(self, op: _Op, body: object) -> None:
        try:
            await self._socket.send_str(msgspec.json.encode({"op": op, "d": body}).decode())
        except (aiohttp.ClientError, OSError) as error:
            raise _Broken("The connection to Discord broke.") from error

    async def receive(self) -> _Frame:
        """The next frame, after doing what it demands of a connection. Raises `_Broken`, `NotTaken` and `Refused`."""
        frame = None
        while frame is None:  # skip what is not a frame
            frame = read(await self._next_text(), _Frame)
        if frame.s is not None:
            self.sequence = frame.s
        self._ops.add(frame.op)
        match frame.op:
            case _Op.HELLO:
                hello = read(frame.d, _Hello)
                if hello is None:
                    raise NotTaken("Discord's hello cannot be read.")
                self._interval_s = hello.heartbeat_interval / 1000
                self._acknowledged_at = _now()
                await self._beat()
            case _Op.HEARTBEAT:
                await self._beat()
            case _Op.HEARTBEAT_ACK:
                self._acknowledged_at = _now()
            case _Op.RECONNECT:
                raise _Broken("Discord asks us to reconnect.")
            case _Op.INVALID_SESSION:
                if read(frame.d, bool):
                    raise _Broken("Discord interrupted the session.")
                raise NotTaken("Discord ended the session.")
            case _:
                pass
        return frame

    async def close(self, code: int) -> None:
        await self._socket.close(code=code)

    async def _next_text(self) -> str | bytes:
        """The text of a whole frame. Sends heartbeats while it waits."""
        while True:
            if self._beat_at is not None and _now() >= self._beat_at:
                if _now() >= self._acknowledged_at + _MISSED_BEATS * self._interval_s:
                    raise _Broken("Discord no longer acknowledges heartbeats.")
                await self._beat()
            try:
                async with asyncio.timeout_at(self._beat_at):
                    message = await self._socket.receive()
            except TimeoutError:
                continue
            match message.type:
                case aiohttp.WSMsgType.TEXT:
                    return message.data
                case aiohttp.WSMsgType.BINARY:
                    if (text := self._unpack(message.data)) is not None:
                        return text
                case aiohttp.WSMsgType.CLOSE if message.data in _CLOSINGS:
                    raise Refused(_CLOSINGS[message.data])
                case aiohttp.WSMsgType.CLOSE:
                    raise _Broken(f"Discord closed the connection ({message.data}).")
                case aiohttp.WSMsgType.ERROR:
                    raise NotTaken("What Discord sent cannot be read.")
                case _:
                    raise _Broken("The connection to Discord was cut.")

    def _unpack(self, piece: bytes) -> bytes | None:
        """Continues the zlib stream that spans all frames. None if the next message continues this frame."""
        try:
            self._text += self._unpacking.decompress(piece, _MAX_FRAME_BYTES + 1 - len(self._text))
        except zlib.error as error:
            raise NotTaken("What Discord sent cannot be decompressed.") from error
        if len(self._text) > _MAX_FRAME_BYTES:
            raise NotTaken(f"Discord sent more than {_MAX_FRAME_BYTES:,} bytes at once.")
        self._tail = (self._tail + piece)[-len(_FRAME_END) :]
        if self._tail != _FRAME_END:
            return None
        text, self._text = bytes(self._text), bytearray()
        return text

    async def _beat(self) -> None:
        await self.send(_Op.HEARTBEAT, self.sequence)
        self._beat_at = _now() + self._interval_s


class Channels:
    """Channels and threads, kept up to date by gateway events; others are fetched when needed."""

    def __init__(self, rest: Rest, account: str) -> None:
        self._rest = rest
        self._account = account
        self._known: dict[str, DiscordChannel] = {}
        self._fetched: dict[str, DiscordChannel] = {}
        self._roles: dict[str, str] = {}
        """Our own role, by guild."""

    def __getitem__(self, id: str) -> DiscordChannel:
        """Does not ask Discord: an unknown channel counts as a chat of its own, like a direct message."""
        return self.find_known(id) or self._fetched.get(id) or DiscordChannel(id)

    def find_known(self, id: str) -> DiscordChannel | None:
        return self._known.get(id)

    def role(self, guild: str | None) -> str:
        """Our own role in a guild."""
        return self._roles.get(guild, "") if guild else ""

    async def find(self, id: str) -> DiscordChannel:
        """Raises `PlatformFailure`."""
        channel = self._known.get(id) or self._fetched.get(id)
        if channel is None:
            channel = self._fetched[id] = await self._rest.ask(f"/channels/{id}", DiscordChannel)
            if len(self._fetched) > _MAX_FETCHED:
                del self._fetched[next(iter(self._fetched))]
        return channel

    def apply(self, event: str, body: msgspec.Raw) -> None:
        match event:
            case "GUILD_CREATE" if guild := read(body, DiscordGuild):
                for role in guild.roles:
                    self._note_role(guild.id, role)
                self._note(*guild.channels, *guild.threads, guild=guild.id)
            case "GUILD_DELETE" if guild := read(body, DiscordGuild):
                if not guild.unavailable:  # an outage, after which it comes back
                    self._roles.pop(guild.id, None)
                    self._known = {id: one for id, one in self._known.items() if one.guild_id != guild.id}
            case "CHANNEL_CREATE" | "CHANNEL_UPDATE" | "THREAD_CREATE" | "THREAD_UPDATE":
                self._note(body)
            case "THREAD_LIST_SYNC" if threads := read(body, ThreadList):
                self._note(*threads.threads, guild=threads.guild_id)
            case "CHANNEL_DELETE" | "THREAD_DELETE" if gone := read(body, ObjectId):
                self._known.pop(gone.id, None)
            case "GUILD_ROLE_CREATE" | "GUILD_ROLE_UPDATE" if change := read(body, RoleChange):
                self._note_role(change.guild_id, change.role)
            case _:
                pass

    def _note(self, *channels: msgspec.Raw, guild: str = "") -> None:
        for body in channels:
            channel = read(body, DiscordChannel)
            if channel is None or not (guild or channel.guild_id):
                continue
            if channel.thread_metadata.archived:
                self._known.pop(channel.id, None)
            else:
                self._known[channel.id] = msgspec.structs.replace(channel, guild_id=channel.guild_id or guild)

    def _note_role(self, guild: str, role: DiscordRole) -> None:
        if role.tags.bot_id == self._account:
            self._roles[guild] = role.id


class DiscordSocket:
    """A session on the Gateway, open as long as its context."""

    def __init__(
        self,
        rest: Rest,
        url: str,
        channels: Channels,
        respond: Callable[[SocketEvent], Coroutine[Any, Any, None]],
    ) -> None:
        """`respond` is called with each interaction at once: Discord allows 3 seconds for a response."""
        self._rest = rest
        self._url = url
        self._channels = channels
        self._respond = respond
        self._session = ""
        self._waiting: asyncio.Queue[SocketEvent | None] = asyncio.Queue(_MAX_WAITING)
        self._end: PlatformFailure = NotTaken("The connection to Discord is closed.")
        self.application = ""

    async def __aenter__(self) -> Self:
        properties = {"os": sys.platform, "browser": "talaria", "device": "talaria"}
        me = {"token": self._rest.token, "intents": _INTENTS, "properties": properties}
        with _connecting():
            async with asyncio.timeout(_CONNECT_S):
                self._connection = await self._connect(_Op.IDENTIFY, me)
                try:
                    while not self._session:
                        self._note(await self._connection.receive())
                except BaseException:
                    await self._connection.close(_GOODBYE)
                    raise
        self._reader = asyncio.create_task(self._run(), name="discord gateway")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reader.cancel()
        with suppress(asyncio.CancelledError):
            await self._reader
        await self._connection.close(_GOODBYE)

    async def take(self) -> list[SocketEvent]:
        """At least one event. Raises `NotTaken` or `Refused` once the connection is lost."""
        taken: list[SocketEvent] = []
        while not taken or (len(taken) < _MAX_TAKEN and not self._waiting.empty()):
            event = await self._waiting.get()
            if event is None:
                self._waiting.put_nowait(None)  # so that the next call ends, too
                break
            taken.append(event)
        if not taken:
            raise self._end
        return taken

    async def _connect(self, op: _Op, body: dict[str, Any], sequence: int | None = None) -> _Connection:
        """Waits for the hello, then sends an Identify or Resume."""
        connection = _Connection(await self._rest.socket(self._url, _MAX_FRAME_BYTES), sequence)
        try:
            while (await connection.receive()).op != _Op.HELLO:
                pass
            await connection.send(op, body)
        except BaseException:
            await connection.close(_BE_BACK)
            raise
        return connection

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as responses:
                self._end = await self._listen(responses)
        except Exception:
            log.exception("the connection to Discord")
            self._end = NotTaken("The connection to Discord failed.")
        await self._waiting.put(None)

    async def _listen(self, responses: asyncio.TaskGroup) -> PlatformFailure:
        """Queues events until the session ends; returns the reason."""
        while True:
            try:
                event = self._note(await self._connection.receive())
            except _Broken as broken:
                log.info("%s", broken)
                try:
                    await self._resume(broken)
                except PlatformFailure as failure:
                    return failure
                continue
            except PlatformFailure as failure:
                return failure
            if event is None:
                continue
            if event.kind == "interaction":
                responses.create_task(self._respond(event), name="discord interaction response")
            await self._waiting.put(event)

    async def _resume(self, broken: _Broken) -> None:
        """Discord then replays the missed events. Raises `NotTaken` and `Refused`."""
        if not self._connection.has_worked:
            raise NotTaken(str(broken))
        sequence = self._connection.sequence
        session = {"token": self._rest.token, "session_id": self._session, "seq": sequence}
        with _connecting():
            async with asyncio.timeout(_CONNECT_S):
                await self._connection.close(_BE_BACK)
                self._connection = await self._connect(_Op.RESUME, session, sequence)

    def _note(self, frame: _Frame) -> SocketEvent | None:
        """Keeps what the frame says about the session and the channels. None if it has nothing for the platform."""
        if frame.op == _Op.HEARTBEAT_ACK:
            return SocketEvent("heartbeat")
        if frame.op != _Op.DISPATCH or frame.t is None:
            return None
        if frame.t == "READY":
            ready = read(frame.d, _Ready)
            if ready is None:
                raise NotTaken("Discord's ready event cannot be read.")
            self._session, self.application = ready.session_id, ready.application.id
            self._url = ready.resume_gateway_url or self._url
        kind = _EVENTS.get(frame.t)
        if kind is not None:
            return SocketEvent(kind, frame.d)
        self._channels.apply(frame.t, frame.d)
        return None


@contextmanager
def _connecting() -> Generator[None]:
    """Turns errors while connecting into failures."""
    try:
        yield
    except _Broken as error:
        raise NotTaken(str(error)) from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise NotTaken("Discord's gateway cannot be reached.") from error


def _now() -> float:
    return asyncio.get_running_loop().time()
