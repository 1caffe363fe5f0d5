"""What is said about a conversation beside its messages."""

import time

from talaria.core.compacted import Compacted
from talaria.core.entries import (
    EffortChanged,
    Entry,
    MessageAdded,
    Noted,
    RouteChanged,
    TurnEnded,
    TurnStarted,
    Undone,
)


def remark_on(entry: Entry) -> str:
    """What is said about the conversation itself; mostly nothing."""
    match entry:
        case Noted(text):
            return text
        case EffortChanged(effort):
            return f"Reasoning effort: {effort or 'as the settings say'}."
        case Undone():
            return "The turn before this was taken back."
        case Compacted():
            return "Made shorter for the model; everything is still here."
        case RouteChanged(_, _, model, reason):
            return f"{reason} Went on with {model}."
        case TurnEnded(_, outcome, _, error) if outcome != "completed":
            return f"{outcome}{f': {error}' if error else ''}"
        case MessageAdded() | TurnStarted() | TurnEnded():
            return ""


def when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
