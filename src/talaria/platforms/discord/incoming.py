"""Reads Discord's messages and interactions as arrivals and presses. Pure, and never raises: what cannot be decoded is
ignored."""

import re
from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec

from talaria.platforms.base import (
    Address,
    Arrival,
    Attachment,
    ChatKind,
    Deleted,
    Press,
    Quoted,
    Sender,
    attachment_kind,
)

Snowflake = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,20}\Z")]

_EPOCH_MS = 1_420_070_400_000
_DIRECT = 1
"""A DM between two. A group DM (3) is a group."""
_THREADS = {10, 11, 12}
_DEFAULT, _REPLY = 0, 19
_APPLICATION_COMMAND, _MESSAGE_COMPONENT = 2, 3
_CHAT_INPUT, _BUTTON = 1, 2
_IS_VOICE_MESSAGE = 1 << 13

T = TypeVar("T")


class ThreadState(msgspec.Struct, frozen=True):
    archived: bool = False


class DiscordChannel(msgspec.Struct, frozen=True):
    id: Snowflake
    type: int = 0
    parent_id: Snowflake | None = None
    guild_id: Snowflake | None = None
    last_message_id: Snowflake | None = None
    recipients: "tuple[DiscordUser, ...]" = ()
    """The other people in a DM, if Discord included them."""
    thread_metadata: ThreadState = ThreadState()

    @property
    def kind(self) -> ChatKind:
        return "dm" if self.type == _DIRECT else "group"

    @property
    def address(self) -> Address:
        if self.type in _THREADS and self.parent_id:
            return Address("discord", self.parent_id, self.id)
        return Address("discord", self.id)


class RoleTags(msgspec.Struct, frozen=True):
    bot_id: Snowflake | None = None


class DiscordRole(msgspec.Struct, frozen=True):
    id: Snowflake
    tags: RoleTags = RoleTags()


class RoleChange(msgspec.Struct, frozen=True):
    guild_id: Snowflake
    role: DiscordRole


class DiscordGuild(msgspec.Struct, frozen=True):
    """A server, with the channels that we can see."""

    id: Snowflake
    unavailable: bool = False
    channels: tuple[msgspec.Raw, ...] = ()
    threads: tuple[msgspec.Raw, ...] = ()
    roles: tuple[DiscordRole, ...] = ()


class ThreadList(msgspec.Struct, frozen=True):
    """Threads that we can see from now on."""

    guild_id: Snowflake
    threads: tuple[msgspec.Raw, ...] = ()


class DiscordAccount(msgspec.Struct, frozen=True):
    id: str
    role: str = ""
    """In each server, every bot has a role of its own, which people may mention instead of the bot."""


class DiscordUser(msgspec.Struct, frozen=True):
    id: Snowflake
    username: str = ""
    global_name: str | None = None
    bot: bool = False
    system: bool = False

    @property
    def sender(self) -> Sender:
        return Sender(self.id, self.global_name or self.username)


class DiscordAttachment(msgspec.Struct, frozen=True):
    id: Snowflake
    url: str
    filename: str = ""
    content_type: str | None = None
    size: int | None = None


class Snapshot(msgspec.Struct, frozen=True):
    """A copy of a forwarded message."""

    content: str = ""
    attachments: tuple[DiscordAttachment, ...] = ()


class Forwarded(msgspec.Struct, frozen=True):
    message: Snapshot = Snapshot()


class Referenced(msgspec.Struct, frozen=True):
    author: DiscordUser
    content: str = ""


class DiscordMessage(msgspec.Struct, frozen=True):
    id: Snowflake
    channel_id: Snowflake
    author: DiscordUser
    content: str = ""
    type: int = 0
    flags: int = 0
    guild_id: Snowflake | None = None
    channel_type: int | None = None
    webhook_id: Snowflake | None = None
    mentions: tuple[DiscordUser, ...] = ()
    mention_roles: tuple[Snowflake, ...] = ()
    attachments: tuple[DiscordAttachment, ...] = ()
    referenced_message: Referenced | None = None
    message_snapshots: tuple[Forwarded, ...] = ()

    @property
    def all_attachments(self) -> Sequence[DiscordAttachment]:
        return [
            *self.attachments,
            *(each for forward in self.message_snapshots for each in forward.message.attachments),
        ]


class DiscordDeletion(msgspec.Struct, frozen=True):
    """The deletion of one message, or of many at once."""

    channel_id: Snowflake
    id: Snowflake | None = None
    ids: tuple[Snowflake, ...] = ()

    def items(self, channel: DiscordChannel) -> Sequence[Deleted]:
        return [Deleted(channel.address, each) for each in (*((self.id,) if self.id else ()), *self.ids)]


