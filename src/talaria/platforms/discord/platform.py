"""Discord as a `Platform`: events arrive through the Gateway, messages leave through the REST API.

Discord does not deliver what was sent while we were offline, so we keep a bookmark per channel and fetch it.
"""

import hashlib
import logging
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import msgspec

from talaria.core.clock import Clock
from talaria.platforms.base import (
    AccessLost,
    Address,
    Arrival,
    Attachment,
    Batch,
    Capabilities,
    ChatInfo,
    Item,
    Kit,
    NotTaken,
    Outbound,
    Platform,
    PlatformFailure,
    Press,
    Rejected,
    SentId,
    Unsure,
)
from talaria.platforms.discord import incoming, render, rest
from talaria.platforms.discord.config import DiscordSettings, check, is_snowflake
from talaria.platforms.discord.gateway_socket import Channels, DiscordSocket, SocketEvent
from talaria.platforms.discord.incoming import (
    DiscordAccount,
    DiscordChannel,
    DiscordDeletion,
    DiscordInteraction,
    DiscordMessage,
    DiscordUser,
    ObjectId,
    snowflake_at,
)
from talaria.platforms.discord.rest import Body, Rest, decode_answer
from talaria.platforms.splitting import units

log = logging.getLogger(__name__)

_RESERVED_CHARS = 100
"""Room for what the gateway adds to a message."""
_CAPABILITIES = Capabilities(
    max_chars=render.MAX_CHARS - _RESERVED_CHARS,
    can_edit=True,
    can_delete=True,
    can_type=True,
    has_buttons=True,
    has_threads=True,
    dedup_s=120.0,  # Discord promises "the past few minutes"
    edit_every_s=1.2,  # the limit is five in five seconds
    max_upload_bytes=10 * 2**20,
    pulse_s=90.0,  # twice the usual heartbeat interval
    length=units,  # Discord never counts more
)
_DIRECT = 1
_THREAD_IN = {0: 11, 5: 10}
"""Channel types, and the type of thread that can be created there: text, announcements."""
_WEEK_MIN = 10080
_SUPPRESS_EMBEDS, _EPHEMERAL = 1 << 2, 1 << 6
_CHANNEL_MESSAGE, _DEFERRED_UPDATE = 4, 6
"""Types of interaction responses."""
_STYLES = {"plain": 2, "good": 3, "bad": 4}
_ACTION_ROW, _BUTTON = 1, 2
_MAX_DIRECT = 25
_NO_MENTIONS = {"parse": list[str](), "replied_user": False}
_COMMAND = re.compile(r"[-_a-z0-9]{1,32}")
_MAX_COMMANDS = 100
_MAX_BOOKMARKS = 500
_MAX_PAGES = 5
_PAGE = 100
_MAX_AGE_S = 24 * 3600.0
_SKEW_S = 60.0
"""By how much our clock may be ahead of Discord's."""
_MAX_PAUSE_S = 60.0
_MAX_PAUSES = 5


class _SessionStartLimit(msgspec.Struct, frozen=True):
    remaining: int = 1
    reset_after: float = 0.0


class _GatewayBot(msgspec.Struct, frozen=True):
    url: str
    session_start_limit: _SessionStartLimit = _SessionStartLimit()


@asynccontextmanager
async def open(settings: DiscordSettings, kit: Kit) -> AsyncGenerator[Platform]:  # noqa: A001
    check(settings)
    async with rest.connect(settings.api_url, settings.token.reveal()) as api:
        me = await api.ask("/users/@me", DiscordUser)
        url = settings.gateway_url
        if not url:
            found = await api.ask("/gateway/bot", _GatewayBot)
            if found.session_start_limit.remaining < 1:  # Discord resets the token of a bot that keeps trying
                pause_s = found.session_start_limit.reset_after / 1000
                raise NotTaken("Discord allows this bot no more connections today.", retry_after_s=pause_s)
            url = found.url
        channels = Channels(api, me.id)
        async with DiscordSocket(api, url, channels, lambda event: _respond(api, event)) as socket:
            yield DiscordPlatform(me.id, settings, kit, api, channels, socket)


class _Cursor(msgspec.Struct, frozen=True):
    heard: int
    """When we were last connected, as a snowflake."""
    channels: dict[str, int]
    """The last message that we read in each channel."""


