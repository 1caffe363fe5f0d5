"""Files on their way out. The agent works where they are and may put a link in their place at any moment: a file is
found once, and what is sent is a copy of it that was made without following any link."""

import mimetypes
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from talaria.model import pictures
from talaria.platforms.base import PICTURES, File, Outbound, Rejected
from talaria.tools import places
from talaria.tools.protected import Protected
from talaria.waiting import in_thread

UNKNOWN = "application/octet-stream"
_CHUNK_BYTES = 1 << 20
_MORE_TYPES = {".flac": "audio/flac", ".m4a": "audio/mp4", ".mp3": "audio/mpeg", ".webm": "video/webm"}
"""Not every system knows them."""


class NotSendable(Exception):
    """`str()` of it says why, for people: "it is …"."""


class Missing(NotSendable):
    """There is no such file."""


def find_file(named: str, folder: Path, home: Path, max_bytes: int) -> Path:
    """The file that a path means in this folder, if it may be sent. Raises `NotSendable`."""
    if max_bytes <= 0:
        raise NotSendable("files cannot be sent here.")
    try:
        inside = folder.resolve()
        real = (inside / Path(named).expanduser()).resolve()
        if not real.is_relative_to(inside):  # before anything else: whether it is there is not told either
            raise NotSendable("it is outside the folder of this conversation.")
        if Protected(Path.home(), home.resolve()).is_secret(real):
            raise NotSendable("it is private.")
        size = real.stat().st_size
    except (OSError, ValueError, RuntimeError):  # not there, not a path, a loop of links
        raise Missing("there is no such file.") from None
    if not real.is_file():
        raise NotSendable("it is not a file.")
    if size > max_bytes:
        raise NotSendable(f"it is larger than {max_bytes >> 20} MB.")
    return real


@asynccontextmanager
async def copied(message: Outbound, max_bytes: int) -> AsyncGenerator[Outbound]:
    """The message with a copy of its file, if it has one, and with what kind of file that is. Raises `Rejected`."""
    if (file := message.file) is None:
        yield message
        return
    with TemporaryDirectory(prefix="talaria-") as folder:
        copy = Path(folder) / file.path.name
        try:
            sent = await in_thread(lambda: _copied(file, copy, max_bytes))
        except OSError as fault:
            raise Rejected(f"{file.name} cannot be sent: {fault.strerror}.") from fault
        yield msgspec.structs.replace(message, file=sent)


def _copied(file: File, to: Path, max_bytes: int) -> File:
    left, head = max_bytes, b""
    with places.opened(file.path) as source, to.open("xb") as target:
        while piece := source.read(_CHUNK_BYTES):
            head = head or piece
            left -= len(piece)
            if left < 0:
                raise Rejected(f"{file.path.name} cannot be sent: it is larger than {max_bytes:,} bytes.")
            target.write(piece)
    return File(to, file.name, file.mime or media_type(file.name, head), pictures.pixels(head))


def media_type(name: str, head: bytes) -> str:
    """By the first bytes where they tell it, else by the name, which must not make a picture of what is not one."""
    if found := pictures.media_type(head):
        return found
    if head.startswith(b"OggS"):
        return "audio/ogg; codecs=opus" if b"OpusHead" in head[:512] else "audio/ogg"
    suffix = Path(name).suffix.lower()
    guessed = _MORE_TYPES.get(suffix) or mimetypes.guess_type(f"x{suffix}")[0] or UNKNOWN
    return UNKNOWN if guessed in PICTURES else guessed
