"""Discord as a `Platform`: the line brings what arrives, the REST API takes what is said."""

import hashlib
import logging
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

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
)
from talaria.platforms.discord import channels, incoming, render, rest
from talaria.platforms.discord.channels import Bookmarks, Channels
from talaria.platforms.discord.config import DiscordSettings, check, is_snowflake
from talaria.platforms.discord.gateway_socket import DiscordSocket, SocketEvent
from talaria.platforms.discord.incoming import DiscordAccount, DiscordChannel, DiscordInteraction, DiscordMessage
from talaria.platforms.discord.rest import Rest, decode_answer
from talaria.platforms.splitting import units

log = logging.getLogger(__name__)

_MARK = 100
"""Room for a word of the gateway's at the beginning of a message."""
_CAPABILITIES = Capabilities(
    max_chars=render.MAX_CHARS - _MARK,
    can_edit=True,
    can_delete=True,
    can_type=True,
    has_buttons=True,
    has_threads=True,
    dedup_s=120.0,  # "the past few minutes"
    edit_every_s=1.2,  # five in five seconds
    max_upload_bytes=10 * 2**20,
    pulse_s=90.0,  # twice their interval of heartbeats
    length=units,  # what Discord counts is never more
)
_DIRECT = 1
_THREAD_IN = {0: 11, 5: 10}
"""Which kind of thread a text channel can have, and one for announcements."""
_WEEK_MIN = 10080
_SUPPRESS_EMBEDS, _EPHEMERAL = 1 << 2, 1 << 6
_SAY, _SEEN = 4, 6
_STYLES = {"plain": 2, "good": 3, "bad": 4}
_ROW, _BUTTON = 1, 2
_MAX_DIRECT = 25
_NOBODY = {"parse": list[str](), "replied_user": False}
_COMMAND = re.compile(r"[-_a-z0-9]{1,32}")
_MAX_COMMANDS = 100


class _SessionLimit(msgspec.Struct, frozen=True):
    remaining: int = 1
    reset_after: float = 0.0


class _Gateway(msgspec.Struct, frozen=True):
    url: str
    session_start_limit: _SessionLimit = _SessionLimit()


@asynccontextmanager
async def open(settings: DiscordSettings, kit: Kit) -> AsyncGenerator[Platform]:  # noqa: A001
    check(settings)
    async with rest.connect(settings.api_url, settings.token.reveal()) as api:
        me = await api.ask("/users/@me", incoming.DiscordUser)
        url = settings.gateway_url or await _gateway(api)
        known = Channels(api, me.id)
        async with DiscordSocket(api, url, known, lambda told: _greet(api, told)) as line:
            yield DiscordPlatform(me.id, settings, kit, api, known, line)


async def _gateway(api: Rest) -> str:
    found = await api.ask("/gateway/bot", _Gateway)
    if found.session_start_limit.remaining < 1:  # Discord takes the token away from bots that go on
        pause_s = found.session_start_limit.reset_after / 1000
        raise NotTaken("Discord takes no more connections of this bot today.", retry_after_s=pause_s)
    return found.url


