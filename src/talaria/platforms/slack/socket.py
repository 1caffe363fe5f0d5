"""The Socket Mode connection, from its hello to its end. It does not reconnect: whoever opens it anew also asks for
what was missed meanwhile."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import msgspec
from slack_sdk.socket_mode.aiohttp import SocketModeClient

from talaria.net.urls import proxy_for
from talaria.platforms.base import NotTaken, PlatformFailure, Refused
from talaria.platforms.slack.config import SlackSettings
from talaria.platforms.slack.incoming import decode
from talaria.platforms.slack.web_api import Opened, Web, sdk_log

MOST_AT_ONCE = 100
CONNECT_S = 10.0

log = logging.getLogger(__name__)


class Envelope(msgspec.Struct, frozen=True):
    """What Slack sends over the line; with an id it must be acknowledged."""

    type: str = ""
    envelope_id: str = ""
    payload: msgspec.Raw = msgspec.Raw(b"{}")
    reason: str = ""
    """Of a disconnect."""
    num_connections: int = 1


class SlackSocket(SocketModeClient):
    """The SDK's client, without its own ideas of what happens to a message and of when to connect anew."""

    def __init__(self, settings: SlackSettings, web: Web) -> None:
        super().__init__(
            settings.app_token.reveal(), logger=sdk_log(), web_client=web.client, ping_interval=settings.ping_s
        )
        self._arrived = asyncio.Queue[str | None]()
        self._end: PlatformFailure | None = None
        self._proven_at: float | None = None

    async def enqueue_message(self, message: str) -> None:
        self._arrived.put_nowait(message)

    async def connect_to_new_endpoint(self, force: bool = False) -> None:  # noqa: ARG002  (the SDK's)
        self._arrived.put_nowait(None)  # called where the line has ended: closed, stale, or asked to go

    async def greeting(self) -> Envelope:
        """The first word of Slack. Raises `NotTaken` and `Refused`."""
        envelope = _read(await self._arrived.get())
        if envelope.type != "hello":
            raise _end(envelope.reason)
        self._proven_at = self.last_ping_pong_time = time.time()  # else the SDK's first ping would count as answered
        return envelope

    async def take(self, patience_s: float) -> list[Envelope]:
        """What has arrived, in order; empty if nothing does. Raises `NotTaken` or `Refused` at the end of the line."""
        if self._end is not None:
            raise self._end
        try:
            async with asyncio.timeout(patience_s):
                message = await self._arrived.get()
        except TimeoutError:
            return []
        envelopes = self._up_to_the_end(message)
        if not envelopes and self._end is not None:
            raise self._end
        return envelopes

    def _up_to_the_end(self, message: str | None) -> list[Envelope]:
        envelopes: list[Envelope] = []
        while True:
            envelope = _read(message)
            if envelope.type == "disconnect":
                self._end = _end(envelope.reason)
                return envelopes
            envelopes.append(envelope)
            if self._arrived.empty() or len(envelopes) == MOST_AT_ONCE:
                return envelopes
            message = self._arrived.get_nowait()

    def is_proven_anew(self) -> bool:
        """Whether Slack has answered a ping since this was last asked."""
        before, self._proven_at = self._proven_at, self.last_ping_pong_time
        return self._proven_at != before

    async def acknowledge(self, envelope_id: str) -> None:
        with suppress(ConnectionError):  # then Slack tells of it again
            await self.send_socket_mode_response({"envelope_id": envelope_id})


@asynccontextmanager
async def open_line(settings: SlackSettings, web: Web) -> AsyncGenerator[SlackSocket]:
    """Raises `NotTaken` and `Refused`."""
    opened = await web.read("apps_connections_open", Opened, app_token=settings.app_token.reveal())
    line = SlackSocket(settings, web)
    line.wss_uri = opened.url
    line.proxy = proxy_for(line.wss_uri.replace("ws", "http", 1))
    try:
        hello = await _connect(line)
        if hello.num_connections > 1:
            log.warning(
                "%d programs are connected with this Slack app: each gets some of the messages.", hello.num_connections
            )
        yield line
    finally:
        await line.close()


async def _connect(line: SlackSocket) -> Envelope:
    try:
        async with asyncio.timeout(CONNECT_S):  # the SDK tries without end
            await line.connect()
            return await line.greeting()
    except TimeoutError as fault:
        raise NotTaken("Slack's Socket Mode cannot be reached.") from fault


def _read(message: str | None) -> Envelope:
    return Envelope("disconnect") if message is None else decode(message, Envelope) or Envelope()


def _end(reason: str) -> PlatformFailure:
    if reason == "link_disabled":
        return Refused("Socket Mode is turned off for the Slack app: turn it on in the app's settings.")
    return NotTaken(f"The line to Slack has ended ({reason or 'it broke'}).")
