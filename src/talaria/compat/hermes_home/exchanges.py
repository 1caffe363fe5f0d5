"""Rows → exchanges: a person's message and all that was done for it, legal on every wire. Pure.

Whatever the rows are, each exchange opens with a user message, every call has exactly one result right behind it, and
the last word is an answer. What is missing is said to be missing; what has no place is kept as a note.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import cast

from talaria.compat.hermes_home import content
from talaria.compat.hermes_home.rows import MessageRow, cleaned
from talaria.core.ids import CallId
from talaria.core.messages import (
    Assistant,
    AssistantPart,
    Context,
    Disposition,
    Message,
    StopReason,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    User,
    UserPart,
)

NO_BEGINNING = "[The beginning of this conversation was not kept.]"
NO_WORDS = "[An empty message.]"
NO_ANSWER = "[No answer to this was kept.]"
NO_RESULT = "[The result of this call was not kept: its effect is unknown.]"

_ROLES = ("user", "assistant", "tool")
_REVIEWS = (
    "Review the conversation above and update the skill library",
    "Review the conversation above and consider saving to memory",
)
"""What old versions said to themselves in the person's place; with the answer it is none of the conversation."""
_STOPS: dict[str, StopReason] = {"length": "length", "content_filter": "refused"}


@dataclass(frozen=True, slots=True)
class ImportedExchange:
    id: int
    """Of the row that it began with."""
    said: tuple[tuple[float, Message], ...]
    notes: tuple[str, ...] = ()
    is_answered: bool = True


def exchanges(rows: Iterable[MessageRow]) -> list[ImportedExchange]:
    """Times never go back: a row without one, or with an earlier one, happened when the row before it did."""
    ids, told = _CallIds(), list[ImportedExchange]()
    now = 0.0
    for group in _groups(_spoken(rows)):
        exchange = _Growing(ids, now).told(group)
        now = exchange.said[-1][0]
        told.append(exchange)
    return told


def _spoken(rows: Iterable[MessageRow]) -> Iterator[MessageRow]:
    is_after_review = False
    for row in rows:
        if row.role not in _ROLES and not row.is_summary:
            continue
        is_review = row.role == "user" and (row.content or "").lstrip().startswith(_REVIEWS)
        if not is_review and not (is_after_review and row.role == "assistant"):
            yield row
        is_after_review = is_review


@dataclass(slots=True)
class _Group:
    opening: list[MessageRow] = field(default_factory=list[MessageRow])
    """What the person said, and what was put before it."""
    work: list[MessageRow] = field(default_factory=list[MessageRow])

    @property
    def rows(self) -> list[MessageRow]:
        return [*self.opening, *self.work]

    @property
    def is_asked(self) -> bool:
        """The person has spoken: what they say next is another message."""
        return any(row.role == "user" and not row.is_summary and not row.is_observed for row in self.opening)


def _groups(rows: Iterable[MessageRow]) -> Iterator[_Group]:
    group = _Group()
    for row in rows:
        if row.role != "user" and not row.is_summary:
            group.work.append(row)
            continue
        if group.work or group.is_asked:
            yield group
            group = _Group()
        group.opening.append(row)
    if group.rows:
        yield group


