"""The built-in compactor: leaves out old tool output first, then replaces the middle by a summary that it keeps up to
date. The beginning, the end, and the person's last message stay as they are; the end is clipped only where nothing else
helps, that message never.

Where a conversation may be cut: what stays at its beginning, what stays at its end. Pure.

A call and its results are never parted, and the person's last message always stays, wherever it stands.
Keeps a conversation with the built-in compactor: from the endpoint's threshold on, unless that did not help.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from talaria.context import summary
from talaria.context.base import CompactionRequest, Compactor, ContextKeeper, Place, Shortened
from talaria.context.summary import clip, fitted, pruned
from talaria.core.entries import SummaryAuthor
from talaria.core.errors import LimitReached, ProviderFailure
from talaria.core.messages import Assistant, Context, Message, ToolResult, User
from talaria.core.usage import Usage
from talaria.providers.base import Endpoint
from talaria.providers.message_history import CHARS_PER_TOKEN, History, size_tokens
from talaria.tools.base import Tool

HEAD_MESSAGES = 3
TAIL_STRETCH = 1.5
"""The tail may be so much longer than its budget before it is cut."""
MIN_TAIL_MESSAGES = 4


class Cut(msgspec.Struct, frozen=True):
    """`messages[head:tail]` may go, except the one that is pinned."""

    head: int
    tail: int
    pinned: int | None = None
    """The person's last message, where that stands in the middle."""


def cut(
    messages: Sequence[Message],
    *,
    head_tokens: int,
    tail_tokens: int,
    keep_last: int | None = None,
    not_before: int = 0,
) -> Cut:
    """`head_tokens`: 0 where something was cut before, so that the beginning is not the beginning any more.

    `keep_last`: the tail is that many messages of the person, and what followed, in place of a budget.
    `not_before`: where the tail may begin, at the earliest.
    """
    head = _head_end(messages, head_tokens)
    wanted = _tail_start(messages, tail_tokens) if keep_last is None else _start_of_last(messages, keep_last)
    tail = max(head, not_before, _back_to_border(messages, wanted))
    asked = _asked(messages[:tail])
    has_newer = bool(_asked(messages[tail:]))
    return Cut(head, tail, asked[-1] if asked and not has_newer and asked[-1] >= head else None)


def _head_end(messages: Sequence[Message], head_tokens: int) -> int:
    """Whole exchanges only: what follows the head begins with the person's side."""
    end, size = 0, 0
    for index, message in enumerate(messages[:HEAD_MESSAGES]):
        size += size_tokens(message)
        is_final = isinstance(message, Assistant) and not message.calls
        if is_final and size <= head_tokens:
            end = index + 1
    return end


def _tail_start(messages: Sequence[Message], tail_tokens: int) -> int:
    start, size = len(messages), 0
    while start > 0:
        size += size_tokens(messages[start - 1])
        if size > tail_tokens * TAIL_STRETCH and len(messages) - start >= MIN_TAIL_MESSAGES:
            break
        start -= 1
    return start


def _start_of_last(messages: Sequence[Message], count: int) -> int:
    asked = _asked(messages)
    return asked[-max(count, 1)] if max(count, 1) <= len(asked) else 0


def _asked(messages: Sequence[Message]) -> list[int]:
    return [index for index, message in enumerate(messages) if isinstance(message, User) and message.author == "person"]


def _back_to_border(messages: Sequence[Message], index: int) -> int:
    """The nearest place at or before `index` where no call is open."""
    while 0 < index < len(messages) and isinstance(messages[index], ToolResult):
        index -= 1
    return index


HEAD_SHARE = 0.1
"""Of the room below the threshold, for what stays at the beginning."""
TAIL_SHARE = 0.2
"""For what stays at the end."""
ENOUGH_SHARE = 0.6
"""A conversation that is below this share of the threshold without its old tool output needs no summary."""
FULL_SHARE = 0.8
"""What is longer than that after all would soon be too long again."""
SUMMARY_SHARE = 0.2
MIN_SUMMARY_TOKENS, MAX_SUMMARY_TOKENS = 300, 10_000
TOO_LONG = 1.5
"""Times what was asked for: a summary is not let grow further."""

log = logging.getLogger(__name__)


class Summariser(Protocol):
    @property
    def room_tokens(self) -> int:
        """How long a question may be."""
        ...

    async def summarise(self, question: str, max_tokens: int, seconds: float | None) -> str:
        """Raises `ProviderFailure`, `LimitReached`."""
        ...


