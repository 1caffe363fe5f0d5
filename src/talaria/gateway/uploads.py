"""Files on their way out. The agent works where they are and may put a link in their place at any moment: a file is
found once, and what is sent is a copy of it that was made without following any link."""

import errno
import mimetypes
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from talaria.core import pictures
from talaria.platforms.base import PICTURES, File, Outbound, Rejected
from talaria.tools import places
from talaria.tools.protected import Protected
from talaria.trees import Root
from talaria.waiting import in_thread

UNKNOWN = "application/octet-stream"
_CHUNK_BYTES = 1 << 20
_MORE_TYPES = {".flac": "audio/flac", ".m4a": "audio/mp4", ".mp3": "audio/mpeg", ".webm": "video/webm"}
"""Not every system knows them."""


class NotSendable(Exception):
    """`str()` of it says why, for people: "it is …"."""


class FileMissing(NotSendable):
    """There is no such file."""


def find_file(named: str, folder: Path, home: Path, max_bytes: int) -> Path:
    """The file that a path means in this folder, if it may be sent. Raises `NotSendable`."""
    if max_bytes <= 0:
        raise NotSendable("files cannot be sent here.")
    try:
        with Root.open(folder) as root:
            inside = Path(root.path)
            given = inside / Path(named).expanduser()
            around = next((base for base in (folder, inside) if given.is_relative_to(base)), None)
            if around is None:  # before anything else: whether it is there is not told either
                raise NotSendable("it is outside the folder of this conversation.")
            name = root.follow(str(given.relative_to(around)))
            real = inside / name
            if Protected(Path.home(), home.resolve()).is_secret(real):
                raise NotSendable("it is private.")
            info = root.info(name)
    except (OSError, ValueError, RuntimeError) as fault:  # not there, not a path, links that lead out or in circles
        if isinstance(fault, OSError) and fault.errno == errno.EXDEV:
            raise NotSendable("it is outside the folder of this conversation.") from None
        raise FileMissing("there is no such file.") from None
    if not stat.S_ISREG(info.st_mode):
        raise NotSendable("it is not a file.")
    if info.st_size > max_bytes:
        raise NotSendable(f"it is larger than {max_bytes >> 20} MB.")
    return real


@asynccontextmanager
async def copied(message: Outbound, max_bytes: int, content: str = "") -> AsyncGenerator[Outbound]:
    """The message with a copy of its file, if it has one, and with what kind of file that is. Raises `Rejected`.

    With `content` it is a file that holds just this, in UTF-8.
    """
    if (file := message.file) is None:
        yield message
        return
    with TemporaryDirectory(prefix="talaria-") as folder:
        try:
            sent = await in_thread(
                lambda: _made(file, folder, max_bytes, content) if content else _copied(file, folder, max_bytes)
            )
        except OSError as fault:
            raise Rejected(f"{file.name} cannot be sent: {fault.strerror}.") from fault
        yield msgspec.structs.replace(message, file=sent)


def _copied(file: File, folder: str, max_bytes: int) -> File:
    left, head = max_bytes, b""
    with places.opened(file.path) as source, Root.open(folder) as root, root.create(file.path.name, 0o600) as target:
        while piece := source.read(_CHUNK_BYTES):
            head = head or piece
            left -= len(piece)
            if left < 0:
                raise Rejected(f"{file.path.name} cannot be sent: it is larger than {max_bytes:,} bytes.")
            target.write(piece)
    mime = file.mime or media_type(file.name, head)
    return File(Path(folder) / file.path.name, file.name, mime, pictures.pixels(head))


def _made(file: File, folder: str, max_bytes: int, content: str) -> File:
    encoded = content.encode("utf-8", "replace")
    if len(encoded) > max_bytes:
        raise Rejected(f"{file.name} cannot be sent: it is larger than {max_bytes:,} bytes.")
    with Root.open(folder) as root, root.create(file.path.name, 0o600) as target:
        target.write(encoded)
    return File(Path(folder) / file.path.name, file.name, file.mime)


def media_type(name: str, head: bytes) -> str:
    """By the first bytes where they tell it, else by the name, which must not make a picture of what is not one."""
    if found := pictures.media_type(head):
        return found
    if head.startswith(b"OggS"):
        return "audio/ogg; codecs=opus" if b"OpusHead" in head[:512] else "audio/ogg"
    suffix = Path(name).suffix.lower()
    guessed = _MORE_TYPES.get(suffix) or mimetypes.guess_type(f"x{suffix}")[0] or UNKNOWN
    return UNKNOWN if guessed in PICTURES else guessed
