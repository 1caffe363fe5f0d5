"""The messages of a conversation and, per wire and endpoint, their encoded bytes.

Append-only: what was encoded once is never encoded again, so a request is a join of bytes and its prefix is stable.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from talaria.model.ids import CallId
from talaria.model.messages import Assistant, Message

Encode = Callable[[Message], bytes]


class History:
    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._messages: list[Message] = []
        self._encoded: dict[str, list[bytes]] = {}
        self._call_ids: set[CallId] = set()
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
        if isinstance(message, Assistant):
            self._call_ids.update(call.id for call in message.calls)

    def encoded(self, key: str, encode: Encode) -> Sequence[bytes]:
        """Bytes per message under `key`; only messages new to that key are encoded."""
        known = self._encoded.setdefault(key, [])
        known.extend(encode(message) for message in self._messages[len(known) :])
        return known
