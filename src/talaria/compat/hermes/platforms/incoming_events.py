"""Messages on their way in: an adapter's `MessageEvent` becomes an `Arrival`, and plugins may filter an `Arrival`.

Adapters are careless about types, so their fields are read whatever they contain. Files that came with a message are
kept where the event can name them until they are fetched.
"""

import hashlib
import math
import mimetypes
import re
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import msgspec

from talaria.compat.hermes.aliases.hermes_cli_config import get_hermes_dir
from talaria.compat.hermes.aliases.hermes_gateway import Platform, SessionSource
from talaria.compat.hermes.platforms.adapter import MessageEvent, MessageType
from talaria.core.clock import SystemClock
from talaria.core.errors import ToolFailed
from talaria.core.pictures import media_type
from talaria.core.text import as_text
from talaria.net.fetch import Fetch
from talaria.net.web_settings import WebSettings
from talaria.platforms.base import Address, Arrival, Attachment, AttachmentKind, Quoted, Sender

# Files that came with messages.

MAX_BYTES = 20 << 20
_BITMAP = b"BM"


def get_image_cache_dir() -> Path:
    return _folder("images", "image_cache")


def get_audio_cache_dir() -> Path:
    return _folder("audio", "audio_cache")


def get_video_cache_dir() -> Path:
    return _folder("videos", "video_cache")


def get_document_cache_dir() -> Path:
    return _folder("documents", "document_cache")


def cache_image_from_bytes(data: bytes, ext: str = ".jpg") -> str:
    """The path of the file. Raises `ValueError` if it is not an image: often it is a page that says why."""
    if media_type(data) is None and not data.startswith(_BITMAP):
        raise ValueError(f"This is not an image; it begins with {data[:40]!r}")
    return _save(get_image_cache_dir(), f"image{ext}", data)


def cache_audio_from_bytes(data: bytes, ext: str = ".ogg") -> str:
    return _save(get_audio_cache_dir(), f"audio{ext}", data)


def cache_video_from_bytes(data: bytes, ext: str = ".mp4") -> str:
    return _save(get_video_cache_dir(), f"video{ext}", data)


def cache_document_from_bytes(data: bytes, filename: str = "") -> str:
    return _save(get_document_cache_dir(), filename or "document", data)


async def cache_image_from_url(url: str, ext: str = ".jpg", retries: int = 2) -> str:  # noqa: ARG001
    """Raises `ValueError`, also for an address that is not public."""
    return cache_image_from_bytes(await _download(url), ext)


async def cache_audio_from_url(url: str, ext: str = ".ogg", retries: int = 2) -> str:  # noqa: ARG001
    return cache_audio_from_bytes(await _download(url), ext)


async def _download(url: str) -> bytes:
    try:
        page = await Fetch(WebSettings(max_bytes=MAX_BYTES), SystemClock()).page(url)
    except ToolFailed as refusal:
        raise ValueError(str(refusal)) from refusal
    if page.status >= 400 or page.is_cut:
        raise ValueError(f"{url} cannot be downloaded: HTTP {page.status}, {len(page.body)} bytes")
    return page.body


def _folder(new: str, old: str) -> Path:
    folder = get_hermes_dir(f"cache/{new}", old)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _save(folder: Path, name: str, data: bytes) -> str:
    """Under its own name, as far as that is safe."""
    safe = re.sub(r"[^\w.()+ -]", "_", Path(name).name).strip(". ")[-80:] or "file"
    file = folder / f"{uuid.uuid4().hex[:12]}_{safe}"
    file.write_bytes(data)
    return str(file)


_KINDS: dict[str, AttachmentKind] = {
    "image": "image",
    "photo": "image",
    "sticker": "image",
    "video": "video",
    "audio": "audio",
    "voice": "voice",
}