class DiscordPlatform:
    name = "discord"
    capabilities = _CAPABILITIES

    def __init__(
        self, account: str, settings: DiscordSettings, kit: Kit, api: Rest, known: Channels, line: DiscordSocket
    ) -> None:
        self.account = account
        self._people = list(dict.fromkeys([*settings.admin_users, *settings.allowed_users]))[:_MAX_DIRECT]
        self._kit = kit
        self._api = api
        self._channels = known
        self._line = line

    async def receive(self, cursor: str | None) -> AsyncGenerator[Batch]:
        marks = Bookmarks.at(cursor, self._kit.clock)
        if cursor is None:
            yield Batch(cursor=str(marks))  # from now on nothing is missed
        read = [*marks.channels, *(await self._direct_channels() if cursor else ())]
        for channel in dict.fromkeys(read):
            async with aclosing(self._fetch_missed(channel, marks)) as batches:
                async for batch in batches:
                    yield batch
        while True:
            told = await self._line.take()
            items = [item for each in told for item in await self._items(each, marks)]
            marks.advance_to_now(self._kit.clock)
            if items or any(each.kind == "beat" for each in told):
                yield Batch(tuple(items), cursor=str(marks))

    async def acknowledge(self, batch: Batch) -> None:
        """Discord does not ask for it."""

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
        return SentId(decode_answer(await self._api.call("POST", path, body, file=message.file), incoming.Named).id)

    async def edit(self, sent: SentId, message: Outbound) -> None:
        await self._api.call("PATCH", _message(message.where, sent), _body(message))

    async def delete(self, sent: SentId, where: Address) -> None:
        await self._api.call("DELETE", _message(where, sent))

    async def show_typing(self, where: Address) -> None:
        await self._api.call("POST", f"/channels/{_channel(where)}/typing")

    async def react(self, where: Address, message_id: str, emoji: str) -> None:
        await self._api.call("PUT", f"{_message(where, message_id)}/reactions/{quote(emoji, safe='')}/@me")

    async def answer(self, press: Press, text: str) -> None:
        if not text:  # that it was heard was said when it came
            return
        token = quote(press.id.partition(":")[2], safe="")
        body = {"content": render.content(text), "flags": _EPHEMERAL | _SUPPRESS_EMBEDS, "allowed_mentions": _NOBODY}
        await self._api.call("POST", f"/webhooks/{self._line.application}/{token}", body)

    async def fetch(self, attachment: Attachment, to: Path, max_bytes: int) -> None:
        place, _, url = attachment.ref.partition(" ")
        if await self._api.download(url, to, max_bytes):
            return
        if not await self._api.download(await self._fresh_url(place), to, max_bytes):
            raise Rejected("The file is gone from Discord.")

    async def chat_info(self, where: Address) -> ChatInfo:
        id = _channel(where)
        channel = await self._channels.find(id)
        if channel.kind == "dm" and not channel.recipients:  # what came with a message does not name them
            channel = await self._api.ask(f"/channels/{id}", DiscordChannel)
        person = channel.recipients[0].id if channel.kind == "dm" and len(channel.recipients) == 1 else ""
        return ChatInfo(channel.address, channel.kind, person)

    async def create_thread(self, where: Address, name: str) -> Address | None:
        """By itself or, where that is refused, under a message with its name."""
        parent = await self._channels.find(_channel(Address(where.platform, where.chat)))
        kind = _THREAD_IN.get(parent.type)
        if kind is None:
            return None
        body = {"name": name.strip()[:100] or "…", "auto_archive_duration": _WEEK_MIN}
        try:
            answer = await self._api.call("POST", f"/channels/{parent.id}/threads", {**body, "type": kind})
        except (AccessLost, Rejected):
            answer = await self._create_thread_under_message(parent.id, body)
        return Address("discord", where.chat, decode_answer(answer, DiscordChannel).id)

    async def _create_thread_under_message(self, parent: str, body: dict[str, Any]) -> bytes:
        seed = {"content": render.content(body["name"]), "allowed_mentions": _NOBODY}
        sent = decode_answer(await self._api.call("POST", f"/channels/{parent}/messages", seed), incoming.Named).id
        try:
            return await self._api.call("POST", f"/channels/{parent}/messages/{sent}/threads", body)
        except PlatformFailure:
            with suppress(PlatformFailure):
                await self._api.call("DELETE", f"/channels/{parent}/messages/{sent}")
            raise

    async def offer_commands(self, menu: Sequence[tuple[str, str]]) -> None:
        commands = [_command(name, words) for name, words in menu if _COMMAND.fullmatch(name)]
        await self._api.call("PUT", f"/applications/{self._line.application}/commands", commands[:_MAX_COMMANDS])

    async def _fetch_missed(self, id: str, marks: Bookmarks) -> AsyncGenerator[Batch]:
        known = self._channels.find_known(id)
        if known and int(known.last_message_id or 0) <= marks.last(id):
            return
        try:
            async with aclosing(channels.fetch_missed(self._api, self._kit.clock, id, marks.last(id))) as pages:
                async for page in pages:
                    channel = await self._channels.find(id) if page else DiscordChannel(id)
                    items = [item for message in page if (item := self._arrival(message, channel, marks))]
                    yield Batch(tuple(items), cursor=str(marks))
        except (AccessLost, Rejected) as failure:
            log.info("Discord channel %s cannot be read any more: %s", id, failure)
            marks.forget(id)

    async def _direct_channels(self) -> list[str]:
        """Of the people whom the settings name: one of them may have written for the first time."""
        found: list[str] = []
        for person in self._people:
            given = {"recipient_id": person}
            try:
                body = await channels.patiently(self._api, self._kit.clock, "POST", "/users/@me/channels", given)
            except (AccessLost, Rejected) as failure:
                log.info("no direct chat with %s on Discord: %s", person, failure)
            else:
                channel = incoming.read(body, DiscordChannel)
                found += [channel.id] if channel else []
        return found

    async def _items(self, told: SocketEvent, marks: Bookmarks) -> Sequence[Item]:
        found: Item | None = None
        if told.kind == "message":
            message = incoming.read(told.body, DiscordMessage)
            found = await self._receive_message(message, marks) if message else None
        elif told.kind == "deletion":
            deletion = incoming.read(told.body, incoming.DiscordDeletion)
            return deletion.items(self._channels[deletion.channel_id]) if deletion else ()
        elif interaction := incoming.read(told.body, DiscordInteraction):
            found = incoming.command(interaction) or incoming.press(interaction)
        return (found,) if found else ()

    async def _receive_message(self, message: DiscordMessage, marks: Bookmarks) -> Arrival | None:
        if message.guild_id is None:
            kind = _DIRECT if message.channel_type is None else message.channel_type
            return self._arrival(message, DiscordChannel(message.channel_id, kind), marks)
        try:
            channel = await self._channels.find(message.channel_id)
        except (AccessLost, Rejected) as failure:
            log.warning("a message in Discord channel %s is left out: %s", message.channel_id, failure)
            return None
        return self._arrival(message, channel, marks)

    def _arrival(self, message: DiscordMessage, channel: DiscordChannel, marks: Bookmarks) -> Arrival | None:
        if channel.kind == "group" or channel.id in marks or self._kit.is_allowed(message.author.sender):
            marks.mark(channel.id, message.id)  # strangers' direct chats would push out the others
        return incoming.arrival(message, channel, DiscordAccount(self.account, self._channels.role(channel.guild_id)))

    async def _fresh_url(self, place: str) -> str:
        """Discord signs the addresses of files for a day."""
        channel, message, upload = [*place.split("/"), "", ""][:3]
        try:
            body = await self._api.call("GET", _message(Address("discord", channel), message))
        except AccessLost as lost:
            raise Rejected(str(lost)) from lost
        found = incoming.read(body, DiscordMessage)
        for each in found.uploads if found else ():
            if each.id == upload:
                return each.url
        raise Rejected("The file is gone from Discord.")


