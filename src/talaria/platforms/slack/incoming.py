"""What Slack tells → what somebody said or pressed. Pure; never raises, whatever it is told."""

import re
from collections.abc import Callable, Container
from html import unescape
from typing import Any, TypeVar, cast

import msgspec

from talaria.platforms.base import (
    Address,
    Arrival,
    Attachment,
    ChatKind,
    Deleted,
    Item,
    Press,
    Quoted,
    Sender,
    attachment_kind,
)

_SAID = frozenset({None, "file_share", "thread_broadcast", "me_message"})
"""Subtypes of what a person has just written; edits, joins and the like have others."""
_UNREADABLE = frozenset({"tombstone", "hidden_by_limit"})
_TIMESTAMP = re.compile(r"\d{1,12}\.\d{1,9}", re.ASCII)
_TOKEN = re.compile(r"<([^<>|\n]+)(?:\|([^<>\n]*))?>")

T = TypeVar("T", bound=msgspec.Struct)


class SlackUpload(msgspec.Struct, frozen=True):
    id: str
    name: str | None = None
    mimetype: str | None = None
    size: int | None = None
    subtype: str | None = None
    mode: str | None = None


class SlackMessage(msgspec.Struct, frozen=True):
    """In an event or in the history."""

    type: str
    ts: str
    user: str
    channel: str
    text: str | None = None
    subtype: str | None = None
    thread_ts: str | None = None
    parent_user_id: str | None = None
    bot_id: str | None = None
    hidden: bool | None = None
    files: tuple[SlackUpload, ...] | None = None
    attachments: Any = None
    """Of many kinds; read one by one."""

    @property
    def thread(self) -> str:
        return self.thread_ts if self.thread_ts and self.thread_ts != self.ts else ""


class Callback(msgspec.Struct, frozen=True):
    event: SlackMessage


class SlackDeletion(msgspec.Struct, frozen=True):
    subtype: str
    channel: str
    deleted_ts: str


class DeletionCallback(msgspec.Struct, frozen=True):
    event: SlackDeletion


class Shared(msgspec.Struct, frozen=True):
    """An attachment that is a message which somebody passes on."""

    is_share: bool = False
    text: str | None = None
    author_name: str | None = None
    author_subname: str | None = None


class SlackCommand(msgspec.Struct, frozen=True):
    channel_id: str
    user_id: str
    trigger_id: str
    text: str | None = None
    user_name: str | None = None


class SlackUser(msgspec.Struct, frozen=True):
    id: str
    username: str | None = None


class SlackContainer(msgspec.Struct, frozen=True):
    channel_id: str
    message_ts: str
    thread_ts: str | None = None


class Action(msgspec.Struct, frozen=True):
    action_ts: str
    value: str


class SlackInteraction(msgspec.Struct, frozen=True):
    user: SlackUser
    container: SlackContainer
    actions: tuple[Action, ...]


class Us(msgspec.Struct, frozen=True):
    user: str
    threads: Container[str]
    """Those in which we take part, as `conversation` names them."""


def is_timestamp(text: str) -> bool:
    return _TIMESTAMP.fullmatch(text) is not None


def conversation(channel: str, thread: str) -> str:
    return f"{channel}:{thread}" if thread else channel


def decode(told: str | msgspec.Raw | dict[str, Any], type: type[T]) -> T | None:
    """None: it is something else, and not for us."""
    try:
        if isinstance(told, dict):
            return msgspec.convert(told, type)
        return msgspec.json.decode(told, type=type)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def items(kind: str, payload: msgspec.Raw, us: Us) -> tuple[Item, ...]:
    """Of an envelope of that type."""
    found = _READERS[kind](payload, us) if kind in _READERS else None
    return () if found is None else (found,)


