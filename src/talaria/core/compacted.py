"""A compaction as the journal keeps it: what the model reads from then on, told by what it read before. Pure."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from talaria.core.messages import Assistant, Message, ToolResult, User

SummaryAuthor = Literal["model", "host", "nobody", "engine"]


class KeptMessages(msgspec.Struct, frozen=True, tag="kept"):
    """Messages that the model read before, by position; both ends are included."""

    first: int
    last: int


class Compacted(msgspec.Struct, frozen=True, tag="compacted"):
    """The conversation was made shorter for the model. Nothing is lost: the entries before it stay."""

    messages: tuple[KeptMessages | User | Assistant | ToolResult, ...]
    summary_by: SummaryAuthor
    """Nobody: only old tool output was left out."""
    tokens: int
    """What the prompt took before, about."""
    threshold: int


def compacted(
    before: Sequence[Message], after: Sequence[Message], *, summary_by: SummaryAuthor, tokens: int, threshold: int
) -> Compacted:
    """What of `after` stands in `before`, in the same order, is not written again."""
    places: dict[int, int] = {id(message): index for index, message in enumerate(before)}
    parts: list[KeptMessages | User | Assistant | ToolResult] = []
    last = -1
    for message in after:
        place = places.get(id(message), -1)
        if place <= last:
            parts.append(message)
            continue
        last = place
        known = parts[-1] if parts else None
        if isinstance(known, KeptMessages) and known.last == place - 1:
            parts[-1] = KeptMessages(known.first, place)
        else:
            parts.append(KeptMessages(place, place))
    return Compacted(tuple(parts), summary_by, tokens, threshold)


def expanded(before: Sequence[Message], entry: Compacted) -> list[Message]:
    """What the model reads after `entry`."""
    messages: list[Message] = []
    for part in entry.messages:
        if isinstance(part, KeptMessages):
            messages.extend(before[part.first : part.last + 1])
        else:
            messages.append(part)
    return messages