class BuiltinCompactor:
    def __init__(self, summariser: Summariser) -> None:
        self._summariser = summariser

    async def compact(self, messages: Sequence[Message], wish: CompactionRequest) -> Shortened | None:
        previous = summary.found_in(messages)
        room = _room(messages, wish)
        where = cut(
            messages,
            head_tokens=0 if previous else int(room * HEAD_SHARE),
            tail_tokens=int(room * TAIL_SHARE),
            keep_last=wish.keep_last,
            not_before=_carrier(messages),
        )
        middle = messages[where.head : where.tail]
        if not [message for index, message in enumerate(middle, where.head) if index != where.pinned]:
            return _clipped(messages, room, wish)
        slim = (*messages[: where.head], *pruned(middle), *messages[where.tail :])
        if wish.keep_last is None and not wish.focus and _is_enough(messages, slim, wish):
            return Shortened(slim, "nobody")
        text, author = await self._told([*_as_written(middle)], previous, wish, room)
        told = summary.with_goal(text, summary.goal_of(messages, previous))
        made = _joined(messages, where, summary.wrapped(told))
        return Shortened(made if wish.keep_last is not None else fitted(made, int(room * FULL_SHARE)), author)

    async def _told(
        self, middle: Sequence[Message], previous: str, wish: CompactionRequest, room: int
    ) -> tuple[str, SummaryAuthor]:
        """Piece by piece, if one question cannot hold it all: each answer is the earlier summary of the next."""
        if not wish.may_ask:
            return summary.local(middle, previous), "host"
        content = sum(map(size_tokens, middle)) + len(previous) / CHARS_PER_TOKEN
        most = min(MAX_SUMMARY_TOKENS, room * SUMMARY_SHARE)
        target = int(max(min(content * SUMMARY_SHARE, most), MIN_SUMMARY_TOKENS))
        told = previous
        try:
            for piece in _pieces(map(summary.shown, middle), self._summariser.room_tokens - 2 * target):
                question = summary.request(piece, told, wish.focus, target, wish.memory)
                answer = await self._summariser.summarise(question, target, wish.seconds)
                told = clip(answer.strip(), int(target * TOO_LONG * CHARS_PER_TOKEN))
        except (ProviderFailure, LimitReached) as failure:
            log.warning("no model summarised: %s", failure)
            told = ""
        return (told, "model") if told else (summary.local(middle, previous), "host")


def _room(messages: Sequence[Message], wish: CompactionRequest) -> int:
    """The threshold in tokens as we estimate them: less than the model's own, if what it reads is denser than that, or
    much of it is not messages."""
    if wish.tokens <= wish.threshold:
        return wish.threshold
    ours = sum(map(size_tokens, messages))
    return wish.threshold * min(ours, wish.tokens) // wish.tokens


def _carrier(messages: Sequence[Message]) -> int:
    """Where the earlier summary stands: the next one must take its place."""
    places = (index for index, message in enumerate(messages) if summary.found_in([message]))
    return next(places, 0)


def _clipped(messages: Sequence[Message], room: int, wish: CompactionRequest) -> Shortened | None:
    """There is no middle: what is too long stands at the end."""
    if wish.keep_last is not None:
        return None
    made = fitted(messages, int(room * FULL_SHARE))
    return None if made == tuple(messages) else Shortened(made, "nobody")


def _pieces(shown: Iterable[str], room_tokens: int) -> Iterator[Sequence[str]]:
    piece: list[str] = []
    size = 0.0
    for text in shown:
        length = len(text) / CHARS_PER_TOKEN
        if piece and size + length > room_tokens:
            yield piece
            piece, size = [], 0
        piece.append(text)
        size += length
    if piece:
        yield piece


def _is_enough(before: Sequence[Message], after: Sequence[Message], wish: CompactionRequest) -> bool:
    saved = sum(map(size_tokens, before)) - sum(map(size_tokens, after))
    return wish.tokens - saved <= wish.threshold * ENOUGH_SHARE


def _as_written(messages: Sequence[Message]) -> Iterator[Message]:
    """Without the summary that an earlier compaction put in."""
    for message in messages:
        kept = summary.without_summary(message) if isinstance(message, User) else message
        if kept is not None:
            yield kept


def _joined(messages: Sequence[Message], where: Cut, told: Context) -> tuple[Message, ...]:
    """The summary rides in a message of the person's side, so that sides still take turns."""
    head, tail = messages[: where.head], messages[where.tail :]
    pinned = messages[where.pinned] if where.pinned is not None else None
    if isinstance(pinned, User):
        return (*head, _carrying(told, pinned), *tail)
    first = tail[0] if tail else None
    if isinstance(first, User):
        return (*head, _carrying(told, first), *tail[1:])
    return (*head, User((told,), "host"), *tail)


def _carrying(told: Context, message: User) -> User:
    kept = summary.without_summary(message)
    return msgspec.structs.replace(message, parts=(told, *(kept.parts if kept else ())))


class BuiltinContextKeeper:
    def __init__(self, compactor: Compactor) -> None:
        self._compactor = compactor

    async def open(self, place: Place) -> Sequence[Tool]:  # noqa: ARG002
        return ()

    def begin_turn(self, history: History, tell: Callable[[str], None]) -> None:
        """It is told by the journal all that it must know."""

    def end_turn(self) -> None: ...

    async def is_due(self, endpoint: Endpoint, tokens: int, *, is_blocked: bool) -> bool:
        return endpoint.compact_at is not None and tokens > endpoint.compact_at and not is_blocked

    async def compact(self, messages: Sequence[Message], wish: CompactionRequest) -> Shortened | None:
        return await self._compactor.compact(messages, wish)

    async def stands(self) -> None:
        """As `begin_turn`, and the rest."""

    async def answered(self, usage: Usage | None) -> None: ...

    async def succeed(
        self, old: ContextKeeper, place: Place, previous: Sequence[Message], *, carry_over: bool = False
    ) -> None: ...

    async def reset(self) -> None: ...

    async def close(self, messages: Sequence[Message]) -> None: ...

    async def status(self) -> dict[str, Any]:
        return {}

    async def engine(self, place: Place) -> None:  # noqa: ARG002
        return None