class Bookmarks:
    """How far each channel is read. `str()` gives the cursor."""

    def __init__(self, heard: int, channels: dict[str, int]) -> None:
        self._heard = heard
        self._channels = channels

    @classmethod
    def at(cls, cursor: str | None, clock: Clock) -> Self:
        """Without a cursor, this is the first run, and nothing was missed."""
        kept = incoming.read(cursor, _Cursor) if cursor else None
        if kept is None:
            return cls(snowflake_at(clock.now()) - 1, {})  # messages of this very millisecond are still to come
        return cls(kept.heard, dict(kept.channels))

    def __str__(self) -> str:
        return msgspec.json.encode(_Cursor(self._heard, self._channels)).decode()

    def __contains__(self, channel: str) -> bool:
        return channel in self._channels

    @property
    def channels(self) -> list[str]:
        """The most recently used first."""
        return sorted(self._channels, key=self._channels.__getitem__, reverse=True)

    def last(self, channel: str) -> int:
        """In a channel without a bookmark, we have read everything up to the last time we were connected."""
        return self._channels.get(channel, self._heard)

    def mark(self, channel: str, message: str) -> None:
        self._channels[channel] = max(int(message), self._channels.get(channel, 0))
        if len(self._channels) > _MAX_BOOKMARKS:
            del self._channels[self.channels[-1]]

    def forget(self, channel: str) -> None:
        self._channels.pop(channel, None)

    def advance_to_now(self, clock: Clock) -> None:
        self._heard = max(self._heard, snowflake_at(clock.now() - _SKEW_S))


