"""The messages of a conversation and, per wire and endpoint, their encoded bytes.

Append-only: what was encoded once is never encoded again, so a request is a join of bytes and its
prefix is stable.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from talaria.core.ids import CallId
from talaria.core.messages import Assistant, Image, Message, ToolResult, User

Encode = Callable[[Message], bytes]

CHARS_PER_TOKEN = 3.5
MESSAGE_TOKENS = 8
"""What a message takes besides its text."""
UNCOUNTED = 1.15
"""As long as no model has counted, rather too much than too little."""
DENSEST = 1.75
"""Times our estimate: as dense as any text is."""
UNBELIEVABLE = 7
"""Times our estimate: no text has so many tokens."""
IMAGE_CHARS = 5000
"""An image is about that much text."""


class History:
    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._call_ids: set[CallId] = set()
        self._counted: tuple[int, int] | None = None
        """Tokens that a model counted last, and our estimate of the messages at that moment."""
        self.rebuild(messages)

    def rebuild(self, messages: Iterable[Message]) -> None:
        """Begin anew with these: the conversation was made shorter. Ids of calls are still never
        used again.

        What models counted was another prompt; only how dense its text is still holds.
        """
        self._messages: list[Message] = []
        self._encoded: dict[str, list[bytes]] = {}
        self._answer: Assistant | None = None
        self._missing: list[CallId] = []
        self._tokens = 0
        self._is_counted = False
        for message in messages:
            self._take(message)

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    @property
    def last(self) -> Message | None:
        return self._messages[-1] if self._messages else None

    def texts_since_question(self) -> tuple[str, ...]:
        """What the model has said since the person's last message."""
        texts: list[str] = []
        for message in reversed(self._messages):
            match message:
                case User(author="person"):
                    break
                case Assistant(parts) if parts and message.text:
                    texts.append(message.text)
                case _:
                    pass
        return tuple(reversed(texts))

    @property
    def call_ids(self) -> AbstractSet[CallId]:
        """Of every call so far: a new one must differ."""
        return self._call_ids

    def append(self, message: Message) -> None:
        self._take(message)
        if isinstance(message, Assistant) and message.usage is not None and (counted := message.usage.total):
            self._counted = (counted, self._tokens)
            self._is_counted = True

    def _take(self, message: Message) -> None:
        self._messages.append(message)
        self._tokens += size_tokens(message)
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
        """How long the prompt is, about: as the model counted it last, and since then by the length
        of its text.

        `overhead_chars` is the size of what else is sent. A count that no text could have is not
        believed.
        """
        overhead = overhead_chars / CHARS_PER_TOKEN
        ours = self._tokens + overhead
        if self._counted is None:
            return int(ours * UNCOUNTED)
        counted, ours_then = self._counted
        density = min(max(counted / (ours_then + overhead), 1), DENSEST)
        if not self._is_counted:
            return int(ours * density)
        return int(min(counted + (self._tokens - ours_then) * density, ours * UNBELIEVABLE))

    def encode(self, key: str, encode: Encode) -> Sequence[bytes]:
        """Bytes per message under `key`; only messages new to that key are encoded."""
        known = self._encoded.setdefault(key, [])
        known.extend(encode(message) for message in self._messages[len(known) :])
        return known


def size_tokens(message: Message) -> int:
    """About."""
    return int(_size_chars(message) / CHARS_PER_TOKEN) + MESSAGE_TOKENS


def _size_chars(message: Message) -> int:
    match message:
        case User():
            return sum(IMAGE_CHARS if isinstance(part, Image) else _length(part.text) for part in message.parts)
        case Assistant():
            return _length(message.text) + sum(len(call.name) + _length(call.arguments) for call in message.calls)
        case ToolResult():
            return _length(message.text) + IMAGE_CHARS * len(message.images)


def _length(text: str) -> int:
    """Signs that few write take more tokens: as many more as their bytes suggest, half believed."""
    return len(text) if text.isascii() else (len(text) + len(text.encode("utf-8", "replace"))) // 2
