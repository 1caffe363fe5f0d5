"""The built-in context keeper: makes the conversation shorter once it exceeds the endpoint's threshold, unless the last
attempts did not help.

It leaves out old tool output first, then replaces the middle by a summary that it keeps up to date. The beginning, the
end, and the person's last message stay as they are; the end is clipped only if nothing else helps, that message never.
A call and its results are never separated.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from talaria.context import summary
from talaria.context.base import CompactedMessages, CompactionRequest, ContextKeeper
from talaria.context.summary import clip, fit, prune
from talaria.core.entries import SummaryAuthor
from talaria.core.errors import LimitReached, ProviderFailure
from talaria.core.messages import Assistant, Context, Message, ToolResult, User
from talaria.providers.base import Endpoint
from talaria.providers.message_history import CHARS_PER_TOKEN, size_tokens

HEAD_MESSAGES = 3
TAIL_STRETCH = 1.5
"""The tail may be this many times its budget before it is cut."""
MIN_TAIL_MESSAGES = 4

HEAD_SHARE = 0.1
"""Of the room below the threshold: how much may stay at the beginning."""
TAIL_SHARE = 0.2
"""How much may stay at the end."""
ENOUGH_SHARE = 0.6
"""If leaving out old tool output brings the conversation below this share of the threshold, no summary is needed."""
FULL_SHARE = 0.8
"""A longer result would soon be too long again."""
SUMMARY_SHARE = 0.2
MIN_SUMMARY_TOKENS, MAX_SUMMARY_TOKENS = 300, 10_000
TOO_LONG = 1.5
"""A summary that exceeds the requested length by this factor is clipped."""

log = logging.getLogger(__name__)


class Summariser(Protocol):
    """The auxiliary model. It lives above this layer."""

    @property
    def room_tokens(self) -> int:
        """How long a question may be."""
        ...

    async def summarise(self, question: str, max_tokens: int, seconds: float | None) -> str:
        """Raises `ProviderFailure`, `LimitReached`."""
        ...


class Cut(msgspec.Struct, frozen=True):
    """`messages[head:tail]` may be left out, except the pinned one."""

    head: int
    tail: int
    pinned: int | None = None
    """The person's last message, if it is in the middle."""


def choose_cut(
    messages: Sequence[Message],
    *,
    head_tokens: int,
    tail_tokens: int,
    keep_last: int | None = None,
    not_before: int = 0,
) -> Cut:
    """`head_tokens`: 0 if something was cut before, because then the beginning is not the real one.

    With `keep_last`, the tail is not a budget but the person's last messages, this many, and what followed them.
    `not_before`: the earliest place where the tail may begin.
    """
    head, size = 0, 0
    for index, message in enumerate(messages[:HEAD_MESSAGES]):
        size += size_tokens(message)
        is_final = isinstance(message, Assistant) and not message.calls
        if is_final and size <= head_tokens:  # whole exchanges only: what follows begins with the person's side
            head = index + 1

    asked = [at for at, one in enumerate(messages) if isinstance(one, User) and one.author == "person"]
    if keep_last is None:
        start = _tail_start(messages, tail_tokens)
    else:
        start = asked[-max(keep_last, 1)] if max(keep_last, 1) <= len(asked) else 0
    while 0 < start < len(messages) and isinstance(messages[start], ToolResult):
        start -= 1  # its call stays with it

    tail = max(head, not_before, start)
    last = asked[-1] if asked else None
    return Cut(head, tail, last if last is not None and head <= last < tail else None)


def _tail_start(messages: Sequence[Message], tail_tokens: int) -> int:
    start, size = len(messages), 0
    while start > 0:
        size += size_tokens(messages[start - 1])
        if size > tail_tokens * TAIL_STRETCH and len(messages) - start >= MIN_TAIL_MESSAGES:
            break
        start -= 1
    return start


