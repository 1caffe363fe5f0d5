"""The rules for sessions that every store follows: titles, finding by name, what entries change in a session's row, and
the text for lists and search."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, count

import msgspec

from talaria.core.entries import Entry, MessageAdded, TurnEnded, TurnStarted
from talaria.core.errors import BadInput, TitleTaken, UnknownSession
from talaria.core.ids import SessionId, TurnId
from talaria.core.messages import NO_USAGE, Usage, User
from talaria.store.base import BrokenRuleError, Session

PREVIEW_CHARS = 80
SNIPPET_CHARS = 160

_SCRIPTS_WITHOUT_SPACES = "([\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f])"


def preview(entry: Entry) -> str:
    """The start of what a person wrote; empty for everything else."""
    match entry:
        case MessageAdded(User() as message) if message.author == "person":
            return " ".join(message.text.split())[:PREVIEW_CHARS]
        case _:
            return ""


def role(entry: Entry) -> str:
    return str(entry.message.__struct_config__.tag) if isinstance(entry, MessageAdded) else ""


def text(entry: Entry) -> str:
    return entry.message.text if isinstance(entry, MessageAdded) else ""


def separate_words(words: str) -> str:
    """Scripts without spaces between words are indexed character by character, and found as phrases."""
    return words if words.isascii() else re.sub(_SCRIPTS_WITHOUT_SPACES, r" \1 ", words)


def search_words(query: str) -> list[str]:
    """The words that a person looks for; nothing they type is search syntax."""
    return query.replace('"', " ").replace("\0", " ").split()


def snippet(whole: str, query: str) -> str:
    """The surroundings of the query's first word."""
    flat = " ".join(whole.split())
    words = search_words(query)
    at = flat.lower().find(words[0].lower()) if words else -1
    start = max(0, at - SNIPPET_CHARS // 3)
    piece = flat[start : start + SNIPPET_CHARS]
    return f"{'…' if start else ''}{piece}{'…' if start + SNIPPET_CHARS < len(flat) else ''}"


FindByTitle = Callable[[str], SessionId | None]
"""Which session has this title."""


def unknown_session(session: SessionId) -> UnknownSession:
    return UnknownSession(f"There is no session {session}.")


def pick_session(name: str, fitting: Sequence[Session]) -> Session:
    """The session that a name means among those that fit it; a full id or title wins."""
    match fitting:
        case [session, *others] if not others or name in (session.id, session.title):
            return session
        case []:
            raise UnknownSession(f"There is no session called {name!r}; `talaria sessions list` shows them.")
        case _:
            raise UnknownSession(f"{name!r} matches more than one session; give more of its id.")


def check_title(title: str | None, holder: FindByTitle, but: SessionId | None = None) -> None:
    if title is None:
        return
    if not title.strip():
        raise BadInput("A title needs at least one visible character.")
    taken_by = holder(title)
    if taken_by not in (None, but):
        raise TitleTaken(title, taken_by)


def free_title(wanted: str | None, holder: FindByTitle) -> str | None:
    """`wanted`, with a number after it if another session has that title; None if it is blank."""
    if wanted is None or not wanted.strip():
        return None
    numbered = (f"{wanted} ({number})" for number in count(2))
    return next(title for title in chain([wanted], numbered) if holder(title) is None)


def check_at_rest(session: Session) -> None:
    """Raises `BrokenRuleError`."""
    if session.open_turn is not None:
        raise BrokenRuleError(f"turn {session.open_turn} has not ended")


class SessionHead(msgspec.Struct):
    """What a session's row says about its journal."""

    open_turn: TurnId | None
    preview: str
    messages: int = 0
    """The number of new messages."""
    usage: Usage = NO_USAGE
    """The usage of turns that have ended."""

    def add(self, entry: Entry) -> None:
        """Raises `BrokenRuleError`."""
        match entry:
            case TurnStarted(turn):
                if self.open_turn is not None:
                    raise BrokenRuleError(f"turn {self.open_turn} has not ended")
                self.open_turn = turn
            case TurnEnded(turn):
                if self.open_turn != turn:
                    raise BrokenRuleError(f"turn {turn} is not the open one")
                self.open_turn = None
                self.usage += entry.usage
            case MessageAdded():
                self.messages += 1
                self.preview = self.preview or preview(entry)
            case _:
                pass


def read_head(entries: Iterable[Entry]) -> SessionHead:
    """Of a whole journal."""
    head = SessionHead(None, "")
    for entry in entries:
        head.add(entry)
    return head


def local_day(at: float) -> str:
    """In local time, e.g. `2026-01-31`."""
    return time.strftime("%Y-%m-%d", time.localtime(at))
