"""The gateway socket, kept by discord.py: identifying, heartbeats, decompression, resuming.

Ours is when to give up: heartbeats that are not acknowledged break the line, a broken line is resumed once, and what
cannot be resumed is told, so that the platform is opened anew and reads what was missed. The library would try on.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Literal, Self

import aiohttp
import msgspec
import yarl

from talaria.platforms.base import NotTaken, PlatformFailure
from talaria.platforms.discord import failures
from talaria.platforms.discord.discord_py import DiscordWebSocket, HTTPClient, ReconnectWebSocket, discord
from talaria.platforms.discord.incoming import DiscordChannel, read
from talaria.platforms.discord.rest import Rest

log = logging.getLogger(__name__)

_CONNECT_S = 30.0
_MAX_WAITING = 1000
_MAX_TAKEN = 100
_DISPATCH, _HELLO, _ACKNOWLEDGED = 0, 10, 11
_MISSED_BEATS = 2


class SocketEvent(msgspec.Struct, frozen=True):
    """An event of Discord's; `beat` is an acknowledged heartbeat, which proves that the line is alive."""

    kind: Literal["message", "deletion", "interaction", "beat"]
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Hello(msgspec.Struct, frozen=True):
    heartbeat_interval: float


class _Frame(msgspec.Struct, frozen=True):
    op: int
    t: str | None = None
    d: msgspec.Raw = msgspec.Raw(b"null")


class _Http(HTTPClient):
    """Opens the socket over our own session. No other request of the library's is used."""

    def __init__(self, rest: Rest) -> None:
        super().__init__(asyncio.get_running_loop())
        self.token = rest.token
        self._rest = rest

    async def ws_connect(self, url: str, *, compress: int = 0) -> aiohttp.ClientWebSocketResponse:  # noqa: ARG002
        return await self._rest.socket(url)


