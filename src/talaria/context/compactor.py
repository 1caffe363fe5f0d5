"""The built-in compactor: leaves out old tool output first, then replaces the middle by a summary that it keeps up to
date. The beginning, the end, and the person's last message stay as they are; the end is clipped only where nothing else
helps, that message never."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from talaria.context import summary
from talaria.context.base import CompactionRequest, Shortened
from talaria.context.cutting import Cut, cut
from talaria.context.pruning import clip, fitted, pruned
from talaria.core.compacted import SummaryAuthor
from talaria.core.errors import LimitReached, ProviderFailure
from talaria.core.messages import Context, Message, User
from talaria.providers.message_history import CHARS_PER_TOKEN, size_tokens

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
