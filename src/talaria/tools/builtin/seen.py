"""What the model knows of files: how each was when it last read or wrote it, per session."""

import threading
from collections import OrderedDict
from hashlib import sha256
from pathlib import Path

import msgspec

from talaria.core.ids import SessionId
from talaria.tools.places import FileContent, Stamp

MAX_SESSIONS = 64
MAX_FILES = 512


class Sight(msgspec.Struct, frozen=True):
    stamp: Stamp
    sha256: str

    def is_of(self, found: FileContent) -> bool:
        """Whether the file still holds the same. Only of one too large to compare, stamps must do."""
        if found.is_whole:
            return sha256(found.content).hexdigest() == self.sha256
        return found.stamp == self.stamp


class ReadFiles:
    """Bounded: who is forgotten must read again. Used from several threads."""

    def __init__(self, max_sessions: int = MAX_SESSIONS, max_files: int = MAX_FILES) -> None:
        self._max_sessions = max_sessions
        self._max_files = max_files
        self._lock = threading.Lock()
        self._sessions: OrderedDict[SessionId, OrderedDict[Path, Sight]] = OrderedDict()

    def note(self, session: SessionId, path: Path, sight: Sight) -> None:
        with self._lock:
            files = self._sessions.setdefault(session, OrderedDict())
            self._sessions.move_to_end(session)
            files[path] = sight
            files.move_to_end(path)
            while len(files) > self._max_files:
                files.popitem(last=False)
            while len(self._sessions) > self._max_sessions:
                self._sessions.popitem(last=False)

    def find(self, session: SessionId, path: Path) -> Sight | None:
        with self._lock:
            files = self._sessions.get(session)
            return None if files is None else files.get(path)