class Option(msgspec.Struct, frozen=True):
    value: str | int | float | bool | None = None
    name: str = ""
    options: "tuple[Option, ...]" = ()


class InteractionData(msgspec.Struct, frozen=True):
    type: int = _CHAT_INPUT
    name: str = ""
    options: tuple[Option, ...] = ()
    custom_id: str = ""
    component_type: int = 0


class ObjectId(msgspec.Struct, frozen=True):
    """Any object of which only the id matters."""

    id: Snowflake


class DiscordMember(msgspec.Struct, frozen=True):
    user: DiscordUser


class DiscordInteraction(msgspec.Struct, frozen=True):
    id: Snowflake
    token: str
    type: int
    channel: DiscordChannel
    data: InteractionData = InteractionData()
    member: DiscordMember | None = None
    user: DiscordUser | None = None
    message: ObjectId | None = None

    @property
    def author(self) -> DiscordUser | None:
        return self.member.user if self.member else self.user


def read(body: str | bytes | msgspec.Raw, form: type[T]) -> T | None:
    """None if the body does not have this form."""
    try:
        return msgspec.json.decode(body, type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def parse_timestamp(snowflake: str) -> float:
    return ((int(snowflake) >> 22) + _EPOCH_MS) / 1000


def snowflake_at(seconds: float) -> int:
    """The smallest id of that moment."""
    return max(int(seconds * 1000) - _EPOCH_MS, 0) << 22


def arrival(message: DiscordMessage, channel: DiscordChannel, me: DiscordAccount) -> Arrival | None:
    """None if it does not come from a person."""
    if message.type not in (_DEFAULT, _REPLY) or message.webhook_id or message.author.bot or message.author.system:
        return None
    attachments: list[Attachment] = []
    for each in message.all_attachments:
        mime = (each.content_type or "").partition(";")[0]
        kind = attachment_kind(mime)
        if kind == "audio" and message.flags & _IS_VOICE_MESSAGE:
            kind = "voice"
        ref = f"{message.channel_id}/{message.id}/{each.id} {each.url}"
        attachments.append(Attachment(kind, ref, each.filename, mime, each.size))
    replied = message.referenced_message
    is_reply_to_us = replied is not None and replied.author.id == me.id
    reply_to = None
    if replied is not None and not message.message_snapshots:
        author = "" if is_reply_to_us else replied.author.sender.name
        reply_to = Quoted(replied.content, is_ours=is_reply_to_us, author=author)
    is_mentioned = any(user.id == me.id for user in message.mentions) or (
        me.role != "" and me.role in message.mention_roles
    )
    return Arrival(
        message_id=message.id,
        where=channel.address,
        kind=channel.kind,
        sender=message.author.sender,
        text=_read_text(message, me),
        is_addressed=is_mentioned or is_reply_to_us,
        attachments=tuple(attachments),
        reply_to=reply_to,
        forwarded=Quoted(message.message_snapshots[0].message.content) if message.message_snapshots else None,
        sent_at=parse_timestamp(message.id),
    )


def command(interaction: DiscordInteraction) -> Arrival | None:
    """A slash command, as if it had been typed."""
    data, author = interaction.data, interaction.author
    if interaction.type != _APPLICATION_COMMAND or data.type != _CHAT_INPUT or author is None:
        return None
    return Arrival(
        message_id=interaction.id,
        where=interaction.channel.address,
        kind=interaction.channel.kind,
        sender=author.sender,
        text=" ".join([f"/{data.name}", *_values(data.options)]),
        is_addressed=True,
        sent_at=parse_timestamp(interaction.id),
    )


def press(interaction: DiscordInteraction) -> Press | None:
    data, author = interaction.data, interaction.author
    if interaction.type != _MESSAGE_COMPONENT or data.component_type != _BUTTON or author is None:
        return None
    return Press(
        id=f"{interaction.id}:{interaction.token}",
        where=interaction.channel.address,
        kind=interaction.channel.kind,
        sender=author.sender,
        data=data.custom_id,
        message_id=interaction.message.id if interaction.message else "",
    )


def _values(options: Sequence[Option]) -> list[str]:
    """A subcommand is an option that has options instead of a value."""
    words: list[str] = []
    for option in options:
        words += [option.name, *_values(option.options)] if option.value is None else [str(option.value)]
    return words


def _read_text(message: DiscordMessage, me: DiscordAccount) -> str:
    """Without the mention of us, and with names in place of other people's ids."""
    names = {user.id: user.sender.name for user in message.mentions}

    def replace_mention(match: re.Match[str]) -> str:
        prefix, id = match.groups()
        if id == (me.role if prefix == "&" else me.id):
            return ""
        return f"@{names[id]}" if prefix != "&" and names.get(id) else match[0]

    return re.sub(r"<@([!&]?)([0-9]{1,20})>", replace_mention, message.content).strip()
