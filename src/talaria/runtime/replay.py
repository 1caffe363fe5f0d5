"""The events that a settled entry amounts to, for views that show events."""

from collections.abc import Iterator

from talaria.core.entries import MessageAdded, Recorded
from talaria.core.events import Event, RoundEnded, ThinkingDelta, ToolBegan, ToolEnded
from talaria.core.messages import Assistant, Thinking, ToolResult


class Replay:
    """Entry after entry of one turn."""

    def __init__(self) -> None:
        self._called_at: dict[str, float] = {}

    def events(self, recorded: Recorded) -> Iterator[Event]:
        match recorded.entry:
            case MessageAdded(Assistant() as message):
                yield ThinkingDelta("".join(part.text for part in message.parts if isinstance(part, Thinking)))
                yield RoundEnded(message)
                for call in message.calls:
                    self._called_at[call.id] = recorded.at
                    yield ToolBegan(call.id, call.name, call.arguments)
            case MessageAdded(ToolResult() as result):
                yield ToolEnded(result, max(0.0, recorded.at - self._called_at.get(result.call_id, recorded.at)))
            case _:
                pass