class _Client(discord.Client):
    def __init__(self, rest: Rest, heard: Callable[[str], None]) -> None:
        super().__init__(
            intents=discord.Intents(guilds=True, messages=True, message_content=True),
            max_messages=None,
            member_cache_flags=discord.MemberCacheFlags.none(),
            chunk_guilds_at_startup=False,
            guild_ready_timeout=0.0,
            enable_debug_events=True,
        )
        self.http = _Http(rest)
        self._heard = heard

    def dispatch(self, event: str, /, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """All is read as it comes over the wire, live and from history alike: the library's own events are not used."""
        if event == "socket_raw_receive":
            self._heard(args[0])


@contextmanager
def _opening(sent_away: str) -> Generator[None]:
    """What goes wrong meanwhile, as a failure."""
    try:
        yield
    except ReconnectWebSocket as error:
        raise NotTaken(sent_away) from error
    except discord.ConnectionClosed as error:
        raise failures.closed(error.code) from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise NotTaken("Discord's gateway cannot be reached.") from error


class DiscordSocket:
    """Open while its context is."""

    def __init__(self, rest: Rest, url: str, greet: Callable[[SocketEvent], Awaitable[None]]) -> None:
        """`greet` is called with each interaction at once: Discord waits 3 seconds for a word."""
        self._client = _Client(rest, self._hear)
        self._url = url
        self._greet = greet
        self._heard: deque[SocketEvent] = deque()
        self._waiting: asyncio.Queue[SocketEvent | None] = asyncio.Queue(_MAX_WAITING)
        self._end: PlatformFailure = NotTaken("The line to Discord is closed.")
        self._is_ready = False
        self._proofs: set[int] = set()
        """What has come since the line was last connected: it is worth resuming if it ever worked."""
        self._interval_s = 0.0
        self._silent_at: float | None = None
        """When a heartbeat must have been acknowledged (the loop's time)."""

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        try:
            await self._connect()
        except BaseException:
            await self._client.close()
            raise
        self._reader = asyncio.create_task(self._run(), name="discord line")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reader.cancel()
        with suppress(asyncio.CancelledError):
            await self._reader
        await self._client.close()

    @property
    def application(self) -> str:
        return str(self._client.application_id)

    def channel(self, id: str) -> DiscordChannel | None:
        """As Discord last told of it."""
        match self._client.get_channel(int(id)):
            case discord.Thread() as found:
                parent = str(found.parent_id)
            case discord.TextChannel() | discord.VoiceChannel() | discord.StageChannel() as found:
                parent = None
            case _:
                return None
        last = found.last_message_id
        return DiscordChannel(id, found.type.value, parent, str(found.guild.id), str(last) if last else None)

    def role(self, guild: str | None) -> str:
        """Our own role in a server."""
        found = self._client.get_guild(int(guild)) if guild else None
        role = found.self_role if found else None
        return str(role.id) if role else ""

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

    async def _connect(self) -> None:
        with _opening("Discord ended the line while it was being opened."):
            async with asyncio.timeout(_CONNECT_S):
                await self._open(gateway=yarl.URL(self._url), initial=True)
                while not self._is_ready:
                    await self._client.ws.poll_event()

    async def _open(self, **how: Any) -> None:
        self._proofs.clear()
        self._client.ws = await DiscordWebSocket.from_client(self._client, **how)

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
            while self._heard:
                told = self._heard.popleft()
                if told.kind == "interaction":
                    greetings.create_task(self._greeted(told), name="discord greeting")
                await self._waiting.put(told)
            try:
                await self._poll()
            except PlatformFailure as failure:
                return failure

    async def _greeted(self, told: SocketEvent) -> None:
        try:
            await self._greet(told)
        except PlatformFailure as failure:
            log.info("Discord was not told in time that an interaction has come: %s", failure)

    async def _poll(self) -> None:
        """One message of the socket; a broken one is resumed."""
        try:
            async with asyncio.timeout_at(self._silent_at):
                await self._client.ws.poll_event()
        except ReconnectWebSocket:
            await self._resume()
        except TimeoutError:
            log.warning("Discord does not acknowledge heartbeats any more")
            await self._resume()
        except discord.ConnectionClosed as error:
            raise failures.closed(error.code) from error
        except (aiohttp.ClientError, OSError) as error:
            raise NotTaken("The line to Discord broke.") from error
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            log.warning("discord.py cannot read an event of Discord's: %s", type(error).__name__)

    async def _resume(self) -> None:
        """Discord then tells all that it could not tell meanwhile. A session that it has ended has no id any more."""
        broken = self._client.ws
        if broken.session_id is None or not self._proofs >= {_DISPATCH, _ACKNOWLEDGED}:
            raise NotTaken("Discord ended the session.")
        with _opening("Discord does not resume the session."):
            async with asyncio.timeout(_CONNECT_S):
                await broken.close()
                await self._open(
                    gateway=broken.gateway, session=broken.session_id, sequence=broken.sequence, resume=True
                )

    def _hear(self, text: str) -> None:
        frame = read(text, _Frame)
        if frame is None:
            return
        self._proofs.add(frame.op)
        if frame.op == _HELLO and (hello := read(frame.d, _Hello)):
            self._interval_s = hello.heartbeat_interval / 1000
            self._beat()
        elif frame.op == _ACKNOWLEDGED:
            self._beat()
            self._heard.append(SocketEvent("beat"))
        elif frame.op == _DISPATCH:
            self._note(frame)

    def _beat(self) -> None:
        self._silent_at = asyncio.get_running_loop().time() + _MISSED_BEATS * self._interval_s

    def _note(self, frame: _Frame) -> None:
        match frame.t:
            case "READY":
                self._is_ready = True
            case "MESSAGE_CREATE":
                self._heard.append(SocketEvent("message", frame.d))
            case "MESSAGE_DELETE" | "MESSAGE_DELETE_BULK":
                self._heard.append(SocketEvent("deletion", frame.d))
            case "INTERACTION_CREATE":
                self._heard.append(SocketEvent("interaction", frame.d))
            case _:
                pass
