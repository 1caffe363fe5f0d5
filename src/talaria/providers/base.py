"""The ports of this area: `Provider` answers a request; `Wire` translates for one kind of endpoint,
without I/O. And what they work with: endpoints, routes, requests, and about how long those are.
"""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from talaria.core.entries import Effort
from talaria.core.errors import Repair
from talaria.core.events import TextDelta, ThinkingDelta
from talaria.core.ids import SessionId
from talaria.core.messages import Assistant, Message, ToolSpec
from talaria.core.secret import NO_SECRET, Secret
from talaria.net.web_settings import Timeouts
from talaria.providers.message_history import History

WireName = Literal["openai_chat", "openai_responses", "anthropic_messages"]
Rotation = Literal["fill_first", "round_robin", "least_used", "random"]
Caching = Literal["automatic", "markers", "off"]
"""How an endpoint is told to cache the prompt: by one word for the whole request, by marks on
stable prefixes, or not at all (most cache without being told)."""


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
    keys: tuple[Secret, ...] = ()
    """Any of them opens it; none: it is open."""
    key_command: str | None = None
    """Prints a key that is worth more than those, and another one when that has expired."""
    rotation: Rotation = "fill_first"
    headers: tuple[tuple[str, str], ...] = ()
    window: int | None = None
    """Context window in tokens, where known."""
    compact_at: int | None = None
    """Prompt tokens from which on the conversation is made shorter."""
    max_output: int | None = None
    prices: Prices | None = None
    timeouts: Timeouts = Timeouts()
    caching: Caching = "off"
    is_streaming: bool = True
    """Whether answers are asked for word by word."""
    is_aggregator: bool = False
    """It passes requests on to others: new connections to it do not heal theirs."""

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


class ModelRequest(msgspec.Struct, frozen=True):
    system: str
    tools: tuple[ToolSpec, ...]
    history: History
    session: SessionId
    may_call: bool = True
    """False in a closing call: the tools stay (the prefix must not change), but none may be called.
    """
    effort: Effort | None = None
    is_streaming: bool = True
    key: Secret = NO_SECRET
    max_output: int | None = None
    """Of this call, where the endpoint's own is too much."""
    seconds: float | None = None
    """What is left of the turn's time: the answer must be there by then."""
    repairs: frozenset[Repair] = frozenset()
    """What to leave out, because the endpoint refused it."""


Delta = TextDelta | ThinkingDelta


class Provider(Protocol):
    @property
    def endpoint(self) -> Endpoint: ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Assistant]:
        """Deltas as they come; the last item is the whole message. Raises `ProviderFailure`."""
        ...

    async def models(self, key: Secret) -> Sequence[str]:
        """What the endpoint says that it serves. Raises when it cannot be reached or does not take
        the key. Free."""
        ...

    async def reconnect(self) -> None:
        """Begin anew with fresh connections; answers that are under way keep theirs."""
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

    def body(self, request: ModelRequest, endpoint: Endpoint, messages: Sequence[bytes]) -> bytes: ...
    def decoder(self, endpoint: Endpoint) -> Decoder: ...
    def document(self, body: bytes, endpoint: Endpoint) -> Assistant:
        """An answer that was not streamed."""
        ...


COMPACTION_SHARE = 0.5
_SMALL_WINDOW = 512_000
_SMALL_SHARE = 0.75
"""In a small window more of it is used before work is interrupted."""
_FLOOR = 64_000
_LAST_SHARE = 0.85
"""Where the floor would leave no room at all."""


def compaction_threshold(window: int, max_output: int | None = None, share: float = COMPACTION_SHARE) -> int:
    """Of the window, less what the answer may take."""
    room = window - max_output if max_output and max_output <= window // 2 else window
    wanted = room * (max(share, _SMALL_SHARE) if window < _SMALL_WINDOW else share)
    at_least = max(wanted, _FLOOR)
    return int(at_least if at_least < room else room * _LAST_SHARE)


class Route(msgspec.Struct, frozen=True):
    primary: Endpoint
    fallbacks: tuple[Endpoint, ...] = ()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """In the order in which they are tried, each model at each address once."""
        found: dict[str, Endpoint] = {}
        for endpoint in (self.primary, *self.fallbacks):
            found.setdefault(endpoint.origin, endpoint)
        return tuple(found.values())


LARGE_SHARE = 0.4
LARGE_TOKENS = 80_000
LARGE_MESSAGES = 80
LONG_WINDOW = 256_000

_SCHEMA_CHARS = 400
"""What a tool's schema takes on the wire besides its description."""


def prompt_tokens(request: ModelRequest) -> int:
    described = sum([len(tool.description) for tool in request.tools]) + _SCHEMA_CHARS * len(request.tools)
    return request.history.tokens(len(request.system) + described)


def is_large(request: ModelRequest, endpoint: Endpoint) -> bool:
    """So long that a refusal without a reason may mean just that."""
    tokens = prompt_tokens(request)
    if endpoint.window is not None and tokens > LARGE_SHARE * endpoint.window:
        return True
    is_short = endpoint.window is None or endpoint.window <= LONG_WINDOW
    return is_short and (tokens > LARGE_TOKENS or len(request.history) > LARGE_MESSAGES)
