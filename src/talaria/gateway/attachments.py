"""What came with messages: fetched when they are answered, shown to the model where it can see it, else named.

The agent works where they are kept and may put links there: each is loaded elsewhere, and no link is followed.

Files on their way out. The agent works where they are and may put a link in their place at any moment: a file is
found once, and what is sent is a copy of it that was made without following any link.
"""

import errno
import logging
import mimetypes
import re
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from talaria.core import pictures
from talaria.core.aio import in_thread
from talaria.core.messages import Context, Text, User, UserPart
from talaria.core.pictures import UnsupportedImage, prepare_image
from talaria.core.trees import Root
from talaria.gateway.envelope import Mail, Received
from talaria.gateway.gateway_state import PlatformLinks
from talaria.platforms.base import PICTURES, Attachment, File, Outbound, PlatformFailure, Rejected
from talaria.tools import file_content
from talaria.tools.protected import Protected

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
async def copy_file(message: Outbound, max_bytes: int, content: str = "") -> AsyncGenerator[Outbound]:
    """The message with a copy of its file, if it has one, and with what kind of file that is. Raises `Rejected`.

    With `content` it is a file that holds just this, in UTF-8.
    """
    if (file := message.file) is None:
        yield message
        return
    with TemporaryDirectory(prefix="talaria-") as folder:
        try:
            sent = await in_thread(
                lambda: _write(file, folder, max_bytes, content) if content else _copy(file, folder, max_bytes)
            )
        except OSError as fault:
            raise Rejected(f"{file.name} cannot be sent: {fault.strerror}.") from fault
        yield msgspec.structs.replace(message, file=sent)


def _copy(file: File, folder: str, max_bytes: int) -> File:
    left, head = max_bytes, b""
    with (
        file_content.open_file(file.path) as source,
        Root.open(folder) as root,
        root.create(file.path.name, 0o600) as target,
    ):
        while piece := source.read(_CHUNK_BYTES):
            head = head or piece
            left -= len(piece)
            if left < 0:
                raise Rejected(f"{file.path.name} cannot be sent: it is larger than {max_bytes:,} bytes.")
            target.write(piece)
    mime = file.mime or media_type(file.name, head)
    return File(Path(folder) / file.path.name, file.name, mime, pictures.pixels(head))


def _write(file: File, folder: str, max_bytes: int, content: str) -> File:
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


MAX_BYTES = 20 * 2**20
MAX_FILES = 10
FOLDER = "attachments"
MAX_QUOTED_CHARS = 1000
MAX_FORWARDED_CHARS = 20_000
"""Of what is passed on to be read, more than of what only reminds."""

log = logging.getLogger(__name__)

_UNSAFE = re.compile(r"[^\w.-]+")


class Attachments:
    def __init__(self, links: PlatformLinks) -> None:
        self._links = links

    async def message(self, mail: Sequence[Mail], workplace: Callable[[], Awaitable[Path]]) -> User:
        """What was said together, as one message for the model."""
        said = [one.received for one in mail]
        has_files = any(one.arrival.attachments for one in said)
        folder = await workplace() if has_files else Path()
        parts: list[UserPart] = []
        room = MAX_FILES
        for one in said:
            parts += _quotation(one)
            for number, attachment in enumerate(one.arrival.attachments[:room]):
                parts += await self._part(attachment, one, folder, _file_name(attachment, one, number))
            left_out = len(one.arrival.attachments) - room
            if left_out > 0:
                parts.append(Context(f"[{left_out} more attached files were left out: at most {MAX_FILES} are taken.]"))
            room = max(0, room - len(one.arrival.attachments))
        text = "\n".join(one.text for one in mail if one.text)
        return User((*parts, Text(_with_name(said[0], text))))

    async def _part(self, attachment: Attachment, received: Received, workplace: Path, name: str) -> Sequence[UserPart]:
        what = " ".join(f"{attachment.kind} {attachment.name}".split())
        if (attachment.size_bytes or 0) > MAX_BYTES:
            return (Context(f"[Attached {what} is larger than {MAX_BYTES >> 20} MB and was not fetched.]"),)
        try:
            content = await self._fetch(attachment, received)
            target = await in_thread(lambda: _keep(workplace, name, content))
        except (PlatformFailure, OSError) as fault:
            log.warning("attachment of %s not fetched: %s", received.key, type(fault).__name__)
            return (Context(f"[Attached {what} could not be fetched: {fault}]"),)
        return await in_thread(lambda: _describe(attachment, target, content))

    async def _fetch(self, attachment: Attachment, received: Received) -> bytes:
        platform = await self._links.wait(received.arrival.where.platform)
        with TemporaryDirectory(prefix="talaria-") as folder:
            file = Path(folder) / "file"
            await platform.fetch(attachment, file, MAX_BYTES)
            return await in_thread(lambda: _load(folder))


def _load(folder: str) -> bytes:
    with Root.open(folder) as root:
        return root.read("file", MAX_BYTES)


def _keep(workplace: Path, name: str, content: bytes) -> Path:
    """Where it is now. The folder may be a link by now, to anywhere: then nothing is kept."""
    with Root.open(workplace) as root, root.make_folder(FOLDER) as folder:
        folder.replace(name, content, mode=0o600)
        return Path(root.path) / FOLDER / name


def _file_name(attachment: Attachment, received: Received, number: int) -> str:
    """No two are called the same, and no disk finds it too long."""
    id, name = (_UNSAFE.sub("_", text) for text in (received.arrival.message_id, attachment.name or attachment.kind))
    which = f"{number + 1}-" if number else ""
    return f"{id.lstrip('.')[:56]}-{which}{name[-48:]}"


def _describe(attachment: Attachment, file: Path, content: bytes) -> Sequence[UserPart]:
    named = Context(f"[Attached {attachment.kind}: {file} ({len(content):,} bytes{_mime(attachment)})]")
    if attachment.kind != "image":
        return (named,)
    try:
        image, _ = prepare_image(content)
    except UnsupportedImage:
        return (named,)
    return (named, image)


def _mime(attachment: Attachment) -> str:
    return f", {attachment.mime}" if attachment.mime else ""


def _quotation(received: Received) -> Sequence[UserPart]:
    """What the message brings along, by whoever wrote that: no line of it passes for the person's own."""
    arrival = received.arrival
    parts: list[UserPart] = []
    if (quoted := arrival.reply_to) is not None and quoted.text:
        whose = "your message" if quoted.is_ours else f"the message of {_label(quoted.author)}" if quoted.author else ""
        parts.append(Context(f"[In reply to {whose or 'a message'}: {_quote(quoted.text, MAX_QUOTED_CHARS)}]"))
    if (passed_on := arrival.forwarded) is not None:
        whose = " from you" if passed_on.is_ours else f" from {_label(passed_on.author)}" if passed_on.author else ""
        text = _quote(passed_on.text, MAX_FORWARDED_CHARS)
        parts.append(Context(f"[Forwarded{whose}: {text}]" if text else f"[Forwarded{whose}.]"))
    return parts


def _quote(text: str, limit: int) -> str:
    cut = text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit} more characters)"
    return cut.replace("\n", "\n> ")


def _label(name: str) -> str:
    return " ".join(name.split())[:40].replace("]", ")")


def _with_name(received: Received, text: str) -> str:
    """In a group the model must know who speaks."""
    if received.arrival.kind == "dm":
        return text
    name = _label(received.principal.name) or received.principal.user
    return f"[{name}] {text}"
