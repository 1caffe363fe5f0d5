"""Room events as arrivals, and our messages as the content of room events. Pure.

Reading never raises, whatever the event contains. Our own messages, notices (which come from bots), edits and other
kinds of events are ignored.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import quote

import msgspec
from markdown_it.token import Token

from talaria.platforms.base import Address, Arrival, Attachment, AttachmentKind, ChatKind, Deleted, Quoted, Sender
from talaria.platforms.markdown import parser

NAME = "matrix"
_KINDS: Mapping[str, AttachmentKind] = {
    "m.image": "image",
    "m.video": "video",
    "m.audio": "audio",
    "m.file": "document",
}
_FALLBACK = re.compile(r"\A(?:> .*\n|>\n)+\n?")
_COMMAND = re.compile(r"!(?=[a-z][\w-]*(?:\s|\Z))")


MAX_CHARS = 16_000
"""An event holds 64 KB, or about 47 if it is encrypted: the text, and once more as HTML."""
MAX_CONTENT_CHARS = 46_000
MAX_FALLBACK_CHARS = 1_000
"""How much of an edit clients show that do not support edits."""

NO_PREVIEWS: dict[str, object] = {
    "m.url_previews": [],  # MSC4095: none are included, and none should be generated
    "com.beeper.linkpreviews": [],  # the same under the name that clients support today
    "uk.half-shot.unstable.show_url_previews": False,  # Element Web's own hint
}
"""Tells clients not to fetch the links in a message, because the model may have put private data into one. There is no
standard for that yet."""

_PARSER = parser(breaks=True)


class MatrixAccount(msgspec.Struct, frozen=True):
    """Our account."""

    id: str
    name: str = ""
    """Our display name in the room."""


class JoinedRoom(msgspec.Struct, frozen=True):
    id: str
    kind: ChatKind
    person: str = ""


class Media(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file in the content repository; encrypted if it has a key."""

    url: str
    key: str = ""
    iv: str = ""
    sha256: str = ""


class MatrixMessage(msgspec.Struct, frozen=True):
    """A message from somebody else."""

    id: str
    sender: str
    text: str
    html: str = ""
    mentions: tuple[str, ...] = ()
    thread: str = ""
    """The id of the thread's first message."""
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
    attachments = _read_attachment(content, kind)
    if kind not in {"m.text", "m.emote"} and not attachments:
        return None
    thread = _text(relation, "event_id") if _text(relation, "rel_type") == "m.thread" else ""
    is_reply = not thread or relation.get("is_falling_back") is not True
    replied = _text(_mapping(relation, "m.in_reply_to"), "event_id") if is_reply else ""
    text = _text(content, "body")
    if attachments and _text(content, "filename") in {"", text}:  # then the body is only the file's name
        text = ""
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
    """`name`: the sender's. `quoted`: what the message replies to. `is_our_thread`: we started its thread."""
    is_ours = is_our_thread or (quoted is not None and quoted.is_ours)
    text, is_named = _strip_name(said.text, me)
    links = (f"matrix.to/#/{me.id}", f"matrix.to/#/{quote(me.id, safe='')}")
    is_linked = any(f"{link}{end}" in said.html for link in links for end in "\"'?")
    is_mentioned = is_named or is_linked or me.id in said.mentions
    is_addressed = room.kind == "group" and (is_mentioned or is_ours or text.startswith("/"))
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
    """None if the event is not a redaction."""
    if _text(event, "type") != "m.room.redaction":
        return None
    id = _text(event, "redacts") or _text(_mapping(event, "content"), "redacts")  # older and newer room versions
    return Deleted(Address(NAME, room), id) if id else None


