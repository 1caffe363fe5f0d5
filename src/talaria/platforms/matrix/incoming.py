"""What a homeserver tells: events become messages, messages become arrivals. Pure, and never raises, whatever comes.

Our own messages, those of bots (notices), edits and everything that is no message become nothing.
"""

import re
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import quote

import msgspec

from talaria.platforms.base import Address, Arrival, Attachment, AttachmentKind, ChatKind, Deleted, Quoted, Sender

NAME = "matrix"
_KINDS: Mapping[str, AttachmentKind] = {
    "m.image": "image",
    "m.video": "video",
    "m.audio": "audio",
    "m.file": "document",
}
_FALLBACK = re.compile(r"\A(?:> .*\n|>\n)+\n?")
_COMMAND = re.compile(r"!(?=[a-z][\w-]*(?:\s|\Z))")


class MatrixAccount(msgspec.Struct, frozen=True):
    """The account that we are."""

    id: str
    name: str = ""
    """What we are called in the room."""


class JoinedRoom(msgspec.Struct, frozen=True):
    id: str
    kind: ChatKind
    person: str = ""


class Media(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file in the server's store; encrypted if it has a key."""

    url: str
    key: str = ""
    iv: str = ""
    sha256: str = ""


class MatrixMessage(msgspec.Struct, frozen=True):
    """An event that is a message of somebody else."""

    id: str
    sender: str
    text: str
    html: str = ""
    mentions: tuple[str, ...] = ()
    thread: str = ""
    """The id of its first message."""
    reply_to: str = ""
    attachments: tuple[Attachment, ...] = ()
    sent_at: float = 0.0


def message(event: Mapping[str, Any], me: MatrixAccount) -> MatrixMessage | None:
    content = _mapping(event, "content")
    kind = _text(content, "msgtype")
    relation = _mapping(content, "m.relates_to")
    is_edit = _text(relation, "rel_type") == "m.replace"
    if _text(event, "type") != "m.room.message" or _text(event, "sender") in {"", me.id} or is_edit:
        return None
    attachments = _attachments(content, kind)
    if kind not in {"m.text", "m.emote"} and not attachments:
        return None
    thread = _text(relation, "event_id") if _text(relation, "rel_type") == "m.thread" else ""
    is_reply = not thread or relation.get("is_falling_back") is not True
    replied = _text(_mapping(relation, "m.in_reply_to"), "event_id") if is_reply else ""
    text = _caption(content) if attachments else _text(content, "body")
    mentioned = _mapping(content, "m.mentions").get("user_ids")
    said = MatrixMessage(
        id=_text(event, "event_id"),
        sender=_text(event, "sender"),
        text=_FALLBACK.sub("", text) if replied else text,
        html=_text(content, "formatted_body"),
        mentions=tuple(str(one) for one in cast("list[Any]", mentioned)) if isinstance(mentioned, list) else (),
        thread=thread,
        reply_to=replied,
        attachments=attachments,
        sent_at=_number(event, "origin_server_ts") / 1000,
    )
    return said if said.id and (said.text or attachments) else None


def arrival(
    said: MatrixMessage,
    room: JoinedRoom,
    me: MatrixAccount,
    *,
    name: str = "",
    quoted: Quoted | None = None,
    is_our_thread: bool = False,
) -> Arrival:
    """`name`: of the sender. `quoted`: what it replies to. `is_our_thread`: we began the thread that it is in."""
    is_ours = is_our_thread or (quoted is not None and quoted.is_ours)
    text, is_named = _without_name(said.text, me)
    is_addressed = room.kind == "group" and (is_named or is_ours or _mentions(said, me) or text.startswith("/"))
    as_command = _COMMAND.sub("/", text, count=1) if text.startswith("!") else text
    is_for_us = room.kind == "dm" or is_addressed
    return Arrival(
        message_id=said.id,
        where=Address(NAME, room.id, said.thread),
        kind=room.kind,
        sender=Sender(said.sender, name),
        text=as_command if is_for_us else text,
        is_addressed=is_addressed,
        maybe_command="" if is_for_us or as_command == text else as_command,
        attachments=said.attachments,
        reply_to=quoted,
        sent_at=said.sent_at,
    )


def read_deletion(event: Mapping[str, Any], room: str) -> Deleted | None:
    """None: the event deletes nothing."""
    if _text(event, "type") != "m.room.redaction":
        return None
    id = _text(event, "redacts") or _text(_mapping(event, "content"), "redacts")  # rooms of older and newer versions
    return Deleted(Address(NAME, room), id) if id else None


def read_quote(event: Mapping[str, Any], me: MatrixAccount, name: str = "") -> Quoted:
    """As what an event is shown that somebody replies to. `name`: of whoever sent it."""
    content = _mapping(event, "content")
    latest = _mapping(_mapping(_mapping(event, "unsigned"), "m.relations"), "m.replace")
    body = _text(_mapping(_mapping(latest, "content"), "m.new_content"), "body") or _text(content, "body")
    text = _FALLBACK.sub("", body) if "m.in_reply_to" in _mapping(content, "m.relates_to") else body
    sender = _text(event, "sender")
    return Quoted(text, is_ours=True) if sender == me.id else Quoted(text, author=name or sender)


def _attachments(content: Mapping[str, Any], kind: str) -> tuple[Attachment, ...]:
    if kind not in _KINDS:
        return ()
    info, file = _mapping(content, "info"), _mapping(content, "file")
    media = Media(
        url=_text(file, "url") or _text(content, "url"),
        key=_text(_mapping(file, "key"), "k"),
        iv=_text(file, "iv"),
        sha256=_text(_mapping(file, "hashes"), "sha256"),
    )
    if not media.url:
        return ()
    found = Attachment(
        kind="voice" if kind == "m.audio" and "org.matrix.msc3245.voice" in content else _KINDS[kind],
        ref=msgspec.json.encode(media).decode(),
        name=_text(content, "filename") or _text(content, "body"),
        mime=_text(info, "mimetype"),
        size_bytes=int(_number(info, "size")) or None,
    )
    return (found,)


def _caption(content: Mapping[str, Any]) -> str:
    """A file's body is its name, unless it has that, too."""
    name, body = _text(content, "filename"), _text(content, "body")
    return body if name and name != body else ""


def _without_name(text: str, me: MatrixAccount) -> tuple[str, bool]:
    """The text without our name in front of it, and whether that was there."""
    names = sorted(filter(None, {_localpart(me), me.name}), key=len, reverse=True)
    called = "|".join(re.escape(name) for name in names)
    exact = rf"(?:{re.escape(me.id)}|@(?:{called}))[:,]?(?:\s+|\Z)"  # @name:elsewhere is somebody else
    found = re.match(rf"\s*(?:{exact}|(?:{called})(?:\s*[:,]\s*|\s+|\Z))", text, re.IGNORECASE)
    return (text[found.end() :].strip(), True) if found else (text.strip(), False)


def _mentions(said: MatrixMessage, me: MatrixAccount) -> bool:
    links = (f"matrix.to/#/{me.id}", f"matrix.to/#/{quote(me.id, safe='')}")
    return me.id in said.mentions or any(f"{link}{end}" in said.html for link in links for end in "\"'?")


def _localpart(me: MatrixAccount) -> str:
    return me.id.removeprefix("@").partition(":")[0]


def _mapping(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = holder.get(name)
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _text(holder: Mapping[str, Any], name: str) -> str:
    value = holder.get(name)
    return value if isinstance(value, str) else ""


def _number(holder: Mapping[str, Any], name: str) -> float:
    value = holder.get(name)
    return value if isinstance(value, int | float) and 0 <= value < 2**53 else 0