class DiscordPlatform:
    name = "discord"
    capabilities = _CAPABILITIES

    def __init__(
        self, account: str, settings: DiscordSettings, kit: Kit, api: Rest, channels: Channels, socket: DiscordSocket
    ) -> None:
        self.account = account
        self._people = list(dict.fromkeys([*settings.admin_users, *settings.allowed_users]))[:_MAX_DIRECT]
        self._kit = kit
        self._api = api
        self._channels = channels
        self._socket = socket

    async def receive(self, cursor: str | None) -> AsyncGenerator[Batch]:
        marks = Bookmarks.at(cursor, self._kit.clock)
        if cursor is None:
            yield Batch(cursor=str(marks))  # from here on, nothing is missed
        ids = marks.channels
        for person in self._people if cursor else ():  # one of them may have written for the first time
            try:
                dm = await self._read_patiently("POST", "/users/@me/channels", {"recipient_id": person})
            except (AccessLost, Rejected) as failure:
                log.info("no direct chat with %s on Discord: %s", person, failure)
            else:
                channel = incoming.read(dm, DiscordChannel)
                ids += [channel.id] if channel else []
        for channel in dict.fromkeys(ids):
            async with aclosing(self._fetch_missed(channel, marks)) as batches:
                async for batch in batches:
                    yield batch
        while True:
            events = await self._socket.take()
            items = [item for event in events for item in await self._read_event(event, marks)]
            marks.advance_to_now(self._kit.clock)
            if items or any(event.kind == "heartbeat" for event in events):
                yield Batch(tuple(items), cursor=str(marks))

    async def acknowledge(self, batch: Batch) -> None:
        """Discord does not need it."""

    async def send(self, message: Outbound) -> SentId:
        body = {
            **_body(message),
            "nonce": hashlib.sha256(message.key.encode()).hexdigest()[:25],
            "enforce_nonce": True,
        }
        if is_snowflake(message.reply_to):
            body["message_reference"] = {"message_id": message.reply_to, "fail_if_not_exists": False}
        if message.file is not None:
            body["attachments"] = [{"id": 0, "filename": message.file.name}]
        path = f"/channels/{_channel(message.where)}/messages"
        return SentId(decode_answer(await self._api.call("POST", path, body, file=message.file), ObjectId).id)

    async def edit(self, sent: SentId, message: Outbound) -> None:
        await self._api.call("PATCH", _message(message.where, sent), _body(message))

    async def delete(self, sent: SentId, where: Address) -> None:
        await self._api.call("DELETE", _message(where, sent))

    async def show_typing(self, where: Address) -> None:
        await self._api.call("POST", f"/channels/{_channel(where)}/typing")

    async def react(self, where: Address, message_id: str, emoji: str) -> None:
        await self._api.call("PUT", f"{_message(where, message_id)}/reactions/{quote(emoji, safe='')}/@me")

    async def answer(self, press: Press, text: str) -> None:
        if not text:  # `_respond` has already shown that the press was received
            return
        token = quote(press.id.partition(":")[2], safe="")
        flags = _EPHEMERAL | _SUPPRESS_EMBEDS
        body = {"content": render.content(text), "flags": flags, "allowed_mentions": _NO_MENTIONS}
        await self._api.call("POST", f"/webhooks/{self._socket.application}/{token}", body)

    async def fetch(self, attachment: Attachment, to: Path, max_bytes: int) -> None:
        place, _, url = attachment.ref.partition(" ")
        if await self._api.download(url, to, max_bytes):
            return
        # Discord signs attachment URLs for a day only: the message has a fresh one
        channel, message, id = [*place.split("/"), "", ""][:3]
        try:
            body = await self._api.call("GET", _message(Address("discord", channel), message))
        except AccessLost as lost:
            raise Rejected(str(lost)) from lost
        found = incoming.read(body, DiscordMessage)
        for each in found.all_attachments if found else ():
            if each.id == id and await self._api.download(each.url, to, max_bytes):
                return
        raise Rejected("The file is gone from Discord.")

    async def chat_info(self, where: Address) -> ChatInfo:
        id = _channel(where)
        channel = await self._channels.find(id)
        if channel.kind == "dm" and not channel.recipients:  # the channel object in an interaction does not name them
            channel = await self._api.ask(f"/channels/{id}", DiscordChannel)
        person = channel.recipients[0].id if channel.kind == "dm" and len(channel.recipients) == 1 else ""
        return ChatInfo(channel.address, channel.kind, person)

    async def create_thread(self, where: Address, name: str) -> Address | None:
        """Creates a thread without a message or, if that is refused, under a message with its name."""
        parent = await self._channels.find(_channel(Address(where.platform, where.chat)))
        kind = _THREAD_IN.get(parent.type)
        if kind is None:
            return None
        thread_name = name.strip()[:100] or "…"
        body = {"name": thread_name, "auto_archive_duration": _WEEK_MIN}
        try:
            answer = await self._api.call("POST", f"/channels/{parent.id}/threads", {**body, "type": kind})
        except (AccessLost, Rejected):
            messages = f"/channels/{parent.id}/messages"
            message = {"content": render.content(thread_name), "allowed_mentions": _NO_MENTIONS}
            sent = decode_answer(await self._api.call("POST", messages, message), ObjectId).id
            try:
                answer = await self._api.call("POST", f"{messages}/{sent}/threads", body)
            except PlatformFailure:
                with suppress(PlatformFailure):
                    await self._api.call("DELETE", f"{messages}/{sent}")
                raise
        return Address("discord", where.chat, decode_answer(answer, DiscordChannel).id)

    async def offer_commands(self, menu: Sequence[tuple[str, str]]) -> None:
        text = {"type": 3, "name": "text", "description": "What follows the command", "required": False}
        commands = [
            {"name": name, "description": words[:100] or name, "type": 1, "contexts": [0, 1], "options": [text]}
            for name, words in menu
            if _COMMAND.fullmatch(name)
        ]
        await self._api.call("PUT", f"/applications/{self._socket.application}/commands", commands[:_MAX_COMMANDS])

    async def _fetch_missed(self, id: str, marks: Bookmarks) -> AsyncGenerator[Batch]:
        """The channel's messages since its bookmark, oldest first: at most a day and a few pages of them."""
        known = self._channels.find_known(id)
        if known and int(known.last_message_id or 0) <= marks.last(id):
            return
        after = max(marks.last(id), snowflake_at(self._kit.clock.now() - _MAX_AGE_S))
        try:
            for _ in range(_MAX_PAGES):
                query = {"after": str(after), "limit": str(_PAGE)}
                body = await self._read_patiently("GET", f"/channels/{id}/messages", query=query)
                found = incoming.read(body, list[msgspec.Raw]) or []
                messages = (message for each in found if (message := incoming.read(each, DiscordMessage)))
                page = sorted(messages, key=lambda message: int(message.id))
                channel = await self._channels.find(id) if page else DiscordChannel(id)
                items = [item for message in page if (item := self._read_message(message, channel, marks))]
                yield Batch(tuple(items), cursor=str(marks))
                if len(found) < _PAGE or not page:
                    return
                after = int(page[-1].id)
        except (AccessLost, Rejected) as failure:
            log.info("Discord channel %s can no longer be read: %s", id, failure)
            marks.forget(id)

    async def _read_patiently(
        self, method: str, path: str, body: Body | None = None, query: Mapping[str, str] | None = None
    ) -> bytes:
        """A call without visible effect, repeated when Discord asks us to wait. Never raises `Unsure`."""
        for _ in range(_MAX_PAUSES):
            try:
                return await self._api.call(method, path, body, query=query)
            except NotTaken as busy:
                if busy.retry_after_s is None or busy.retry_after_s > _MAX_PAUSE_S:
                    raise
                await self._kit.clock.sleep(busy.retry_after_s)
            except Unsure as lost:
                raise NotTaken(str(lost)) from lost
        raise NotTaken("What was missed on Discord cannot be read: Discord keeps asking us to slow down.")

    async def _read_event(self, event: SocketEvent, marks: Bookmarks) -> Sequence[Item]:
        found: Item | None = None
        if event.kind == "message" and (message := incoming.read(event.body, DiscordMessage)):
            if message.guild_id is None:
                kind = _DIRECT if message.channel_type is None else message.channel_type
                channel = DiscordChannel(message.channel_id, kind)
            else:
                try:
                    channel = await self._channels.find(message.channel_id)
                except (AccessLost, Rejected) as failure:
                    log.warning("a message in Discord channel %s is dropped: %s", message.channel_id, failure)
                    return ()
            found = self._read_message(message, channel, marks)
        elif event.kind == "deletion" and (deletion := incoming.read(event.body, DiscordDeletion)):
            return deletion.items(self._channels[deletion.channel_id])
        elif event.kind == "interaction" and (interaction := incoming.read(event.body, DiscordInteraction)):
            found = incoming.command(interaction) or incoming.press(interaction)
        return (found,) if found else ()

    def _read_message(self, message: DiscordMessage, channel: DiscordChannel, marks: Bookmarks) -> Arrival | None:
        if channel.kind == "group" or channel.id in marks or self._kit.is_allowed(message.author.sender):
            marks.mark(channel.id, message.id)  # not for strangers, whose direct chats would push out the others
        return incoming.arrival(message, channel, DiscordAccount(self.account, self._channels.role(channel.guild_id)))


