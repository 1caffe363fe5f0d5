"""Entries: what the disk keeps. A session's journal is an append-only sequence of these."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from talaria.core.errors import LimitName
from talaria.core.ids import TurnId
from talaria.core.messages import NO_USAGE, Assistant, Message, ToolResult, Usage, User

SummaryAuthor = Literal["model", "host", "nobody", "engine"]


class KeptMessages(msgspec.Struct, frozen=True, tag="kept"):
    """Messages that the model read before, by position, including both ends."""

    first: int
    last: int


class Compacted(msgspec.Struct, frozen=True, tag="compacted"):
    """The conversation was made shorter for the model. Nothing is lost: the entries before it stay."""

    messages: tuple[KeptMessages | User | Assistant | ToolResult, ...]
    summary_by: SummaryAuthor
    """`nobody`: there is no summary, only old tool output was left out."""
    tokens: int
    """The approximate size of the prompt before."""
    threshold: int


def encode_compaction(
    before: Sequence[Message], after: Sequence[Message], *, summary_by: SummaryAuthor, tokens: int, threshold: int
) -> Compacted:
    """Does not repeat what of `after` is in `before`, in the same order."""
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


def apply_compaction(before: Sequence[Message], entry: Compacted) -> list[Message]:
    """What the model reads after `entry`."""
    messages: list[Message] = []
    for part in entry.messages:
        if isinstance(part, KeptMessages):
            messages.extend(before[part.first : part.last + 1])
        else:
            messages.append(part)
    return messages


TurnOrigin = Literal["terminal", "library", "platform", "schedule"]
TurnOutcome = Literal["completed", "interrupted", "failed"]
Effort = Literal["none", "minimal", "low", "medium", "high"]
"""How hard a model should think before it answers."""


class MessageAdded(msgspec.Struct, frozen=True, tag="message"):
    message: Message


class TurnStarted(msgspec.Struct, frozen=True, tag="turn_started"):
    turn: TurnId
    origin: TurnOrigin


class TurnEnded(msgspec.Struct, frozen=True, tag="turn_ended", omit_defaults=True):
    turn: TurnId
    outcome: TurnOutcome
    usage: Usage = NO_USAGE
    error: str = ""
    limit: LimitName = ""
    """Which cap ended it."""


class RouteChanged(msgspec.Struct, frozen=True, tag="route_changed"):
    """The turn continues with another model."""

    turn: TurnId
    before: str
    """`provider:model`, like `model`."""
    model: str
    reason: str


class Undone(msgspec.Struct, frozen=True, tag="undone"):
    """The turn that was then the last is undone: the model no longer reads it. The effects of its tools remain."""

    turn: TurnId


class EffortChanged(msgspec.Struct, frozen=True, tag="effort"):
    """From the next turn on the model thinks as hard as this; None: as the settings say."""

    effort: Effort | None


class Noted(msgspec.Struct, frozen=True, tag="note"):
    """Something a reader of the journal should know; the model does not see it."""

    text: str


Entry = MessageAdded | TurnStarted | TurnEnded | RouteChanged | Compacted | Undone | EffortChanged | Noted


class Recorded(msgspec.Struct, frozen=True):
    """An entry, with its position in the journal."""

    seq: int
    at: float
    entry: Entry
