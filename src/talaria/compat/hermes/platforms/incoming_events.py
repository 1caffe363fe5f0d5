"""A third-party adapter's `MessageEvent` as an `Arrival`. Pure; fields are taken as they come, whatever they hold.

Files that came with messages, kept where the adapter's event can name them until they are fetched.
"""

import hashlib
import math
import mimetypes
import re
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from talaria.compat.hermes.aliases.hermes_constants import get_hermes_dir
from talaria.core.clock import SystemClock
from talaria.core.errors import ToolFailed
from talaria.core.pictures import media_type
from talaria.core.plugin_calls import as_text
from talaria.net.fetch import Fetch
from talaria.net.web_settings import WebSettings
from talaria.platforms.base import Address, Arrival, Attachment, AttachmentKind, Quoted, Sender

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
    """The path of the file. Raises `ValueError` for what is no image: often it is a page that says why not."""
    if media_type(data) is None and not data.startswith(_BITMAP):
        raise ValueError(f"This is no image; it begins with {data[:40]!r}")
    return _save(get_image_cache_dir(), f"image{ext}", data)


def cache_audio_from_bytes(data: bytes, ext: str = ".ogg") -> str:
    return _save(get_audio_cache_dir(), f"audio{ext}", data)


def cache_video_from_bytes(data: bytes, ext: str = ".mp4") -> str:
    return _save(get_video_cache_dir(), f"video{ext}", data)


def cache_document_from_bytes(data: bytes, filename: str = "") -> str:
    return _save(get_document_cache_dir(), filename or "document", data)


async def cache_image_from_url(url: str, ext: str = ".jpg", retries: int = 2) -> str:  # noqa: ARG001
    """Raises `ValueError`; also for an address that is not public."""
    return cache_image_from_bytes(await _download(url), ext)


async def cache_audio_from_url(url: str, ext: str = ".ogg", retries: int = 2) -> str:  # noqa: ARG001
    return cache_audio_from_bytes(await _download(url), ext)


def mime_of(path: str) -> str:
    return mimetypes.guess_type(path)[0] or ""


async def _download(url: str) -> bytes:
    try:
        page = await Fetch(WebSettings(max_bytes=MAX_BYTES), SystemClock()).page(url)
    except ToolFailed as refusal:
        raise ValueError(str(refusal)) from refusal
    if page.status >= 400 or page.is_cut:
        raise ValueError(f"{url} cannot be had: HTTP {page.status}, {len(page.body)} bytes")
    return page.body


def _folder(new: str, old: str) -> Path:
    folder = get_hermes_dir(f"cache/{new}", old)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _save(folder: Path, name: str, data: bytes) -> str:
    """Under the name that it had, as far as that can be one."""
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


def arrival(event: Any, platform: str, now: float) -> Arrival | None:
    """None if it does not say where it was said, or if a bot said it.

    What an adapter hands over from a group is meant for us: it has looked for the mention itself.
    """
    source: Any = getattr(event, "source", None)
    chat = _text(source, "chat_id")
    if not chat or getattr(source, "is_bot", False):
        return None
    is_direct = (_text(source, "chat_type") or "dm") == "dm"
    who = _text(source, "user_id") or _text(source, "user_id_alt") or (chat if is_direct else "")
    links, files = _media(event)
    text = "\n".join(part for part in (_text(event, "text"), *links) if part)
    where = Address(platform, chat, _text(source, "thread_id"))
    sent_at = _time(getattr(event, "timestamp", None), now)
    return Arrival(
        message_id=_text(event, "message_id") or _make_up_id(str(where), who, text, sent_at),
        where=where,
        kind="dm" if is_direct else "group",
        sender=Sender(who, _text(source, "user_name")),
        text=text,
        is_addressed=True,
        attachments=tuple(files),
        reply_to=_read_quote(event),
        sent_at=sent_at,
    )


def _text(one: object, name: str) -> str:
    value: Any = getattr(one, name, None)
    return "" if value is None else as_text(value)


def _make_up_id(*facts: object) -> str:
    """For a message without an id. The same one told again has another if the adapter gives it another time."""
    return "~" + hashlib.sha256("\0".join(map(str, facts)).encode()).hexdigest()[:24]


def _read_quote(event: object) -> Quoted | None:
    text = _text(event, "reply_to_text")
    return Quoted(text, getattr(event, "reply_to_is_own_message", False) is True) if text else None


def _time(value: Any, now: float) -> float:
    try:
        seconds = float(value.timestamp() if isinstance(value, datetime) else value)
    except (TypeError, ValueError, OverflowError, OSError):
        return now
    return seconds if math.isfinite(seconds) else now


def _media(event: object) -> tuple[list[str], list[Attachment]]:
    """Addresses, which the model may read itself, and files."""
    types, kind = list(_read_list(event, "media_types")), getattr(event, "message_type", None)
    usual = _KINDS.get(as_text(getattr(kind, "value", kind)), "document")
    links: list[str] = []
    files: list[Attachment] = []
    for number, place in enumerate(_read_list(event, "media_urls")):
        path = unquote(urlsplit(place).path) if place.startswith("file://") else place
        if "://" in path:
            links.append(path)
        elif path:
            told = types[number] if number < len(types) and "/" in types[number] else ""
            mime = told or mime_of(path)
            files.append(Attachment(_kind(mime, usual), path, PurePath(path).name, mime))
    return links, files


def _read_list(event: object, name: str) -> Iterator[str]:
    values: Any = getattr(event, name, None)
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        yield from (as_text(value) for value in cast("Sequence[object]", values))


def _kind(mime: str, usual: AttachmentKind) -> AttachmentKind:
    family = mime.partition("/")[0]
    is_usual = not family or (family == "audio" and usual == "voice")
    return usual if is_usual else _KINDS.get(family, "document")
