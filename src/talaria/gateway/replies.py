"""What goes out to a chat: how the end of a turn reads there, in parts, and the files that the answer names.

The agent works where those files are and may put a link in their place at any moment. So a file is found once, and what
is sent is a copy that was made without following any link.
"""

import errno
import io
import mimetypes
import re
import stat
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from talaria.core import pictures
from talaria.core.aio import in_thread
from talaria.core.clock import Clock
from talaria.core.trees import Root
from talaria.gateway.envelope import OutgoingBody, encode_body
from talaria.platforms.base import PICTURES, Address, Capabilities, File, Outbound, Rejected
from talaria.platforms.splitting import split
from talaria.runtime.session_config import TurnResult
from talaria.store.chat_ports import Outgoing
from talaria.tools import file_content
from talaria.tools.protected import Protected

SILENCE = frozenset({"[SILENT]", "NO_REPLY", "HEARTBEAT_OK"})
"""An answer that says only this is kept, but not sent."""
EXPIRES_AFTER_S = 24 * 3600.0
"""How long a reply may take to be delivered."""
MARK_CHARS = 100
"""Kept free in each message, for the note that it may be a duplicate."""

MEDIA = "MEDIA:"
"""A line that begins with this names a file to send."""
NAME_CHARS = 80
UNKNOWN_TYPE = "application/octet-stream"
_CHUNK_BYTES = 1 << 20
_MORE_TYPES = {".flac": "audio/flac", ".m4a": "audio/mp4", ".mp3": "audio/mpeg", ".webm": "video/webm"}
"""Not every system knows them."""

_MEDIA = re.compile(rf"\s*{MEDIA}\s*(?P<path>\S.*?)\s*")
_FENCE = re.compile(r"\s*(?P<marker>`{3,}|~{3,})(?P<rest>.*)")


def may_be_silent(text: str) -> bool:
    """The beginning of an answer may still become one that is not sent."""
    start = text.strip()
    return any(word.startswith(start) for word in SILENCE)


def final_text(ending: TurnResult) -> str:
    """What the person reads in the end; empty if nothing is sent."""
    text = ending.text.strip()
    if ending.outcome == "completed":
        return "" if text in SILENCE else text or "(The model gave no answer.)"
    said = f"{text}\n\n" if text and text not in SILENCE else ""
    if ending.outcome == "interrupted":
        return f"{said}({f'Stopped. {ending.error}'.rstrip()})"
    return f"{said}⚠ {ending.error or 'This failed.'}"


def find_named_files(text: str) -> Mapping[int, str]:
    """The path after each `MEDIA:`, by line number. In a code fence such a line is ordinary text."""
    found: dict[int, str] = {}
    fence = ""
    for number, line in enumerate(text.split("\n")):
        marker = _FENCE.fullmatch(line)
        if marker and not fence:
            fence = marker["marker"]
        elif marker and marker["marker"].startswith(fence) and not marker["rest"].strip():
            fence = ""
        elif not fence and (named := _MEDIA.fullmatch(line)) and (path := named["path"].strip("`\"'")):
            found[number] = path
    return found


def without_files(text: str) -> str:
    """An answer that is still being written, without the lines that name files, even where one has only begun."""
    lines, named = text.split("\n"), find_named_files(text)
    last = lines[-1].strip()
    if last and MEDIA.startswith(last):
        lines.pop()
    return "\n".join(line for number, line in enumerate(lines) if number not in named).strip()