async def _respond(api: Rest, event: SocketEvent) -> None:
    """Keeps Discord from saying that the bot did not respond: a reply to a command, nothing visible for a press."""
    interaction = incoming.read(event.body, DiscordInteraction)
    if interaction is None:
        return
    if incoming.command(interaction):
        body = {"type": _CHANNEL_MESSAGE, "data": {"content": "Got it.", "flags": _EPHEMERAL}}
    elif incoming.press(interaction):
        body = {"type": _DEFERRED_UPDATE}
    else:
        return
    path = f"/interactions/{interaction.id}/{quote(interaction.token, safe='')}/callback"
    try:
        await api.call("POST", path, body)
    except PlatformFailure as failure:
        log.info("An interaction on Discord was not answered in time: %s", failure)


def _body(message: Outbound) -> dict[str, Any]:
    buttons = [
        {"type": _BUTTON, "style": _STYLES[each.style], "label": each.label[:80], "custom_id": each.data}
        for each in message.buttons
    ]
    return {
        "content": render.content(message.text),
        "flags": _SUPPRESS_EMBEDS,
        "allowed_mentions": _NO_MENTIONS,
        "components": [{"type": _ACTION_ROW, "components": buttons[at : at + 5]} for at in range(0, len(buttons), 5)],
    }


def _channel(where: Address) -> str:
    id = where.thread or where.chat
    if not is_snowflake(id):
        raise Rejected(f"{id!r} is not the id of a Discord channel.")
    return id


def _message(where: Address, id: str) -> str:
    if not is_snowflake(id):
        raise Rejected(f"{id!r} is not the id of a Discord message.")
    return f"/channels/{_channel(where)}/messages/{id}"
