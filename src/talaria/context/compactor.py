"""The built-in compactor: leaves out old tool output first, then replaces the middle by a summary that it keeps up to
date. The beginning, the end, and the person's last message stay as they are."""

import logging
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from talaria.context import summary
from talaria.context.base import Shortened, Wish
from talaria.context.cutting import Cut, cut
from talaria.context.pruning import pruned
from talaria.model.compaction import SummaryAuthor
from talaria.model.errors import LimitReached, ProviderFailure
from talaria.model.messages import Context, Message, User
from talaria.providers.history import CHARS_PER_TOKEN, size_tokens

TAIL_SHARE = 0.2
"""Of the threshold, for what stays at the end."""
ENOUGH_SHARE = 0.6
"""A conversation that is below this share of the threshold without its old tool output needs no summary."""
SUMMARY_SHARE = 0.2
MIN_SUMMARY_TOKENS, MAX_SUMMARY_TOKENS = 300, 10_000

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

    async def compact(self, messages: Sequence[Message], wish: Wish) -> Shortened | None:
        previous = summary.found_in(messages)
        tail_tokens = int(wish.threshold * TAIL_SHARE)
        where = cut(messages, tail_tokens, keeps_head=not previous, keep_last=wish.keep_last)
        middle = messages[where.head : where.tail]
        if not [message for index, message in enumerate(middle, where.head) if index != where.pinned]:
            return None
        slim = (*messages[: where.head], *pruned(middle), *messages[where.tail :])
        if wish.keep_last is None and not wish.focus and _is_enough(messages, slim, wish):
            return Shortened(slim, "nobody")
        text, author = await self._told([*_as_written(middle)], previous, wish)
        return Shortened(_joined(messages, where, summary.wrapped(text)), author)

    async def _told(self, middle: Sequence[Message], previous: str, wish: Wish) -> tuple[str, SummaryAuthor]:
        """Piece by piece, if one question cannot hold it all: each answer is the earlier summary of the next."""
        if not wish.may_ask:
            return summary.local(middle, previous), "host"
        content = sum(map(size_tokens, middle)) + len(previous) / CHARS_PER_TOKEN
        most = min(MAX_SUMMARY_TOKENS, wish.threshold * SUMMARY_SHARE)
        target = int(min(max(content * SUMMARY_SHARE, MIN_SUMMARY_TOKENS), most))
        told = previous
        try:
            for piece in _pieces(middle, self._summariser.room_tokens - 2 * target):
                question = summary.request(piece, told, wish.focus, target)
                told = await self._summariser.summarise(question, target, wish.seconds)
        except (ProviderFailure, LimitReached) as failure:
            log.warning("no model summarised: %s", failure)
            return summary.local(middle, previous), "host"
        return told, "model"


def _pieces(messages: Sequence[Message], room_tokens: int) -> Iterator[Sequence[Message]]:
    piece: list[Message] = []
    size = 0
    for message in messages:
        length = min(size_tokens(message), int(summary.MAX_MESSAGE_CHARS / CHARS_PER_TOKEN) + 1)
        if piece and size + length > room_tokens:
            yield piece
            piece, size = [], 0
        piece.append(message)
        size += length
    if piece:
        yield piece


def _is_enough(before: Sequence[Message], after: Sequence[Message], wish: Wish) -> bool:
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
