"""How a turn's end reads in a chat: the answer in parts, what went wrong in one sentence, or nothing at all. Pure."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from talaria.gateway.envelope import Parcel, written
from talaria.model.clock import Clock
from talaria.platforms.base import Address, Capabilities
from talaria.platforms.splitting import split
from talaria.runtime.letter import Ending
from talaria.store.mail import Outgoing

SILENCE = frozenset({"[SILENT]", "NO_REPLY", "HEARTBEAT_OK"})
"""An answer of just that is kept, and not sent."""
LIVES_S = 24 * 3600.0
"""How long a reply may be under way."""
MARK_CHARS = 100
"""Kept free in each message, for the words that it may be a double."""

_FILE = re.compile(r"^\s*MEDIA:\s*(?P<path>/\S.*?)\s*$", re.MULTILINE)


def may_be_silent(text: str) -> bool:
    """As far as it goes it could become one of the words that are not sent."""
    start = text.strip()
    return any(word.startswith(start) for word in SILENCE)


def words(ending: Ending) -> str:
    """What the person reads in the end; empty: nothing."""
    text = ending.text.strip()
    if ending.outcome == "completed":
        return "" if text in SILENCE else text or "(The model ended without a word.)"
    said = f"{text}\n\n" if text and text not in SILENCE else ""
    if ending.outcome == "interrupted":
        return f"{said}(Stopped.)"
    return f"{said}⚠ {ending.error or 'This did not work.'}"


class Replies(msgspec.Struct, frozen=True):
    """For one chat: makes rows of what is said there."""

    where: Address
    capabilities: Capabilities
    clock: Clock
    reply_to: str = ""
    shared: Callable[[Path], Path | None] = lambda _: None
    """Where a file is that the model names; None: it may not be sent."""

    def of_turn(self, ending: Ending) -> Sequence[Outgoing]:
        text = words(ending)
        files = self._files(text) if ending.outcome == "completed" else ()
        if files:
            text = _FILE.sub("", text).strip()
        return (*self.parts(ending.turn, text), *self._sent_files(ending.turn, files))

    def parts(self, key: str, text: str) -> Sequence[Outgoing]:
        """`KEY:0` is there in any case: without text it takes back what was shown while the answer was written."""
        limit = self.capabilities.max_chars - MARK_CHARS
        pieces = split(text, limit, self.capabilities.length) if text else ("",)
        return [
            self.row(f"{key}:{number}", Parcel(piece, self.reply_to if number == 0 else ""))
            for number, piece in enumerate(pieces)
        ]

    def row(self, key: str, parcel: Parcel, lives_s: float = LIVES_S) -> Outgoing:
        return Outgoing(str(self.where), written(parcel), key, self.clock.now() + lives_s)

    def _files(self, text: str) -> Sequence[Path]:
        named = [Path(found["path"].strip("`\"'")) for found in _FILE.finditer(text)]
        return [found for path in named if (found := self.shared(path)) is not None]

    def _sent_files(self, key: str, files: Sequence[Path]) -> Sequence[Outgoing]:
        return [
            self.row(f"{key}:file:{number}", Parcel(file=str(path), file_name=path.name))
            for number, path in enumerate(files)
        ]
