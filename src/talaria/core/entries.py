"""Entries: what the disk keeps. A session's journal is an append-only sequence of these."""

from typing import Literal

import msgspec

from talaria.core.compacted import Compacted
from talaria.core.ids import TurnId
from talaria.core.messages import Message
from talaria.core.usage import NO_USAGE, Usage

TurnOrigin = Literal["terminal", "library", "platform", "schedule"]
TurnOutcome = Literal["completed", "interrupted", "failed"]
Effort = Literal["none", "minimal", "low", "medium", "high"]
"""How hard a model is to think before it answers."""


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


class RouteChanged(msgspec.Struct, frozen=True, tag="route_changed"):
    """The turn goes on with another model than the one before."""

    turn: TurnId
    before: str
    """`provider:model`, as `model`."""
    model: str
    reason: str


class Undone(msgspec.Struct, frozen=True, tag="undone"):
    """A turn, the last one then, is taken back: the model does not read it any more. What its tools did stays done."""

    turn: TurnId


class EffortChanged(msgspec.Struct, frozen=True, tag="effort"):
    """From the next turn on the model thinks as hard as this; None: as the settings say."""

    effort: Effort | None


class Noted(msgspec.Struct, frozen=True, tag="note"):
    """Something a reader of the journal should know; the model does not see it."""

    text: str


Entry = MessageAdded | TurnStarted | TurnEnded | RouteChanged | Compacted | Undone | EffortChanged | Noted


class Recorded(msgspec.Struct, frozen=True):
    """An entry with its place in the journal."""

    seq: int
    at: float
    entry: Entry
