"""The messages of a conversation and, per wire and endpoint, their encoded bytes.

Append-only: what was encoded once is never encoded again, so a request is a join of bytes and its prefix is stable.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from talaria.model.ids import CallId
from talaria.model.messages import Assistant, Image, Message, ToolResult, User

Encode = Callable[[Message], bytes]

CHARS_PER_TOKEN = 3.5
MESSAGE_TOKENS = 8
"""What a message takes besides its text."""
IMAGE_CHARS = 5000
"""An image is about that much text."""


class History:
    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._call_ids: set[CallId] = set()
        self.rebuild(messages)

    def rebuild(self, messages: Iterable[Message]) -> None:
        """Begin anew with these: the conversation was made shorter. Ids of calls are still never used again."""
        self._messages: list[Message] = []
        self._encoded: dict[str, list[bytes]] = {}
        self._answer: Assistant | None = None
        self._missing: list[CallId] = []
        self._chars = 0
        self._measured: tuple[int, int] | None = None
        """Tokens that a model counted, and our characters at that moment."""
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
        self._chars += size_chars(message)
        if isinstance(message, Assistant) and message.usage is not None and message.usage.total:
            self._measured = (message.usage.total, self._chars)
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

    def tokens(self, overhead_chars: int) -> int:
        """How long the prompt is, about: as the model counted it last, and since then by the length of its text.

        `overhead_chars` is the size of what else is sent. A count that no text could have is not believed.
        """
        chars = self._chars + overhead_chars
        counted, chars_then = self._measured or (0, -overhead_chars)
        return int(min(counted + (self._chars - chars_then) / CHARS_PER_TOKEN, 2 * chars))

    def encoded(self, key: str, encode: Encode) -> Sequence[bytes]:
        """Bytes per message under `key`; only messages new to that key are encoded."""
        known = self._encoded.setdefault(key, [])
        known.extend(encode(message) for message in self._messages[len(known) :])
        return known


def size_tokens(message: Message) -> int:
    """About."""
    return int(size_chars(message) / CHARS_PER_TOKEN) + MESSAGE_TOKENS


def size_chars(message: Message) -> int:
    match message:
        case User():
            return sum(IMAGE_CHARS if isinstance(part, Image) else len(part.text) for part in message.parts)
        case Assistant():
            return len(message.text) + sum(len(call.name) + len(call.arguments) for call in message.calls)
        case ToolResult():
            return len(message.text)
