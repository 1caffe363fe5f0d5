"""The messages of a conversation and, per wire and endpoint, their encoded bytes.

Append-only: what was encoded once is never encoded again, so a request is a join of bytes and its prefix is stable.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from talaria.model.ids import CallId
from talaria.model.messages import Assistant, Message, ToolResult, User

Encode = Callable[[Message], bytes]


class History:
    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._messages: list[Message] = []
        self._encoded: dict[str, list[bytes]] = {}
        self._call_ids: set[CallId] = set()
        self._answer: Assistant | None = None
        self._missing: list[CallId] = []
        for message in messages:
            self.append(message)

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    @property
    def last(self) -> Message | None:
        return self._messages[-1] if self._messages else None

    @property
    def call_ids(self) -> AbstractSet[CallId]:
        """Of every call so far: a new one must differ."""
        return self._call_ids

    def append(self, message: Message) -> None:
        self._messages.append(message)
        match message:
            case Assistant() if message.calls:
                self._answer = message
                self._missing = [call.id for call in message.calls]
                self._call_ids.update(self._missing)
            case ToolResult():
                self._missing.remove(message.call_id)
            case Assistant() | User():
                pass

    @property
    def open_answer(self) -> Assistant | None:
        """The answer some of whose calls have no result yet."""
        return self._answer if self._missing else None

    @property
    def open_calls(self) -> Sequence[CallId]:
        """The calls without a result, in the model's order."""
        return tuple(self._missing)

    def encoded(self, key: str, encode: Encode) -> Sequence[bytes]:
        """Bytes per message under `key`; only messages new to that key are encoded."""
        known = self._encoded.setdefault(key, [])
        known.extend(encode(message) for message in self._messages[len(known) :])
        return known