def read_quote(event: Mapping[str, Any], me: MatrixAccount, name: str = "") -> Quoted:
    """The event as a quote, after its edits. `name`: the sender's."""
    content = _mapping(event, "content")
    latest = _mapping(_mapping(_mapping(event, "unsigned"), "m.relations"), "m.replace")
    body = _text(_mapping(_mapping(latest, "content"), "m.new_content"), "body") or _text(content, "body")
    text = _FALLBACK.sub("", body) if "m.in_reply_to" in _mapping(content, "m.relates_to") else body
    sender = _text(event, "sender")
    return Quoted(text, is_ours=True) if sender == me.id else Quoted(text, author=name or sender)


def _read_attachment(content: Mapping[str, Any], kind: str) -> tuple[Attachment, ...]:
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


def _strip_name(text: str, me: MatrixAccount) -> tuple[str, bool]:
    """The text without our name at its beginning, and whether it began with our name."""
    localpart = me.id.removeprefix("@").partition(":")[0]
    names = sorted(filter(None, {localpart, me.name}), key=len, reverse=True)
    called = "|".join(re.escape(name) for name in names)
    exact = rf"(?:{re.escape(me.id)}|@(?:{called}))[:,]?(?:\s+|\Z)"  # @name:elsewhere is somebody else
    found = re.match(rf"\s*(?:{exact}|(?:{called})(?:\s*[:,]\s*|\s+|\Z))", text, re.IGNORECASE)
    return (text[found.end() :].strip(), True) if found else (text.strip(), False)


def _mapping(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = holder.get(name)
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _text(holder: Mapping[str, Any], name: str) -> str:
    value = holder.get(name)
    return value if isinstance(value, str) else ""


def _number(holder: Mapping[str, Any], name: str) -> float:
    value = holder.get(name)
    return value if isinstance(value, int | float) and 0 <= value < 2**53 else 0


def event_length(text: str) -> int:
    """The length of the text in an event, where each character outside ASCII takes six."""
    return len(json.dumps(text)) - 2


def render_html(text: str) -> str:
    """HTML without images."""
    tokens = _PARSER.parse(text)
    for token in tokens:
        token.children = _without_images(token.children or []) if token.type == "inline" else token.children
    return str(_PARSER.renderer.render(tokens, _PARSER.options, {})).strip()


def text_content(text: str) -> dict[str, Any]:
    """The content of a text message. It mentions nobody, whatever the text says."""
    said: dict[str, Any] = {"body": text, "m.mentions": {}}
    shown = render_html(text)
    if shown not in {"", f"<p>{text}</p>"} and event_length(text) + event_length(shown) <= MAX_CONTENT_CHARS:
        said |= {"format": "org.matrix.custom.html", "formatted_body": shown}
    return said


def edit_content(text: str) -> dict[str, Any]:
    """The content of an edit, without its relation to the edited event."""
    fallback = text if len(text) <= MAX_FALLBACK_CHARS else f"{text[:MAX_FALLBACK_CHARS]}…"
    return {
        "msgtype": "m.text",
        "body": f"* {fallback}",
        "m.mentions": {},
        "m.new_content": {"msgtype": "m.text", **text_content(text)},
    }


def without_previews(content: Mapping[str, object]) -> dict[str, object]:
    """The content of a message, or of an edit, with the hints against link previews."""
    changed = content.get("m.new_content")
    edit = {"m.new_content": {**cast("dict[str, object]", changed), **NO_PREVIEWS}} if isinstance(changed, dict) else {}
    return {**content, **NO_PREVIEWS, **edit}


def _without_images(tokens: Sequence[Token]) -> list[Token]:
    """Makes a link of each image, because loading an image tells its server that it was looked at."""
    kept: list[Token] = []
    depth = 0
    for token in tokens:
        depth += {"link_open": 1, "link_close": -1}.get(token.type, 0)
        if token.type != "image":
            kept.append(token)
            continue
        words = Token("text", "", 0, content=token.content or str(token.attrGet("src") or ""))
        if depth:
            kept.append(words)
        else:
            link = Token("link_open", "a", 1, attrs={"href": token.attrGet("src") or ""})
            kept += [link, words, Token("link_close", "a", -1)]
    return kept
