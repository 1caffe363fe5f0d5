"""The ports of this area: `Provider` answers a request; `Wire` translates for one kind of endpoint, without I/O."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from talaria.model.events import TextDelta, ThinkingDelta
from talaria.model.ids import SessionId
from talaria.model.messages import Assistant, Message
from talaria.model.secret import NO_SECRET, Secret
from talaria.model.tools import ToolSpec
from talaria.net.timeouts import Timeouts
from talaria.providers.history import History

WireName = Literal["openai_chat", "openai_responses", "anthropic_messages"]
Effort = Literal["minimal", "low", "medium", "high"]


class Prices(msgspec.Struct, frozen=True):
    """US dollars per million tokens."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None


class Endpoint(msgspec.Struct, frozen=True):
    """One model at one address, with all that is needed to call it."""

    provider: str
    model: str
    base_url: str
    wire: WireName
    key: Secret = NO_SECRET
    headers: tuple[tuple[str, str], ...] = ()
    window: int | None = None
    """Context window in tokens, where known."""
    max_output: int | None = None
    prices: Prices | None = None
    timeouts: Timeouts = Timeouts()

    @property
    def origin(self) -> str:
        """Who wrote a message: sealed thinking may go back there only."""
        return f"{self.wire} {self.base_url} {self.model}"

    @property
    def label(self) -> str:
        return f"{self.provider}:{self.model}"

    def __repr__(self) -> str:
        """Without headers: they may hold secrets."""
        return f"Endpoint({self.label} at {self.base_url})"


class Request(msgspec.Struct, frozen=True):
    system: str
    tools: tuple[ToolSpec, ...]
    history: History
    session: SessionId
    may_call: bool = True
    """False in a closing call: the tools stay (the prefix must not change), but none may be called."""
    effort: Effort | None = None
    is_streaming: bool = True


Delta = TextDelta | ThinkingDelta


class Provider(Protocol):
    @property
    def endpoint(self) -> Endpoint: ...

    def stream(self, request: Request) -> AsyncGenerator[Delta | Assistant]:
        """Deltas as they come; the last item is the whole message. Raises `ProviderFailure`."""
        ...

    async def check(self) -> None:
        """Raises when the endpoint cannot be reached or does not take the key. Costs no tokens."""
        ...


class Decoder(Protocol):
    """Puts one streamed answer together."""

    def feed(self, data: bytes) -> Iterable[Delta]:
        """Raises `ProviderFailure` when the stream carries an error."""
        ...

    @property
    def is_complete(self) -> bool: ...

    def finish(self) -> Assistant:
        """Raises `Disconnected` when the stream ended before the answer did."""
        ...


class Wire(Protocol):
    @property
    def path(self) -> str: ...
    def headers(self, key: Secret) -> Mapping[str, str]: ...
    def encode(self, message: Message, origin: str) -> bytes:
        """A message as this wire's bytes. Depends on nothing else, so that it can be kept."""
        ...

    def body(self, request: Request, endpoint: Endpoint, messages: Sequence[bytes]) -> bytes: ...
    def decoder(self, endpoint: Endpoint) -> Decoder: ...
    def document(self, body: bytes, endpoint: Endpoint) -> Assistant:
        """An answer that was not streamed."""
        ...
