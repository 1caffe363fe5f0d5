"""The content of messages that programs send: text, and files as data URLs. A file is on the disk before its
message."""

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from talaria.api.api_errors import ApiError, wrong_field
from talaria.core.aio import in_thread
from talaria.core.fs import replace_file
from talaria.platforms.base import Attachment, Rejected, attachment_kind

MAX_FILES = 10
MAX_FILE_BYTES = 20 << 20
MAX_FILES_BYTES = 20 << 20
_DATA_URL = re.compile(r"data:(?P<mime>[\w.+-]+/[\w.+-]+)?(?:;[\w-]+=[^;,]*)*;base64,", re.ASCII)
_REF = re.compile(r"[0-9a-f]{64}")
_TEXT_TYPES = ("text", "input_text", "output_text", "refusal")


class ImageUrl(msgspec.Struct, frozen=True):
    url: str


class SentFile(msgspec.Struct, frozen=True):
    file_data: str | None = None
    filename: str | None = None
    file_id: str | None = None


class SentAudio(msgspec.Struct, frozen=True):
    data: str
    format: str = "wav"


class ContentPart(msgspec.Struct, frozen=True):
    """Of `/v1/chat/completions` or `/v1/responses`."""

    type: str
    text: str | None = None
    image_url: ImageUrl | str | None = None
    file: SentFile | None = None
    input_audio: SentAudio | None = None
    file_data: str | None = None
    filename: str | None = None
    refusal: str | None = None


class SentContent(msgspec.Struct, frozen=True):
    text: str
    attachments: tuple[Attachment, ...] = ()


class Uploads:
    """Files that came with requests, by their digest, until they are too old to be waited for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, content: bytes) -> str:
        """How to find it again. Blocks until it is on the disk."""
        ref = hashlib.sha256(content).hexdigest()
        file = self._folder / ref
        if file.exists():
            os.utime(file)
        else:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(file, content, mode=0o600)
        return ref

    def read(self, ref: str, most_bytes: int) -> bytes:
        """Blocks. Raises `Rejected`."""
        file = self._folder / ref
        try:
            if not _REF.fullmatch(ref) or file.stat().st_size > most_bytes:
                raise Rejected("it is gone, or too large.")
            return file.read_bytes()
        except OSError as fault:
            raise Rejected(f"it is gone: {fault.strerror}.") from fault

    def prune(self, before: float) -> None:
        """Blocks."""
        if not self._folder.is_dir():
            return
        for file in self._folder.iterdir():
            if file.stat().st_mtime < before:
                file.unlink(missing_ok=True)


def read_text(content: str | Sequence[ContentPart] | None) -> str:
    """Without the files: they came with an earlier request."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text or part.refusal or "" for part in content if part.type in _TEXT_TYPES)


async def read_content(content: str | Sequence[ContentPart] | None, place: str, uploads: Uploads | None) -> SentContent:
    """`place` names it in errors. Without `uploads`, only text is taken. Raises `ApiError`."""
    if content is None or isinstance(content, str):
        return SentContent(content or "")
    texts: list[str] = []
    files: list[Attachment] = []
    size = 0
    for number, part in enumerate(content):
        where = f"{place}[{number}]"
        if part.type in _TEXT_TYPES:
            texts.append(part.text or part.refusal or "")
            continue
        name, url = _find_file(part, where)
        if uploads is None:
            raise wrong_field("Files cannot be sent here.", where)
        mime, decoded = await in_thread(lambda url=url, where=where: _decode(url, where))
        size += len(decoded)
        if size > MAX_FILES_BYTES or len(files) >= MAX_FILES:
            sentence = f"At most {MAX_FILES} files, of {MAX_FILES_BYTES >> 20} MB together, can be sent."
            raise ApiError(413, sentence, "files_too_large", param=where)
        ref = await in_thread(lambda content=decoded: uploads.keep(content))
        files.append(Attachment(attachment_kind(mime), ref, name, mime, len(decoded)))
    return SentContent("\n".join(texts), tuple(files))


def _find_file(part: ContentPart, where: str) -> tuple[str, str]:
    """Its name, and its content as a data URL."""
    match part:
        case ContentPart(type="image_url" | "input_image", image_url=ImageUrl(url) | str(url)):
            return "", url
        case ContentPart(type="file", file=SentFile(str(data), name)):
            return name or "", data
        case ContentPart(type="input_file", file_data=str(data), filename=name):
            return name or "", data
        case ContentPart(type="input_audio", input_audio=SentAudio(data, format)):
            return f"audio.{format}", f"data:audio/{format};base64,{data}"
        case ContentPart(type="image_url" | "input_image" | "file" | "input_file" | "input_audio"):
            raise wrong_field(
                "Send the file itself, as a data URL with base64; ids of files are not known here.", where
            )
        case _:
            raise wrong_field(f"Parts of the type {part.type[:50]!r} are not understood.", f"{where}.type")


def _decode(url: str, where: str) -> tuple[str, bytes]:
    head = _DATA_URL.match(url)
    if head is None:
        raise wrong_field("Send files as data URLs with base64: nothing is fetched from other addresses.", where)
    try:
        content = base64.b64decode(url[head.end() :], validate=True)
    except (binascii.Error, ValueError) as fault:
        raise wrong_field(f"The file is not valid base64: {fault}.", where) from fault
    if len(content) > MAX_FILE_BYTES:
        raise ApiError(413, f"A file may have at most {MAX_FILE_BYTES >> 20} MB.", "files_too_large", param=where)
    return head["mime"] or "application/octet-stream", content
