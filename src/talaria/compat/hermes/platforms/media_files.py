"""Files that came with messages, kept where the adapter's event can name them until they are fetched."""

import mimetypes
import re
import uuid
from pathlib import Path

from talaria.compat.hermes.aliases.hermes_constants import get_hermes_dir
from talaria.core.clock import SystemClock
from talaria.core.errors import ToolFailed
from talaria.core.pictures import media_type
from talaria.net.fetch import Fetch
from talaria.net.web_settings import WebSettings

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
    return _kept(get_image_cache_dir(), f"image{ext}", data)


def cache_audio_from_bytes(data: bytes, ext: str = ".ogg") -> str:
    return _kept(get_audio_cache_dir(), f"audio{ext}", data)


def cache_video_from_bytes(data: bytes, ext: str = ".mp4") -> str:
    return _kept(get_video_cache_dir(), f"video{ext}", data)


def cache_document_from_bytes(data: bytes, filename: str = "") -> str:
    return _kept(get_document_cache_dir(), filename or "document", data)


async def cache_image_from_url(url: str, ext: str = ".jpg", retries: int = 2) -> str:  # noqa: ARG001
    """Raises `ValueError`; also for an address that is not public."""
    return cache_image_from_bytes(await _fetched(url), ext)


async def cache_audio_from_url(url: str, ext: str = ".ogg", retries: int = 2) -> str:  # noqa: ARG001
    return cache_audio_from_bytes(await _fetched(url), ext)


def mime_of(path: str) -> str:
    return mimetypes.guess_type(path)[0] or ""


async def _fetched(url: str) -> bytes:
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


def _kept(folder: Path, name: str, data: bytes) -> str:
    """Under the name that it had, as far as that can be one."""
    safe = re.sub(r"[^\w.()+ -]", "_", Path(name).name).strip(". ")[-80:] or "file"
    file = folder / f"{uuid.uuid4().hex[:12]}_{safe}"
    file.write_bytes(data)
    return str(file)
