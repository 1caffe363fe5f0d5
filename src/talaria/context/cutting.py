"""Where a conversation may be cut: what stays at its beginning, what stays at its end. Pure.

A call and its results are never parted, and the person's last message always stays, wherever it stands.
"""

from collections.abc import Sequence

import msgspec

from talaria.core.messages import Assistant, Message, ToolResult, User
from talaria.providers.message_history import size_tokens

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