class _CallIds:
    """No id is used twice in a conversation: some models count anew with every answer."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def fresh(self, wanted: str) -> CallId:
        name, number = wanted or "call", 1
        while (id := name if number == 1 and wanted else f"{name}_{number}") in self._used:
            number += 1
        self._used.add(id)
        return CallId(id)


class _Growing:
    """One exchange while its rows are read."""

    def __init__(self, ids: _CallIds, now: float) -> None:
        self._ids = ids
        self._now = now
        self._said: list[tuple[float, Message]] = []
        self._notes: list[str] = []
        self._held: tuple[AssistantPart, ...] = ()
        """Of answers without calls, until it is known what comes behind them."""
        self._stop: StopReason = "end"

    def told(self, group: _Group) -> ImportedExchange:
        self._open(group.opening)
        for row, results in _rounds(group.work):
            self._round(row, results)
        is_answered = _has_text(self._held)
        parts = self._held if is_answered else (*self._held, Text(NO_ANSWER))
        self._say(Assistant(parts, self._stop if is_answered else "interrupted"))
        return ImportedExchange(group.rows[0].id, tuple(self._said), tuple(self._notes), is_answered)

    def _open(self, opening: Sequence[MessageRow]) -> None:
        parts: list[UserPart] = []
        for row in opening:
            self._pass(row)
            parts.extend([Context(content.text(row))] if row.is_summary else content.parts(row) or [Text(NO_WORDS)])
        is_from_person = any(not isinstance(part, Context) for part in parts)
        self._say(User(tuple(parts) or (Context(NO_BEGINNING),), "person" if is_from_person else "host"))

    def _round(self, row: MessageRow | None, results: Sequence[MessageRow]) -> None:
        asked: list[content.ImportedCall] = []
        if row is not None:
            self._pass(row)
            asked = content.calls(row)
            self._hold(row)
        if not asked:
            self._notes.extend(_note(result) for result in results)
            return
        named = [(one, ToolCall(self._ids.fresh(one.id), one.name, one.arguments)) for one in asked]
        self._say(Assistant((*self._held, *(call for _, call in named)), "calls"))
        self._held = ()
        self._answer(named, list(results))

    def _hold(self, row: MessageRow) -> None:
        said, thought = content.text(row), cleaned(row.reasoning).strip()
        gap = "\n\n" if said and _has_text(self._held) else ""
        thinking = (Thinking(thought),) if thought else ()
        self._held += (*thinking, Text(gap + said)) if said else thinking
        self._stop = _STOPS.get(row.finish, "end")

    def _answer(self, named: Sequence[tuple[content.ImportedCall, ToolCall]], results: list[MessageRow]) -> None:
        for asked, call in named:
            row = _taken(results, asked)
            if row is not None:
                self._pass(row)
            self._say(_result(call, row))
        self._notes.extend(_note(row) for row in results)

    def _pass(self, row: MessageRow) -> None:
        self._now = max(self._now, row.at or 0.0)

    def _say(self, message: Message) -> None:
        self._said.append((self._now, message))


def _rounds(work: Iterable[MessageRow]) -> Iterator[tuple[MessageRow | None, list[MessageRow]]]:
    """Each answer with the results behind it; None: results that stand before every answer."""
    answer: MessageRow | None = None
    results: list[MessageRow] = []
    for row in work:
        if row.role == "tool":
            results.append(row)
            continue
        if answer is not None or results:
            yield answer, results
        answer, results = row, []
    if answer is not None or results:
        yield answer, results


def _taken(results: list[MessageRow], asked: content.ImportedCall) -> MessageRow | None:
    """The result of this call, out of `results`: by its id, else the first of the same tool that has none."""
    same = (row for row in results if asked.id and cleaned(row.call_id).strip() == asked.id)
    nobodys = (row for row in results if not row.call_id.strip() and cleaned(row.tool).strip() in ("", asked.name))
    found = next(chain(same, nobodys), None)
    if found is not None:
        results.remove(found)
    return found


def _result(call: ToolCall, row: MessageRow | None) -> ToolResult:
    if row is None:
        return ToolResult(call.id, call.name, NO_RESULT, is_error=True, disposition="unknown")
    if row.effect in ("none", "unknown"):
        disposition = cast("Disposition", row.effect)
        return ToolResult(call.id, call.name, content.text(row), is_error=True, disposition=disposition)
    return ToolResult(call.id, call.name, content.text(row))


def _note(row: MessageRow) -> str:
    return f"A result whose call was not kept ({cleaned(row.tool) or 'unknown tool'}): {content.text(row)}"


def _has_text(parts: Iterable[AssistantPart]) -> bool:
    return any(isinstance(part, Text) for part in parts)
