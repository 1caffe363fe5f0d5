"""Discord's gateway socket: who we are, heartbeats, resuming.

One task reads, and keeps the heart beating. A broken line is resumed once if it has ever worked; what cannot be resumed
is told, so that the platform is opened anew and reads what was missed.
"""

import asyncio
import logging
import sys
import zlib
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import Annotated, Any, Literal, Self

import aiohttp
import msgspec

from talaria.platforms.base import NotTaken, PlatformFailure, Refused
from talaria.platforms.discord.channels import Channels
from talaria.platforms.discord.incoming import Named, read
from talaria.platforms.discord.rest import PORTAL, Rest

log = logging.getLogger(__name__)

_CONNECT_S = 30.0
_MAX_WAITING = 1000
_MAX_TAKEN = 100
_MAX_FRAME_BYTES = 1 << 26
_MISSED_BEATS = 2
_GUILDS, _GUILD_MESSAGES, _DIRECT_MESSAGES, _MESSAGE_CONTENT = 1 << 0, 1 << 9, 1 << 12, 1 << 15
_INTENTS = _GUILDS | _GUILD_MESSAGES | _DIRECT_MESSAGES | _MESSAGE_CONTENT
_GOODBYE, _BE_BACK = 1000, 4000
"""Close codes: after the first Discord forgets the session."""
_END_OF_FRAME = b"\x00\x00\xff\xff"
_CLOSINGS = {
    4004: f"Discord does not take the bot's token: copy it again from {PORTAL}.",
    4010: "Discord refuses the connection as a wrong shard (4010).",
    4011: "The bot is in too many servers for one connection: Discord asks for sharding (4011).",
    4012: "Discord does not speak this version of its protocol any more: update Talaria.",
    4013: "Discord does not know the intents that were asked for: update Talaria.",
    4014: f"Discord withholds the messages' text: switch on Message Content Intent at {PORTAL}, under Bot.",
}
"""Close codes after which connecting again would not help."""
_EVENTS: dict[str | None, Literal["message", "deletion", "interaction"]] = {
    "MESSAGE_CREATE": "message",
    "MESSAGE_DELETE": "deletion",
    "MESSAGE_DELETE_BULK": "deletion",
    "INTERACTION_CREATE": "interaction",
}


class SocketEvent(msgspec.Struct, frozen=True):
    """An event of Discord's; `beat` is an acknowledged heartbeat, which proves that the line is alive."""

    kind: Literal["message", "deletion", "interaction", "beat"]
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Op(IntEnum):
    DISPATCH = 0
    BEAT = 1
    IDENTIFY = 2
    RESUME = 6
    RECONNECT = 7
    INVALID = 9
    HELLO = 10
    ACKNOWLEDGED = 11


class _Frame(msgspec.Struct, frozen=True):
    op: _Op
    s: int | None = None
    t: str | None = None
    d: msgspec.Raw = msgspec.Raw(b"null")


class _Hello(msgspec.Struct, frozen=True):
    heartbeat_interval: Annotated[float, msgspec.Meta(gt=0)]


class _Ready(msgspec.Struct, frozen=True):
    session_id: str
    application: Named
    resume_gateway_url: str = ""


class _Broken(Exception):
    """The connection is over; the session may go on in another one."""


