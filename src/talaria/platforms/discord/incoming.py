"""What Discord tells, as arrivals and presses. Pure, and never raises: what cannot be read is nobody's message."""

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
"""A chat of two. One of several without a server (3) is a group."""
_THREADS = {10, 11, 12}
_SAID, _REPLIED = 0, 19
_COMMAND, _COMPONENT = 2, 3
_SLASH, _BUTTON = 1, 2
_IS_VOICE = 1 << 13

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
    """Of a direct chat, as far as it is told."""
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


class ToldRole(msgspec.Struct, frozen=True):
    guild_id: Snowflake
    role: DiscordRole


class DiscordGuild(msgspec.Struct, frozen=True):
    """A server, with those of its channels that we may see."""

    id: Snowflake
    unavailable: bool = False
    channels: tuple[msgspec.Raw, ...] = ()
    threads: tuple[msgspec.Raw, ...] = ()
    roles: tuple[DiscordRole, ...] = ()


class ThreadList(msgspec.Struct, frozen=True):
    """Threads of channels that we may see from now on."""

    guild_id: Snowflake
    threads: tuple[msgspec.Raw, ...] = ()


class DiscordAccount(msgspec.Struct, frozen=True):
    id: str
    role: str = ""
    """Discord gives every bot a role of its own in a server; people pick it when they mean the bot."""


class DiscordUser(msgspec.Struct, frozen=True):
    id: Snowflake
    username: str = ""
    global_name: str | None = None
    bot: bool = False
    system: bool = False

    @property
    def sender(self) -> Sender:
        return Sender(self.id, self.global_name or self.username)


class DiscordUpload(msgspec.Struct, frozen=True):
    id: Snowflake
    url: str
    filename: str = ""
    content_type: str | None = None
    size: int | None = None


class Snapshot(msgspec.Struct, frozen=True):
    """A forwarded message as it was."""

    content: str = ""
    attachments: tuple[DiscordUpload, ...] = ()


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
    attachments: tuple[DiscordUpload, ...] = ()
    referenced_message: Referenced | None = None
    message_snapshots: tuple[Forwarded, ...] = ()

    @property
    def uploads(self) -> Sequence[DiscordUpload]:
        return [
            *self.attachments,
            *(each for forward in self.message_snapshots for each in forward.message.attachments),
        ]


class DiscordDeletion(msgspec.Struct, frozen=True):
    """Of one message, or of many at once."""

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
    type: int = _SLASH
    name: str = ""
    options: tuple[Option, ...] = ()
    custom_id: str = ""
    component_type: int = 0


class Named(msgspec.Struct, frozen=True):
    """A message of which no more than its id matters."""

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
    message: Named | None = None


def read(body: str | bytes | msgspec.Raw, form: type[T]) -> T | None:
    """None when it is something else."""
    try:
        return msgspec.json.decode(body, type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def parse_timestamp(snowflake: str) -> float:
    return ((int(snowflake) >> 22) + _EPOCH_MS) / 1000


def snowflake_at(seconds: float) -> int:
    """As if something had happened then."""
    return max(int(seconds * 1000) - _EPOCH_MS, 0) << 22


def arrival(message: DiscordMessage, channel: DiscordChannel, me: DiscordAccount) -> Arrival | None:
    """None: not said by a person."""
    if message.type not in (_SAID, _REPLIED) or message.webhook_id or message.author.bot or message.author.system:
        return None
    return Arrival(
        message_id=message.id,
        where=channel.address,
        kind=channel.kind,
        sender=message.author.sender,
        text=_text(message, me),
        is_addressed=_is_addressed(message, me),
        attachments=tuple(_attachment(each, message) for each in message.uploads),
        reply_to=_read_quote(message, me),
        forwarded=Quoted(message.message_snapshots[0].message.content) if message.message_snapshots else None,
        sent_at=parse_timestamp(message.id),
    )


def command(told: DiscordInteraction) -> Arrival | None:
    """A slash command as if it had been typed."""
    author = _author(told)
    if told.type != _COMMAND or told.data.type != _SLASH or author is None:
        return None
    return Arrival(
        message_id=told.id,
        where=told.channel.address,
        kind=told.channel.kind,
        sender=author.sender,
        text=" ".join([f"/{told.data.name}", *_values(told.data.options)]),
        is_addressed=True,
        sent_at=parse_timestamp(told.id),
    )


def press(told: DiscordInteraction) -> Press | None:
    author = _author(told)
    if told.type != _COMPONENT or told.data.component_type != _BUTTON or author is None:
        return None
    return Press(
        id=f"{told.id}:{told.token}",
        where=told.channel.address,
        kind=told.channel.kind,
        sender=author.sender,
        data=told.data.custom_id,
        message_id=told.message.id if told.message else "",
    )


def _author(told: DiscordInteraction) -> DiscordUser | None:
    return told.member.user if told.member else told.user


def _values(options: Sequence[Option]) -> list[str]:
    """A subcommand is an option without a value that has options."""
    words: list[str] = []
    for option in options:
        words += [option.name, *_values(option.options)] if option.value is None else [str(option.value)]
    return words


def _text(message: DiscordMessage, me: DiscordAccount) -> str:
    """Without the mention of us, and with names in place of other people's ids."""
    names = {user.id: user.sender.name for user in message.mentions}

    def replace_mention(match: re.Match[str]) -> str:
        sign, id = match.groups()
        if (sign == "&" and id == me.role) or (sign != "&" and id == me.id):
            return ""
        return f"@{names[id]}" if sign != "&" and names.get(id) else match[0]

    return re.sub(r"<@([!&]?)([0-9]{1,20})>", replace_mention, message.content).strip()


def _is_addressed(message: DiscordMessage, me: DiscordAccount) -> bool:
    replied = message.referenced_message
    return (
        any(user.id == me.id for user in message.mentions)
        or (me.role != "" and me.role in message.mention_roles)
        or (replied is not None and replied.author.id == me.id)
    )


def _read_quote(message: DiscordMessage, me: DiscordAccount) -> Quoted | None:
    replied = message.referenced_message
    if replied is None or message.message_snapshots:
        return None
    if replied.author.id == me.id:
        return Quoted(replied.content, is_ours=True)
    return Quoted(replied.content, author=replied.author.sender.name)


def _attachment(upload: DiscordUpload, message: DiscordMessage) -> Attachment:
    mime = (upload.content_type or "").partition(";")[0]
    kind = attachment_kind(mime)
    return Attachment(
        kind="voice" if kind == "audio" and message.flags & _IS_VOICE else kind,
        ref=f"{message.channel_id}/{message.id}/{upload.id} {upload.url}",
        name=upload.filename,
        mime=mime,
        size_bytes=upload.size,
    )