def to_arrival(event: Any, platform: str, now: float) -> Arrival | None:
    """None if it does not say where it was sent, or if a bot sent it.

    What an adapter passes on from a group is meant for us: it has looked for the mention itself.
    """
    source: Any = getattr(event, "source", None)
    chat = _text(source, "chat_id")
    if not chat or getattr(source, "is_bot", False):
        return None
    is_direct = (_text(source, "chat_type") or "dm") == "dm"
    who = _text(source, "user_id") or _text(source, "user_id_alt") or (chat if is_direct else "")
    where = Address(platform, chat, _text(source, "thread_id"))
    links, files = _media(event)
    text = "\n".join(part for part in (_text(event, "text"), *links) if part)
    timestamp: Any = getattr(event, "timestamp", None)
    try:
        sent_at = float(timestamp.timestamp() if isinstance(timestamp, datetime) else timestamp)
    except (TypeError, ValueError, OverflowError, OSError):
        sent_at = now
    if not math.isfinite(sent_at):
        sent_at = now
    message_id = _text(event, "message_id")
    if not message_id:  # a repeated message gets a different one if the adapter gives it a different time
        facts = "\0".join(map(str, (where, who, text, sent_at)))
        message_id = "~" + hashlib.sha256(facts.encode()).hexdigest()[:24]
    quoted = _text(event, "reply_to_text")
    is_ours = getattr(event, "reply_to_is_own_message", False) is True
    return Arrival(
        message_id=message_id,
        where=where,
        kind="dm" if is_direct else "group",
        sender=Sender(who, _text(source, "user_name")),
        text=text,
        is_addressed=True,
        attachments=tuple(files),
        reply_to=Quoted(quoted, is_ours) if quoted else None,
        sent_at=sent_at,
    )


def _text(one: object, name: str) -> str:
    value: Any = getattr(one, name, None)
    return "" if value is None else as_text(value)


def _media(event: object) -> tuple[list[str], list[Attachment]]:
    """Addresses, which the model may read itself, and files."""
    types, message_type = list(_read_list(event, "media_types")), getattr(event, "message_type", None)
    usual = _KINDS.get(as_text(getattr(message_type, "value", message_type)), "document")
    links: list[str] = []
    files: list[Attachment] = []
    for number, place in enumerate(_read_list(event, "media_urls")):
        path = unquote(urlsplit(place).path) if place.startswith("file://") else place
        if "://" in path:
            links.append(path)
        elif path:
            given = types[number] if number < len(types) and "/" in types[number] else ""
            mime = given or mimetypes.guess_type(path)[0] or ""
            family = mime.partition("/")[0]
            is_usual = not family or (family == "audio" and usual == "voice")
            kind = usual if is_usual else _KINDS.get(family, "document")
            files.append(Attachment(kind, path, PurePath(path).name, mime))
    return links, files


def _read_list(event: object, name: str) -> Iterator[str]:
    values: Any = getattr(event, name, None)
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        yield from (as_text(value) for value in cast("Sequence[object]", values))


# The hook before a message of a chat is let in.

HOOK = "pre_gateway_dispatch"
_TYPES = {
    "image": MessageType.PHOTO,
    "voice": MessageType.VOICE,
    "audio": MessageType.AUDIO,
    "video": MessageType.VIDEO,
    "document": MessageType.DOCUMENT,
}


def to_event(arrival: Arrival) -> MessageEvent:
    """Without files, as attachments are not fetched yet. Raises `ValueError` for an unknown platform."""
    where, sender = arrival.where, arrival.sender
    first = next(iter(arrival.attachments), None)
    plain = MessageType.COMMAND if arrival.text.startswith("/") else MessageType.TEXT
    return MessageEvent(
        arrival.text,
        _TYPES[first.kind] if first else plain,
        SessionSource(
            Platform(where.platform),
            where.chat,
            chat_type=arrival.kind,
            user_id=sender.id,
            user_name=sender.name or None,
            thread_id=where.thread or None,
            message_id=arrival.message_id,
        ),
        message_id=arrival.message_id,
        reply_to_text=arrival.reply_to.text if arrival.reply_to else None,
        reply_to_is_own_message=bool(arrival.reply_to and arrival.reply_to.is_ours),
        timestamp=datetime.fromtimestamp(arrival.sent_at, UTC).astimezone(),
    )


def apply_answers(arrival: Arrival, answers: Sequence[Any]) -> Arrival | None:
    """The first valid answer decides: `skip` drops the message (None), `rewrite` with a text replaces its text, `allow`
    leaves it as it is."""
    for answer in answers:
        if not isinstance(answer, dict):
            continue
        fields = cast("dict[str, Any]", answer)
        match fields.get("action"), fields.get("text"):
            case "skip", _:
                return None
            case "rewrite", str() as text:
                return msgspec.structs.replace(arrival, text=text)
            case "allow", _:
                return arrival
            case _:
                pass
    return arrival