class Replies(msgspec.Struct, frozen=True):
    """Makes the outbox rows of what is said in one chat."""

    where: Address
    capabilities: Capabilities
    clock: Clock
    reply_to: str = ""
    folder: Path | None = None
    """Where the conversation works: files that the model names are sent from there; None: no files are."""
    home: Path = Path()
    """Talaria's, whose files are private."""
    is_wanted: bool = True
    """False: nothing is sent there, because whoever wrote watches."""

    def of_turn(self, ending: TurnResult) -> Sequence[Outgoing]:
        """The answer without the lines that name files, and those files. A file that cannot be sent is reported where
        it was named."""
        text, files = final_text(ending), dict[Path, None]()
        if ending.outcome == "completed":
            named, kept = find_named_files(text), list[str]()
            for number, line in enumerate(text.split("\n")):
                if (path := named.get(number)) is None:
                    is_second_gap = not line and number - 1 in named and (not kept or not kept[-1])
                    kept += () if is_second_gap else (line,)
                    continue
                try:
                    files[find_file(path, self.folder, self.home, self.capabilities.max_upload_bytes)] = None
                except FileMissing as fault:
                    is_prose = not path.startswith(("/", "~")) and len(path.split()) > 1
                    kept.append(line if is_prose else describe_unsent_file(Path(path).name, str(fault)))
                except NotSendable as fault:
                    kept.append(describe_unsent_file(Path(path).name, str(fault)))
            left = "\n".join(kept).strip()
            text = "" if left in SILENCE else left
        rows = [
            self.row(
                f"{ending.turn}:file:{number}", OutgoingBody(file=str(path), file_name=path.name, is_promised=True)
            )
            for number, path in enumerate(files)
        ]
        return (*self.parts(ending.turn, text), *rows)

    def parts(self, key: str, text: str) -> Sequence[Outgoing]:
        """There is always a `KEY:0`: without text it takes back what was shown while the answer was written."""
        limit = self.capabilities.max_chars - MARK_CHARS
        pieces = split(text, limit, self.capabilities.length) if text else ("",)
        return [
            self.row(f"{key}:{number}", OutgoingBody(piece, self.reply_to if number == 0 else ""))
            for number, piece in enumerate(pieces)
        ]

    def row(self, key: str, body: OutgoingBody, lives_s: float = EXPIRES_AFTER_S) -> Outgoing:
        return Outgoing(str(self.where), encode_body(body), key, self.clock.now() + lives_s)


def describe_unsent_file(name: str, why: str) -> str:
    """What the person reads in place of a file."""
    shown = "".join(char if char.isprintable() else "_" for char in name)
    shown = shown if len(shown) <= NAME_CHARS else f"{shown[:NAME_CHARS]}…"
    return f"({shown or 'A file'} was not sent: {why})"


class NotSendable(Exception):
    """`str()` of it says why, for people: "it is …"."""


class FileMissing(NotSendable):
    """There is no such file."""


def find_file(named: str, folder: Path | None, home: Path, max_bytes: int) -> Path:
    """The file that a path means in this folder, if it may be sent. Raises `NotSendable`."""
    if folder is None or max_bytes <= 0:
        raise NotSendable("files cannot be sent here.")
    try:
        with Root.open(folder) as root:
            inside = Path(root.path)
            given = inside / Path(named).expanduser()
            around = next((base for base in (folder, inside) if given.is_relative_to(base)), None)
            if around is None:  # before anything else: not even whether the file exists is revealed
                raise NotSendable("it is outside the folder of this conversation.")
            name = root.follow(str(given.relative_to(around)))
            real = inside / name
            if Protected(Path.home(), home.resolve()).is_secret(real):
                raise NotSendable("it is private.")
            info = root.info(name)
    except (OSError, ValueError, RuntimeError) as fault:  # missing, not a path, or links that lead out or in circles
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
    """The message with a copy of its file, if it has one, and with the type of that file. Raises `Rejected`.

    With `content`, the file holds exactly this, in UTF-8.
    """
    if (file := message.file) is None:
        yield message
        return
    with TemporaryDirectory(prefix="talaria-") as folder:
        try:
            sent = await in_thread(lambda: _copy(file, folder, max_bytes, content))
        except OSError as fault:
            raise Rejected(f"{file.name} cannot be sent: {fault.strerror}.") from fault
        yield msgspec.structs.replace(message, file=sent)


def _copy(file: File, folder: str, max_bytes: int, content: str) -> File:
    left, head = max_bytes, b""
    with (
        io.BytesIO(content.encode("utf-8", "replace")) if content else file_content.open_file(file.path) as source,
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
    return File(Path(folder) / file.path.name, file.name, mime, None if content else pictures.pixels(head))


def media_type(name: str, head: bytes) -> str:
    """From the first bytes if they show it, else from the name, which cannot turn something else into a picture."""
    if found := pictures.media_type(head):
        return found
    if head.startswith(b"OggS"):
        return "audio/ogg; codecs=opus" if b"OpusHead" in head[:512] else "audio/ogg"
    suffix = Path(name).suffix.lower()
    guessed = _MORE_TYPES.get(suffix) or mimetypes.guess_type(f"x{suffix}")[0] or UNKNOWN_TYPE
    return UNKNOWN_TYPE if guessed in PICTURES else guessed
