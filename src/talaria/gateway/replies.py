"""How a turn's end reads in a chat: the answer in parts, what went wrong in one sentence, or nothing at all. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from talaria.core.clock import Clock
from talaria.gateway.attachments import FileMissing, NotSendable
from talaria.gateway.envelope import OutgoingBody, encode_body
from talaria.platforms.base import Address, Capabilities
from talaria.platforms.splitting import split
from talaria.runtime.session_config import TurnResult
from talaria.store.chat_ports import Outgoing

SILENCE = frozenset({"[SILENT]", "NO_REPLY", "HEARTBEAT_OK"})
"""An answer of just that is kept, and not sent."""
EXPIRES_AFTER_S = 24 * 3600.0
"""How long a reply may be under way."""
MARK_CHARS = 100
"""Kept free in each message, for the words that it may be a double."""

MEDIA = "MEDIA:"
"""A line that begins so names a file to send."""
NAME_CHARS = 80

_MEDIA = re.compile(rf"\s*{MEDIA}\s*(?P<path>\S.*?)\s*")
_FENCE = re.compile(r"\s*(?P<marker>`{3,}|~{3,})(?P<rest>.*)")


def may_be_silent(text: str) -> bool:
    """As far as it goes it could become one of the words that are not sent."""
    start = text.strip()
    return any(word.startswith(start) for word in SILENCE)


def final_text(ending: TurnResult) -> str:
    """What the person reads in the end; empty: nothing."""
    text = ending.text.strip()
    if ending.outcome == "completed":
        return "" if text in SILENCE else text or "(The model gave no answer.)"
    said = f"{text}\n\n" if text and text not in SILENCE else ""
    if ending.outcome == "interrupted":
        return f"{said}({f'Stopped. {ending.error}'.rstrip()})"
    return f"{said}⚠ {ending.error or 'This failed.'}"


def find_named_files(text: str) -> Mapping[int, str]:
    """The path after each `MEDIA:`, by the number of its line. In a code fence it is text like any other."""
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
    """An answer that is still being written, without the lines that name files, also if one has only begun."""
    lines, named = text.split("\n"), find_named_files(text)
    last = lines[-1].strip()
    if last and MEDIA.startswith(last):
        lines.pop()
    return "\n".join(line for number, line in enumerate(lines) if number not in named).strip()


def _no_file(_: str, __: int) -> Path:
    raise NotSendable("files cannot be sent here.")


class Replies(msgspec.Struct, frozen=True):
    """For one chat: makes rows of what is said there."""

    where: Address
    capabilities: Capabilities
    clock: Clock
    reply_to: str = ""
    find_file: Callable[[str, int], Path] = _no_file
    """Where a file is that the model names, if it has at most so many bytes. Raises `NotSendable`."""

    def of_turn(self, ending: TurnResult) -> Sequence[Outgoing]:
        text, files = final_text(ending), dict[Path, None]()
        if ending.outcome == "completed":
            text, files = self._take_files(text)
        rows = [
            self.row(
                f"{ending.turn}:file:{number}", OutgoingBody(file=str(path), file_name=path.name, is_promised=True)
            )
            for number, path in enumerate(files)
        ]
        return (*self.parts(ending.turn, text), *rows)

    def parts(self, key: str, text: str) -> Sequence[Outgoing]:
        """`KEY:0` is there in any case: without text it takes back what was shown while the answer was written."""
        limit = self.capabilities.max_chars - MARK_CHARS
        pieces = split(text, limit, self.capabilities.length) if text else ("",)
        return [
            self.row(f"{key}:{number}", OutgoingBody(piece, self.reply_to if number == 0 else ""))
            for number, piece in enumerate(pieces)
        ]

    def row(self, key: str, body: OutgoingBody, lives_s: float = EXPIRES_AFTER_S) -> Outgoing:
        return Outgoing(str(self.where), encode_body(body), key, self.clock.now() + lives_s)

    def _take_files(self, text: str) -> tuple[str, dict[Path, None]]:
        """The text without the files that it names, and those; what cannot be sent is said where it was named."""
        named, kept, files = find_named_files(text), list[str](), dict[Path, None]()
        for number, line in enumerate(text.split("\n")):
            if (path := named.get(number)) is None:
                is_second_gap = not line and number - 1 in named and (not kept or not kept[-1])
                kept += () if is_second_gap else (line,)
                continue
            try:
                files[self.find_file(path, self.capabilities.max_upload_bytes)] = None
            except FileMissing as fault:
                is_prose = not path.startswith(("/", "~")) and len(path.split()) > 1
                kept.append(line if is_prose else describe_unsent_file(Path(path).name, str(fault)))
            except NotSendable as fault:
                kept.append(describe_unsent_file(Path(path).name, str(fault)))
        left = "\n".join(kept).strip()
        return "" if left in SILENCE else left, files


def describe_unsent_file(name: str, why: str) -> str:
    """What the person reads in place of a file."""
    shown = "".join(char if char.isprintable() else "_" for char in name)
    shown = shown if len(shown) <= NAME_CHARS else f"{shown[:NAME_CHARS]}…"
    return f"({shown or 'A file'} was not sent: {why})"
