"""What a session's journal amounts to: the messages that the model reads, and the state of the open turn, if any."""

from collections.abc import Iterable, Sequence

from talaria.context.base import CompactionHistory
from talaria.core.entries import (
    Compacted,
    Effort,
    EffortChanged,
    Entry,
    MessageAdded,
    Noted,
    Recorded,
    RouteChanged,
    TurnEnded,
    TurnOutcome,
    TurnStarted,
    Undone,
    apply_compaction,
)
from talaria.core.ids import SessionId, TurnId
from talaria.core.messages import NO_USAGE, Assistant, Context, Message, ToolResult, User
from talaria.providers.message_history import History
from talaria.store.base import Journal


class Transcript:
    """Grows entry by entry, first from the disk and then with each record. After an undo it is read anew."""

    def __init__(self, entries: Sequence[Recorded] = ()) -> None:
        self.history = History()
        self.last_seq = 0
        self.last_at = 0.0
        self.open_turn: TurnId | None = None
        self.last_turn: TurnId | None = None
        """The last turn that was not undone."""
        self.last_outcome: TurnOutcome | None = None
        """How the last ended turn ended."""
        self.rounds = 0
        """Answers with calls in the open turn."""
        self.usage = NO_USAGE
        """By all answers in the open turn."""
        self.effort: Effort | None = None
        """In this conversation; None: as the settings say."""
        self.has_private_data = False
        """Something outside the project was read. A summary may repeat it: this holds until the conversation ends."""
        self.named: tuple[str, ...] = ()
        """Files and folders outside the project that the person named."""
        self.compactions = CompactionHistory()
        self._overhead = 0
        """Tokens of what is sent besides the messages, as of the last compaction."""
        self.extend(without_undone(entries))
        self.last_seq = entries[-1].seq if entries else 0

    def extend(self, entries: Iterable[Recorded]) -> None:
        for recorded in entries:
            self.add(recorded.entry, recorded.at)
            self.last_seq = recorded.seq

    def add(self, entry: Entry, at: float) -> None:
        self.last_seq += 1
        self.last_at = at
        match entry:
            case MessageAdded(message):
                self._note(message)
                self.history.append(message)
            case TurnStarted(turn):
                self.open_turn = self.last_turn = turn
                self.rounds = 0
                self.usage = NO_USAGE
            case TurnEnded():
                self.open_turn = None
                self.last_outcome = entry.outcome
            case Compacted():
                self._overhead = max(0, entry.tokens - self.history.tokens(0))
                self.history.rebuild(apply_compaction(list(self.history), entry))
                self.compactions.add(entry, at)
            case EffortChanged(effort):
                self.effort = effort
            case Noted() | RouteChanged() | Undone():
                pass

    def _note(self, message: Message) -> None:
        match message:
            case Assistant():
                self.rounds += bool(message.calls)
                usage = message.usage or NO_USAGE
                self.usage += usage
                self.compactions.record_prompt(usage.prompt or self.history.tokens(0) + self._overhead)
            case ToolResult():
                self.has_private_data |= message.is_private
            case User():
                self.named += tuple(part.file for part in message.parts if isinstance(part, Context) and part.file)


MOST_RECALLED_ENTRIES = 400
"""Of a conversation that somebody returns to: some dozens of turns, or one with hundreds of calls."""


async def read_latest_turns(journal: Journal, session: SessionId) -> list[Recorded]:
    """The end of a journal, from the start of a turn if one starts there, without undone turns."""
    entries = await journal.latest(session, MOST_RECALLED_ENTRIES)
    starts = [place for place, one in enumerate(entries) if isinstance(one.entry, TurnStarted)]
    is_cut = bool(entries) and entries[0].seq > 1
    return without_undone(entries[starts[0] :] if is_cut and starts else entries)


def contains_undo(entries: Iterable[Recorded]) -> bool:
    return any(isinstance(recorded.entry, Undone) for recorded in entries)


def without_undone(entries: Iterable[Recorded]) -> list[Recorded]:
    """Without undone turns. A setting that was chosen for the conversation during one stays chosen."""
    kept: list[Recorded] = []
    starts: dict[TurnId, int] = {}
    for recorded in entries:
        match recorded.entry:
            case TurnStarted(turn):
                starts[turn] = len(kept)
                kept.append(recorded)
            case Undone(turn) if turn in starts:
                start = starts.pop(turn)
                kept[start:] = [one for one in kept[start:] if isinstance(one.entry, EffortChanged)]
            case _:
                kept.append(recorded)
    return kept