class BuiltinContextKeeper(ContextKeeper):
    """Has no state: the journal contains all that it must know."""

    def __init__(self, summariser: Summariser) -> None:
        self._summariser = summariser

    async def is_due(self, endpoint: Endpoint, tokens: int, *, is_blocked: bool) -> bool:
        return endpoint.compact_at is not None and tokens > endpoint.compact_at and not is_blocked

    async def compact(self, messages: Sequence[Message], request: CompactionRequest) -> CompactedMessages | None:
        previous = summary.find_summary(messages)
        room = _room_tokens(messages, request)
        cut = choose_cut(
            messages,
            head_tokens=0 if previous else int(room * HEAD_SHARE),
            tail_tokens=int(room * TAIL_SHARE),
            keep_last=request.keep_last,
            # The new summary must replace the earlier one.
            not_before=next((index for index, one in enumerate(messages) if summary.find_summary([one])), 0),
        )
        middle = messages[cut.head : cut.tail]
        if not [index for index in range(cut.head, cut.tail) if index != cut.pinned]:
            if request.keep_last is not None:
                return None
            clipped = fit(messages, int(room * FULL_SHARE))  # the long messages are at the end
            return None if clipped == tuple(messages) else CompactedMessages(clipped, "nobody")

        slim = (*messages[: cut.head], *prune(middle), *messages[cut.tail :])
        saved = sum(map(size_tokens, messages)) - sum(map(size_tokens, slim))
        is_enough = request.tokens - saved <= request.threshold * ENOUGH_SHARE
        if is_enough and request.keep_last is None and not request.focus:
            return CompactedMessages(slim, "nobody")

        unsummarised = [summary.without_summary(one) if isinstance(one, User) else one for one in middle]
        text, author = await self._summarise([*filter(None, unsummarised)], previous, request, room)
        text = summary.with_goal(text, summary.goal_of(messages, previous))
        made = _insert_summary(messages, cut, summary.wrap(text))
        return CompactedMessages(made if request.keep_last is not None else fit(made, int(room * FULL_SHARE)), author)

    async def _summarise(
        self, middle: Sequence[Message], previous: str, request: CompactionRequest, room: int
    ) -> tuple[str, SummaryAuthor]:
        """In pieces, if one question cannot contain everything: each answer is the earlier summary for the next."""
        if not request.may_ask:
            return summary.local(middle, previous), "host"
        content = sum(map(size_tokens, middle)) + len(previous) / CHARS_PER_TOKEN
        most = min(MAX_SUMMARY_TOKENS, room * SUMMARY_SHARE)
        target = int(max(min(content * SUMMARY_SHARE, most), MIN_SUMMARY_TOKENS))
        text = previous
        try:
            for piece in _pieces(map(summary.show_message, middle), self._summariser.room_tokens - 2 * target):
                question = summary.request(piece, text, request.focus, target, request.memory)
                answer = await self._summariser.summarise(question, target, request.seconds)
                text = clip(answer.strip(), int(target * TOO_LONG * CHARS_PER_TOKEN))
        except (ProviderFailure, LimitReached) as failure:
            log.warning("no model could summarise the conversation: %s", failure)
            text = ""
        return (text, "model") if text else (summary.local(middle, previous), "host")


def _room_tokens(messages: Sequence[Message], request: CompactionRequest) -> int:
    """The threshold in our estimated tokens. It is lower than the model's own if its tokens are smaller than we
    estimate, or if much of the prompt is not messages."""
    if request.tokens <= request.threshold:
        return request.threshold
    ours = sum(map(size_tokens, messages))
    return request.threshold * min(ours, request.tokens) // request.tokens


def _pieces(texts: Iterable[str], room_tokens: int) -> Iterator[Sequence[str]]:
    piece: list[str] = []
    size = 0.0
    for text in texts:
        length = len(text) / CHARS_PER_TOKEN
        if piece and size + length > room_tokens:
            yield piece
            piece, size = [], 0
        piece.append(text)
        size += length
    if piece:
        yield piece


def _insert_summary(messages: Sequence[Message], cut: Cut, text: Context) -> tuple[Message, ...]:
    """Puts the summary into a message from the person's side, so that the sides still alternate."""
    head, tail = messages[: cut.head], messages[cut.tail :]
    pinned = messages[cut.pinned] if cut.pinned is not None else None
    if isinstance(pinned, User):
        return (*head, _add_summary(text, pinned), *tail)
    first = tail[0] if tail else None
    if isinstance(first, User):
        return (*head, _add_summary(text, first), *tail[1:])
    return (*head, User((text,), "host"), *tail)


def _add_summary(text: Context, message: User) -> User:
    kept = summary.without_summary(message)
    return msgspec.structs.replace(message, parts=(text, *(kept.parts if kept else ())))
