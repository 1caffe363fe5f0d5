"""Imports conversations from Hermes' state.db into our store: one at a time, so that memory use stays small.

The rows of a conversation become its journal, as a live session would have written it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from talaria.compat.hermes_home.exchanges import ImportedExchange, calls, exchanges
from talaria.compat.hermes_home.hermes_database import (
    HermesSession,
    MessageRow,
    StateFile,
    open_read_only,
    open_state,
)
from talaria.compat.hermes_home.report import Item, mark_failed
from talaria.core.aio import in_thread
from talaria.core.entries import (
    Entry,
    MessageAdded,
    Noted,
    Recorded,
    TurnEnded,
    TurnOrigin,
    TurnStarted,
    encode_compaction,
)
from talaria.core.errors import StoreDamaged, TalariaError
from talaria.core.ids import SessionId, TurnId
from talaria.core.messages import Message
from talaria.providers.base import Route
from talaria.providers.demo import ENDPOINT as ANY_ENDPOINT
from talaria.providers.message_history import size_tokens
from talaria.runtime import prompt
from talaria.runtime.session_config import SessionConfig
from talaria.store.base import NewSession, Sessions
from talaria.tools.registry import Toolbox

_UNIQUE_CHARS = 40
_UNIQUE_ID_CHARS = 12
"""Two equal rows that are longer than this, or have an id longer than this, are one row and its copy."""
_ORIGINS: dict[str, TurnOrigin] = {
    **dict.fromkeys(("cli", "tui", "acp"), "terminal"),
    **dict.fromkeys(("api_server", "tool", "subagent"), "library"),
    "cron": "schedule",
}


def make_journal(rows: Sequence[MessageRow], source: str) -> list[Recorded]:
    """Empty if nothing was said. The journal has what Hermes archived, too; the model reads what it read last. Pure."""
    is_shortened = any(not row.is_live for row in rows)
    whole = exchanges(_originals(rows) if is_shortened else rows)
    live = exchanges(row for row in rows if row.is_live) if is_shortened else whole
    whole = whole or live
    entries: list[tuple[float, Entry]] = []
    for exchange in whole:
        turn = TurnId(f"turn_hermes_{exchange.id}")
        began, ended = exchange.said[0][0], exchange.said[-1][0]
        entries.append((began, TurnStarted(turn, _ORIGINS.get(source, "platform"))))
        entries.extend((at, MessageAdded(message)) for at, message in exchange.said)
        entries.extend((ended, Noted(note)) for note in exchange.notes)
        entries.append((ended, TurnEnded(turn, "completed" if exchange.is_answered else "interrupted")))
    before, after = _messages(whole), _messages(live)
    if after and after != before:
        tokens = sum(map(size_tokens, before))
        known = {message: message for message in before}
        shared = [known.get(message, message) for message in after]  # the same objects need not be written again
        compacted = encode_compaction(before, shared, summary_by="model", tokens=tokens, threshold=tokens)
        entries.append((whole[-1].said[-1][0], compacted))
    return [Recorded(seq, at, entry) for seq, (at, entry) in enumerate(entries, 1)]


def _messages(imported: Iterable[ImportedExchange]) -> list[Message]:
    return [message for exchange in imported for _, message in exchange.said]


def _originals(rows: Iterable[MessageRow]) -> Iterator[MessageRow]:
    """Without the summaries, and without the copies that each compaction made of what it kept: the beginning before
    the summary, the end after it."""
    generations: list[list[MessageRow]] = [[]]  # a summary comes between two of them
    for row in rows:
        if row.is_summary:
            generations.append([])
        else:
            generations[-1].append(row)
    kept: list[MessageRow] = []
    for generation in generations[:-1]:
        kept.extend(generation[_overlap(kept, generation) :])
        kept = kept[: len(kept) - _overlap(kept, kept[: len(kept) // 2])]
    kept.extend(generations[-1][_overlap(kept, generations[-1]) :])
    seen: set[tuple[object, ...]] = set()
    for row in kept:
        # Short words are said again and again, and some models restart their numbers for calls in every answer.
        ids = [row.call_id, *(asked.id for asked in calls(row))]
        is_unique = len(row.content or "") > _UNIQUE_CHARS or any(len(id) > _UNIQUE_ID_CHARS for id in ids)
        key = _to_comparable(row) if is_unique else (*_to_comparable(row), row.at)
        if key not in seen:
            yield row
        seen.add(key)


def _overlap(before: Sequence[MessageRow], after: Sequence[MessageRow]) -> int:
    """How many rows at the end of `before` are repeated at the beginning of `after`."""
    first, second = [_to_comparable(row) for row in before], [_to_comparable(row) for row in after]
    return next((n for n in range(min(len(first), len(second)), 0, -1) if first[-n:] == second[:n]), 0)


def _to_comparable(row: MessageRow) -> tuple[object, ...]:
    return row.role, row.content, row.call_id, row.calls, row.tool


Fate = Literal["taken", "there", "empty", "helper", "damaged"]
Progress = Callable[[int, int], None]
"""How many are done, and out of how many."""


class Receiver(Protocol):
    """Where conversations go: into our store or, in a dry run, nowhere."""

    async def has(self, id: str) -> bool: ...
    async def take(self, row: HermesSession, entries: list[Recorded]) -> bool:
        """False: it is already there."""
        ...


class Tally:
    """What became of the conversations."""

    def __init__(self) -> None:
        self.fates: Counter[Fate] = Counter()
        self.messages = 0

    def items(self) -> Iterator[Item]:
        for fate, count in self.fates.items():
            name = f"{count:,} conversation{'' if count == 1 else 's'}"
            match fate:
                case "taken":
                    yield Item("conversations", f"{name} with {self.messages:,} messages", "taken")
                case "there":
                    yield Item("conversations", name, "there")
                case "empty":
                    yield Item("conversations", name, "left", "nothing was said")
                case "helper":
                    yield Item("conversations", name, "left", "runs of subagents and tools, not conversations of yours")
                case "damaged":
                    problem = StoreDamaged("state.db is damaged at these conversations")
                    yield mark_failed(Item("conversations", name, "left"), problem)


async def import_conversations(file: Path, receiver: Receiver, progress: Progress) -> list[Item]:
    """If the file cannot be read any further, that is the last item, after what was taken until then."""
    tally = Tally()
    try:
        with open_state(file) as state:
            total = await in_thread(lambda: state.count)
            rows = state.sessions()
            while (row := await in_thread(lambda: next(rows, None))) is not None:
                tally.fates[await _move_session(row, state, receiver, tally)] += 1
                progress(tally.fates.total(), total)
    except TalariaError as fault:
        return [*tally.items(), mark_failed(Item("conversations", file.name, "left"), fault)]
    return list(tally.items())


async def _move_session(row: HermesSession, state: StateFile, receiver: Receiver, tally: Tally) -> Fate:
    if row.is_helper:
        return "helper"
    if await receiver.has(row.id):
        return "there"
    try:
        entries = await in_thread(lambda: make_journal(state.messages(row), row.source))
    except StoreDamaged:
        return "damaged"
    if not entries or not row.id:
        return "empty"
    if not await receiver.take(row, entries):
        return "there"
    tally.messages += sum(isinstance(recorded.entry, MessageAdded) for recorded in entries)
    return "taken"


class StoreReceiver:
    """Gives each conversation what a new one would start with: a prompt for its folder, and the tools."""

    def __init__(self, sessions: Sessions, toolbox: Toolbox, home: Path) -> None:
        self._sessions = sessions
        self._tools = msgspec.json.encode(toolbox.specs).decode()
        self._home = home
        self._prompts: dict[Path, str] = {}

    async def has(self, id: str) -> bool:
        return await self._sessions.get(SessionId(id)) is not None

    async def take(self, row: HermesSession, entries: list[Recorded]) -> bool:
        session = await in_thread(lambda: self._make_session(row))
        return await self._sessions.adopt(session, row.at or entries[0].at, entries)

    def _make_session(self, row: HermesSession) -> NewSession:
        """A folder that no longer exists is replaced by the person's home: the tools need one."""
        folder = Path(row.cwd) if row.cwd and Path(row.cwd).is_dir() else Path.home()
        if folder not in self._prompts:
            self._prompts[folder] = prompt.build(SessionConfig(Route(ANY_ENDPOINT), folder, self._home))
        return NewSession(
            SessionId(row.id),
            source=row.source,
            model=f"{row.provider}:{row.model}" if row.provider and row.model else row.model,
            cwd=str(folder),
            system_prompt=self._prompts[folder],
            tools=self._tools,
            title=row.title,
            parent=SessionId(row.parent) if row.parent else None,
        )


class NoReceiver:
    """Knows what our database has, and takes nothing."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._known: frozenset[str] | None = None

    async def has(self, id: str) -> bool:
        if self._known is None:
            self._known = await in_thread(lambda: _read_session_ids(self._database))
        return id in self._known

    async def take(self, row: HermesSession, entries: list[Recorded]) -> bool:  # noqa: ARG002
        return True


def _read_session_ids(database: Path) -> frozenset[str]:
    if not database.exists():
        return frozenset()
    with open_read_only(database) as connection:
        return frozenset(str(row[0]) for row in connection.execute("SELECT id FROM sessions"))
