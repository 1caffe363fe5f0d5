"""What a session's journal amounts to: the messages the model reads and the state of the open turn, if one is."""

from collections.abc import Iterable

from talaria.context.thrashing import Compactions
from talaria.model.compaction import Compacted, expanded
from talaria.model.entries import (
    Entry,
    MessageAdded,
    Noted,
    Recorded,
    RouteChanged,
    TurnEnded,
    TurnOutcome,
    TurnStarted,
)
from talaria.model.ids import TurnId
from talaria.model.messages import Assistant, Message
from talaria.model.usage import NO_USAGE
from talaria.providers.history import History


class View:
    """Grows entry by entry, from the disk at first and then with each record."""

    def __init__(self, entries: Iterable[Recorded] = ()) -> None:
        self.history = History()
        self.last_seq = 0
        self.last_at = 0.0
        self.open_turn: TurnId | None = None
        self.last_outcome: TurnOutcome | None = None
        """How the last ended turn ended."""
        self.rounds = 0
        """Answers with calls in the open turn."""
        self.usage = NO_USAGE
        """Of all answers in the open turn."""
        self.compactions = Compactions()
        self.extend(entries)

    def extend(self, entries: Iterable[Recorded]) -> None:
        for recorded in entries:
            self.add(recorded.entry, recorded.at)
            self.last_seq = recorded.seq

    def add(self, entry: Entry, at: float) -> None:
        self.last_seq += 1
        self.last_at = at
        match entry:
            case MessageAdded(message):
                self.history.append(message)
                self._note(message)
            case TurnStarted(turn):
                self.open_turn = turn
                self.rounds = 0
                self.usage = NO_USAGE
            case TurnEnded():
                self.open_turn = None
                self.last_outcome = entry.outcome
            case Compacted():
                self._compact(entry, at)
            case Noted() | RouteChanged():
                pass

    def _compact(self, entry: Compacted, at: float) -> None:
        self.history.rebuild(expanded(list(self.history), entry))
        self.compactions.add(entry, at)

    def _note(self, message: Message) -> None:
        if isinstance(message, Assistant):
            self.rounds += bool(message.calls)
            self.usage += message.usage or NO_USAGE
            self.compactions.read(message.usage or NO_USAGE)