def arrival(message: SlackMessage, us: Us) -> Arrival | None:
    """None: nobody said that, or a bot, or we."""
    is_said = message.type in {"message", "app_mention"} and message.subtype in _SAID and not message.hidden
    if not is_said or message.bot_id or message.user in {us.user, "USLACKBOT"} or not is_timestamp(message.ts):
        return None
    text = message.text or ""
    return Arrival(
        message.ts,
        Address("slack", message.channel, message.thread),
        chat_kind(message.channel),
        Sender(message.user),
        _words(text, us.user),
        is_addressed=message.type == "app_mention" or _is_addressed(message, text, us),
        attachments=tuple(_attachment(file) for file in message.files or () if file.mode not in _UNREADABLE),
        forwarded=_find_forwarded(message),
        sent_at=float(message.ts),
    )


def _find_forwarded(message: SlackMessage) -> Quoted | None:
    given: object = message.attachments
    for one in cast("list[object]", given) if isinstance(given, list) else ():
        shared = decode(cast("dict[str, Any]", one), Shared) if isinstance(one, dict) else None
        if shared is not None and shared.is_share:
            return Quoted(_words(shared.text or "", ""), author=shared.author_name or shared.author_subname or "")
    return None


def _happening(payload: msgspec.Raw, us: Us) -> Arrival | Deleted | None:
    deletion = decode(payload, DeletionCallback)
    if deletion is not None:
        event = deletion.event
        return (
            Deleted(Address("slack", event.channel), event.deleted_ts) if event.subtype == "message_deleted" else None
        )
    callback = decode(payload, Callback)
    return callback and arrival(callback.event, us)


def _command(payload: msgspec.Raw, _us: Us) -> Arrival | None:
    command = decode(payload, SlackCommand)
    if command is None:
        return None
    return Arrival(
        command.trigger_id,
        Address("slack", command.channel_id),
        chat_kind(command.channel_id),
        Sender(command.user_id, command.user_name or ""),
        "/" + (_words(command.text or "", "").lstrip("/") or "help"),
        is_addressed=True,
    )


def _press(payload: msgspec.Raw, _us: Us) -> Press | None:
    interaction = decode(payload, SlackInteraction)
    if interaction is None or not interaction.actions:
        return None
    place, action = interaction.container, interaction.actions[0]
    thread = place.thread_ts if place.thread_ts and place.thread_ts != place.message_ts else ""
    return Press(
        action.action_ts,
        Address("slack", place.channel_id, thread),
        chat_kind(place.channel_id),
        Sender(interaction.user.id, interaction.user.username or ""),
        action.value,
        place.message_ts,
    )


_READERS: dict[str, Callable[[msgspec.Raw, Us], Item | None]] = {
    "events_api": _happening,
    "slash_commands": _command,
    "interactive": _press,
}


def chat_kind(channel: str) -> ChatKind:
    return "dm" if channel.startswith("D") else "group"


def _is_addressed(message: SlackMessage, text: str, us: Us) -> bool:
    """A reply in a thread of ours is for us, unless it begins with the name of somebody else."""
    if f"<@{us.user}>" in text or f"<@{us.user}|" in text:
        return True
    is_ours = message.parent_user_id == us.user or conversation(message.channel, message.thread) in us.threads
    return bool(message.thread) and is_ours and not text.lstrip().startswith("<@")


def _words(text: str, us: str) -> str:
    """As a person reads it, without the mention of us."""
    mention = re.compile(rf"[ \t]*<@{re.escape(us)}(?:\|[^<>]*)?>[:,]?[ \t]*")
    return unescape(_TOKEN.sub(_format_token, mention.sub(" ", text) if us else text)).strip()


def _format_token(token: re.Match[str]) -> str:
    what, label = token[1], token[2] or ""
    if what.startswith(("@", "#")):
        return what[0] + (label or what[1:]).removeprefix(what[0])
    if what.startswith("!"):
        return label or "@" + what[1:].partition("^")[0]
    target = what.removeprefix("mailto:").removeprefix("tel:")
    return f"{label} ({target})" if label and label not in {what, target} else target


def _attachment(file: SlackUpload) -> Attachment:
    mime = file.mimetype or ""
    kind = "voice" if file.subtype == "slack_audio" else attachment_kind(mime)
    return Attachment(kind, file.id, file.name or "", mime, file.size)
