"""What must not be forgotten about rooms: who invited us, which are for two, what was told there. One small file."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from talaria.files import read_bytes, replace_file
from talaria.waiting import in_thread

MAX_INVITATIONS = 200
"""Anybody can invite; the oldest are forgotten."""
_MAX_BYTES = 8 << 20


class Invitation(msgspec.Struct, frozen=True):
    sender: str
    is_direct: bool = False


class _Content(msgspec.Struct):
    invitations: dict[str, Invitation] = {}
    directs: dict[str, str] = {}
    """Rooms that somebody opened to speak with us alone, and who."""
    told: dict[str, str] = {}
    """What was told in a room about its encryption, last."""


class RoomMemory:
    def __init__(self, home: Path) -> None:
        self._file = home / "rooms.json"
        self._content = _Content()
        self._is_changed = False

    async def load(self) -> None:
        self._content = await in_thread(self._read)

    async def save(self) -> None:
        """Raises `OSError`."""
        if self._is_changed:
            content = msgspec.json.encode(self._content)
            await in_thread(lambda: replace_file(self._file, content, mode=0o600))
            self._is_changed = False

    @property
    def invitations(self) -> Mapping[str, Invitation]:
        return dict(self._content.invitations)

    def invited(self, room: str, invitation: Invitation) -> None:
        kept = self._content.invitations
        kept.pop(room, None)
        kept[room] = invitation
        for oldest in list(kept)[:-MAX_INVITATIONS]:
            del kept[oldest]
        self._is_changed = True

    def settled(self, room: str) -> None:
        """The invitation is followed, or is none any more."""
        if self._content.invitations.pop(room, None) is not None:
            self._is_changed = True

    def direct_person(self, room: str) -> str:
        """Who opened it to speak with us alone; empty: nobody did."""
        return self._content.directs.get(room, "")

    def direct(self, room: str, person: str) -> None:
        """Whoever was first stays: what was said there before is theirs."""
        if room not in self._content.directs:
            self._content.directs[room] = person
            self._is_changed = True

    def told(self, room: str) -> str:
        return self._content.told.get(room, "")

    def tell(self, room: str, what: str) -> None:
        if self.told(room) != what:
            self._content.told[room] = what
            self._is_changed = True

    def _read(self) -> _Content:
        try:
            return msgspec.json.decode(read_bytes(self._file, _MAX_BYTES), type=_Content)
        except (OSError, msgspec.MsgspecError):
            return _Content()
