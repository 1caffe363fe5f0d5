"""Remarks on a conversation."""

from talaria.core.entries import (
    Compacted,
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
    """What to say about the conversation itself; usually nothing."""
    match entry:
        case Noted(text):
            return text
        case EffortChanged(effort):
            return f"Reasoning effort: {effort or 'as configured'}."
        case Undone():
            return "The turn before this was undone."
        case Compacted():
            return "Shortened for the model; everything is still here."
        case RouteChanged(_, _, model, reason):
            return f"{reason} Continued with {model}."
        case TurnEnded(_, outcome, _, error) if outcome != "completed":
            return f"{outcome}{f': {error}' if error else ''}"
        case MessageAdded() | TurnStarted() | TurnEnded():
            return ""
