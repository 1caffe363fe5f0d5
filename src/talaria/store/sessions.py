"""What holds for a session wherever it is kept: its titles, the name that finds it, what entries make of its row."""

from collections.abc import Callable, Sequence
from itertools import chain, count

import msgspec

from talaria.core.entries import Entry, MessageAdded, TurnEnded, TurnStarted
from talaria.core.errors import BadInput, UnknownSession
from talaria.core.ids import SessionId, TurnId
from talaria.core.usage import NO_USAGE, Usage
from talaria.store.base import BrokenRuleError, Session
from talaria.store.excerpts import preview

Holder = Callable[[str], SessionId | None]
"""Which session has this title."""


def unknown(session: SessionId) -> UnknownSession:
    return UnknownSession(f"There is no session {session}.")


def found(name: str, fitting: Sequence[Session]) -> Session:
    """Of those that fit a name, the one it means; first the one with that id, then the one with that title."""
    match fitting:
        case [session, *others] if not others or name in (session.id, session.title):
            return session
        case []:
            raise UnknownSession(f"There is no session called {name!r}; `talaria sessions list` shows them.")
        case _:
            raise UnknownSession(f"{name!r} fits more than one session; give more of its id.")


def check_title(title: str | None, holder: Holder, but: SessionId | None = None) -> None:
    if title is None:
        return
    if not title.strip():
        raise BadInput("A title needs at least one letter.")
    taken_by = holder(title)
    if taken_by not in (None, but):
        raise BadInput(f"The title {title!r} is taken by session {taken_by}; choose another.")


def free_title(wanted: str | None, holder: Holder) -> str | None:
    """`wanted`, with a number behind it if another session is called so; None if it says nothing."""
    if wanted is None or not wanted.strip():
        return None
    numbered = (f"{wanted} ({number})" for number in count(2))
    return next(title for title in chain([wanted], numbered) if holder(title) is None)


def check_at_rest(session: Session) -> None:
    """Of one that is taken over from elsewhere."""
    if session.open_turn is not None:
        raise BrokenRuleError(f"turn {session.open_turn} has not ended")


class Head(msgspec.Struct):
    """What a session's row tells of its journal."""

    open_turn: TurnId | None
    preview: str
    messages: int = 0
    """New ones."""
    usage: Usage = NO_USAGE
    """Of turns that have ended now."""

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
