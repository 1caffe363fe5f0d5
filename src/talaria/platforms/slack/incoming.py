"""Reads Slack's payloads as arrivals, presses and deletions. Pure, and never raises, whatever the payload contains."""

import re
from collections.abc import Container
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

_NEW_MESSAGE = frozenset({None, "file_share", "thread_broadcast", "me_message"})
"""Subtypes of new messages from people; edits, joins and the like have others."""
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
    """From an event or from the history."""

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
    """Of many forms, so they are decoded one by one."""

    @property
    def thread(self) -> str:
        return self.thread_ts if self.thread_ts and self.thread_ts != self.ts else ""


class MessageCallback(msgspec.Struct, frozen=True):
    event: SlackMessage


class SlackDeletion(msgspec.Struct, frozen=True):
    subtype: str
    channel: str
    deleted_ts: str


class DeletionCallback(msgspec.Struct, frozen=True):
    event: SlackDeletion


class SharedMessage(msgspec.Struct, frozen=True):
    """An attachment that is a forwarded message."""

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
    """The threads that we take part in, as named by `conversation`."""


def is_timestamp(text: str) -> bool:
    return _TIMESTAMP.fullmatch(text) is not None


def conversation(channel: str, thread: str) -> str:
    return f"{channel}:{thread}" if thread else channel


def decode(raw: str | msgspec.Raw | dict[str, Any], type: type[T]) -> T | None:
    """None if it does not have this form."""
    try:
        if isinstance(raw, dict):
            return msgspec.convert(raw, type)
        return msgspec.json.decode(raw, type=type)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def items(kind: str, payload: msgspec.Raw, us: Us) -> tuple[Item, ...]:
    """`kind`: the type of the envelope."""
    found: Item | None = None
    match kind:
        case "events_api":
            if deletion := decode(payload, DeletionCallback):
                event = deletion.event
                is_deletion = event.subtype == "message_deleted"
                found = Deleted(Address("slack", event.channel), event.deleted_ts) if is_deletion else None
            elif callback := decode(payload, MessageCallback):
                found = arrival(callback.event, us)
        case "slash_commands":
            if command := decode(payload, SlackCommand):
                found = Arrival(
                    command.trigger_id,
                    Address("slack", command.channel_id),
                    chat_kind(command.channel_id),
                    Sender(command.user_id, command.user_name or ""),
                    "/" + (_words(command.text or "", "").lstrip("/") or "help"),
                    is_addressed=True,
                )
        case "interactive":
            interaction = decode(payload, SlackInteraction)
            if interaction is not None and interaction.actions:
                place, action = interaction.container, interaction.actions[0]
                thread = place.thread_ts if place.thread_ts and place.thread_ts != place.message_ts else ""
                found = Press(
                    action.action_ts,
                    Address("slack", place.channel_id, thread),
                    chat_kind(place.channel_id),
                    Sender(interaction.user.id, interaction.user.username or ""),
                    action.value,
                    place.message_ts,
                )
        case _:
            pass
    return () if found is None else (found,)


def arrival(message: SlackMessage, us: Us) -> Arrival | None:
    """None if it is not a new message from a person."""
    is_new = message.type in {"message", "app_mention"} and message.subtype in _NEW_MESSAGE and not message.hidden
    if not is_new or message.bot_id or message.user in {us.user, "USLACKBOT"} or not is_timestamp(message.ts):
        return None
    text = message.text or ""
    attachments: list[Attachment] = []
    for file in message.files or ():
        mime = file.mimetype or ""
        kind = "voice" if file.subtype == "slack_audio" else attachment_kind(mime)
        if file.mode not in _UNREADABLE:
            attachments.append(Attachment(kind, file.id, file.name or "", mime, file.size))
    is_mentioned = message.type == "app_mention" or f"<@{us.user}>" in text or f"<@{us.user}|" in text
    # a reply in a thread of ours is for us, unless it begins by mentioning somebody else
    is_ours = message.parent_user_id == us.user or conversation(message.channel, message.thread) in us.threads
    is_reply_to_us = bool(message.thread) and is_ours and not text.lstrip().startswith("<@")
    return Arrival(
        message.ts,
        Address("slack", message.channel, message.thread),
        chat_kind(message.channel),
        Sender(message.user),
        _words(text, us.user),
        is_addressed=is_mentioned or is_reply_to_us,
        attachments=tuple(attachments),
        forwarded=_find_forwarded(message),
        sent_at=float(message.ts),
    )


def _find_forwarded(message: SlackMessage) -> Quoted | None:
    given: object = message.attachments
    for one in cast("list[object]", given) if isinstance(given, list) else ():
        shared = decode(cast("dict[str, Any]", one), SharedMessage) if isinstance(one, dict) else None
        if shared is not None and shared.is_share:
            return Quoted(_words(shared.text or "", ""), author=shared.author_name or shared.author_subname or "")
    return None


def chat_kind(channel: str) -> ChatKind:
    return "dm" if channel.startswith("D") else "group"


def _words(text: str, us: str) -> str:
    """The text as a person reads it, without the mention of us."""
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