class _Connection:
    """One websocket, until it breaks."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, sequence: int | None) -> None:
        self._socket = socket
        self._unpacking = zlib.decompressobj()
        self._text = bytearray()
        """Of the frame that is coming."""
        self._tail = b""
        self._interval_s = 0.0
        self._beat_at: float | None = None
        self._acknowledged_at = 0.0
        self._ops: set[_Op] = set()
        self.sequence = sequence
        """Of the last event that came."""

    @property
    def has_worked(self) -> bool:
        """It is worth resuming."""
        return self._ops >= {_Op.DISPATCH, _Op.ACKNOWLEDGED}

    async def send(self, op: _Op, body: object) -> None:
        try:
            await self._socket.send_str(msgspec.json.encode({"op": op, "d": body}).decode())
        except (aiohttp.ClientError, OSError) as error:
            raise _Broken("The line to Discord broke.") from error

    async def receive(self) -> _Frame:
        """The next frame; what it asks of a connection is done. Raises `_Broken`, `NotTaken` and `Refused`."""
        frame = None
        while frame is None:  # or it is something else
            frame = read(await self._next_text(), _Frame)
        if frame.s is not None:
            self.sequence = frame.s
        self._ops.add(frame.op)
        match frame.op:
            case _Op.HELLO:
                hello = read(frame.d, _Hello)
                if hello is None:
                    raise NotTaken("Discord's greeting cannot be read.")
                self._interval_s = hello.heartbeat_interval / 1000
                self._acknowledged_at = _now()
                await self._beat()
            case _Op.BEAT:
                await self._beat()
            case _Op.ACKNOWLEDGED:
                self._acknowledged_at = _now()
            case _Op.RECONNECT:
                raise _Broken("Discord asks for another connection.")
            case _Op.INVALID:
                if read(frame.d, bool):
                    raise _Broken("Discord interrupted the session.")
                raise NotTaken("Discord ended the session.")
            case _:
                pass
        return frame

    async def close(self, code: int) -> None:
        await self._socket.close(code=code)

    async def _next_text(self) -> str | bytes:
        """Of a whole frame. While it is waited for, the heart beats."""
        while True:
            if self._beat_at is not None and _now() >= self._beat_at:
                if _now() >= self._acknowledged_at + _MISSED_BEATS * self._interval_s:
                    raise _Broken("Discord does not acknowledge heartbeats any more.")
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
                    raise _Broken(f"Discord closed the line ({message.data}).")
                case aiohttp.WSMsgType.ERROR:
                    raise NotTaken("What Discord sends over the line cannot be read.")
                case _:
                    raise _Broken("The line to Discord was cut.")

    def _unpack(self, piece: bytes) -> bytes | None:
        """All frames of a connection are one zlib stream. None: the frame goes on in the next message."""
        try:
            self._text += self._unpacking.decompress(piece, _MAX_FRAME_BYTES + 1 - len(self._text))
        except zlib.error as error:
            raise NotTaken("What Discord sends over the line cannot be unpacked.") from error
        if len(self._text) > _MAX_FRAME_BYTES:
            raise NotTaken(f"Discord sent more than {_MAX_FRAME_BYTES:,} bytes at once.")
        self._tail = (self._tail + piece)[-len(_END_OF_FRAME) :]
        if self._tail != _END_OF_FRAME:
            return None
        text, self._text = bytes(self._text), bytearray()
        return text

    async def _beat(self) -> None:
        await self.send(_Op.BEAT, self.sequence)
        self._beat_at = _now() + self._interval_s


class DiscordSocket:
    """Open while its context is."""

    def __init__(
        self, rest: Rest, url: str, channels: Channels, greet: Callable[[SocketEvent], Awaitable[None]]
    ) -> None:
        """`greet` is called with each interaction at once: Discord waits 3 seconds for a word."""
        self._rest = rest
        self._url = url
        self._channels = channels
        self._greet = greet
        self._session = ""
        self._waiting: asyncio.Queue[SocketEvent | None] = asyncio.Queue(_MAX_WAITING)
        self._end: PlatformFailure = NotTaken("The line to Discord is closed.")
        self.application = ""

    async def __aenter__(self) -> Self:
        properties = {"os": sys.platform, "browser": "talaria", "device": "talaria"}
        me = {"token": self._rest.token, "intents": _INTENTS, "properties": properties}
        with _opening():
            async with asyncio.timeout(_CONNECT_S):
                self._connection = await self._connect(_Op.IDENTIFY, me)
                try:
                    while not self._session:
                        self._note(await self._connection.receive())
                except BaseException:
                    await self._connection.close(_GOODBYE)
                    raise
        self._reader = asyncio.create_task(self._run(), name="discord line")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reader.cancel()
        with suppress(asyncio.CancelledError):
            await self._reader
        await self._connection.close(_GOODBYE)

    async def take(self) -> list[SocketEvent]:
        """What has come, at least one. Raises `NotTaken` or `Refused` when the line has ended."""
        taken: list[SocketEvent] = []
        while not taken or (len(taken) < _MAX_TAKEN and not self._waiting.empty()):
            told = await self._waiting.get()
            if told is None:
                self._waiting.put_nowait(None)  # for whoever comes next
                break
            taken.append(told)
        if not taken:
            raise self._end
        return taken

    async def _connect(self, op: _Op, introduction: dict[str, Any], sequence: int | None = None) -> _Connection:
        """A connection that was greeted, and told who we are."""
        connection = _Connection(await self._rest.socket(self._url, _MAX_FRAME_BYTES), sequence)
        try:
            while (await connection.receive()).op != _Op.HELLO:
                pass
            await connection.send(op, introduction)
        except BaseException:
            await connection.close(_BE_BACK)
            raise
        return connection

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as greetings:
                self._end = await self._listen(greetings)
        except Exception:
            log.exception("the line to Discord")
            self._end = NotTaken("The line to Discord failed.")
        await self._waiting.put(None)

    async def _listen(self, greetings: asyncio.TaskGroup) -> PlatformFailure:
        """Until the line ends; what ended it."""
        while True:
            try:
                told = self._note(await self._connection.receive())
            except _Broken as broken:
                log.info("%s", broken)
                try:
                    await self._resume(broken)
                except PlatformFailure as failure:
                    return failure
                continue
            except PlatformFailure as failure:
                return failure
            if told is None:
                continue
            if told.kind == "interaction":
                greetings.create_task(self._try_to_greet(told), name="discord greeting")
            await self._waiting.put(told)

    async def _resume(self, broken: _Broken) -> None:
        """Discord then tells all that it could not tell meanwhile. Raises `NotTaken` and `Refused`."""
        if not self._connection.has_worked:
            raise NotTaken(str(broken))
        sequence = self._connection.sequence
        session = {"token": self._rest.token, "session_id": self._session, "seq": sequence}
        with _opening():
            async with asyncio.timeout(_CONNECT_S):
                await self._connection.close(_BE_BACK)
                self._connection = await self._connect(_Op.RESUME, session, sequence)

    async def _try_to_greet(self, told: SocketEvent) -> None:
        try:
            await self._greet(told)
        except PlatformFailure as failure:
            log.info("Discord was not told in time that an interaction has come: %s", failure)

    def _note(self, frame: _Frame) -> SocketEvent | None:
        """What others should hear of it."""
        if frame.op == _Op.ACKNOWLEDGED:
            return SocketEvent("beat")
        if frame.op != _Op.DISPATCH or frame.t is None:
            return None
        if frame.t == "READY":
            ready = read(frame.d, _Ready)
            if ready is None:
                raise NotTaken("Discord's greeting cannot be read.")
            self._session, self.application = ready.session_id, ready.application.id
            self._url = ready.resume_gateway_url or self._url
        kind = _EVENTS.get(frame.t)
        if kind is not None:
            return SocketEvent(kind, frame.d)
        self._channels.hear(frame.t, frame.d)
        return None


@contextmanager
def _opening() -> Generator[None]:
    """What goes wrong meanwhile, as a failure."""
    try:
        yield
    except _Broken as error:
        raise NotTaken(str(error)) from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise NotTaken("Discord's gateway cannot be reached.") from error


def _now() -> float:
    return asyncio.get_running_loop().time()