async def _greet(api: Rest, told: SocketEvent) -> None:
    """So that Discord does not say "did not respond": a word after a command, nothing to be seen after a press."""
    interaction = incoming.read(told.body, DiscordInteraction)
    if interaction is None:
        return
    if incoming.command(interaction):
        body = {"type": _SAY, "data": {"content": "Heard.", "flags": _EPHEMERAL}}
    elif incoming.press(interaction):
        body = {"type": _SEEN}
    else:
        return
    await api.call("POST", f"/interactions/{interaction.id}/{quote(interaction.token, safe='')}/callback", body)


def _body(message: Outbound) -> dict[str, Any]:
    buttons = [
        {"type": _BUTTON, "style": _STYLES[each.style], "label": each.label[:80], "custom_id": each.data}
        for each in message.buttons
    ]
    return {
        "content": render.content(message.text),
        "flags": _SUPPRESS_EMBEDS,
        "allowed_mentions": _NOBODY,
        "components": [{"type": _ROW, "components": buttons[at : at + 5]} for at in range(0, len(buttons), 5)],
    }


def _command(name: str, words: str) -> dict[str, Any]:
    text = {"type": 3, "name": "text", "description": "What follows the command", "required": False}
    return {"name": name, "description": words[:100] or name, "type": 1, "contexts": [0, 1], "options": [text]}


def _channel(where: Address) -> str:
    id = where.thread or where.chat
    if not is_snowflake(id):
        raise Rejected(f"{id!r} is no id of a Discord channel.")
    return id


def _message(where: Address, id: str) -> str:
    if not is_snowflake(id):
        raise Rejected(f"{id!r} is no id of a Discord message.")
    return f"/channels/{_channel(where)}/messages/{id}"
