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
"""How an endpoint is asked to cache the prompt: with one field for the whole request, with marks on stable prefixes, or
not at all (most cache anyway)."""


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
    """Any of them gives access; if there are none, no key is needed."""
    key_command: str | None = None
    """Prints a key that is preferred to those, and another one when that has expired."""
    rotation: Rotation = "fill_first"
    headers: tuple[tuple[str, str], ...] = ()
    window: int | None = None
    """The context window in tokens, if known."""
    compact_at: int | None = None
    """The prompt length in tokens from which the conversation is made shorter."""
    max_output: int | None = None
    prices: Prices | None = None
    timeouts: Timeouts = Timeouts()
    caching: Caching = "off"
    is_streaming: bool = True
    """Whether answers are streamed."""
    is_aggregator: bool = False
    """It forwards requests to others, so reconnecting to it does not help if they fail."""

    @property
    def origin(self) -> str:
        """Identifies who wrote a message, because sealed thinking may be sent back only there."""
        return f"{self.wire} {self.base_url} {self.model}"

    @property
    def label(self) -> str:
        return f"{self.provider}:{self.model}"

    def __repr__(self) -> str:
        """Without headers, which may contain secrets."""
        return f"Endpoint({self.label} at {self.base_url})"


class ModelRequest(msgspec.Struct, frozen=True):
    system: str
    tools: tuple[ToolSpec, ...]
    history: History
    session: SessionId
    may_call: bool = True
    """False in a closing call: the tools stay, because the prefix must not change, but none may be called."""
    effort: Effort | None = None
    is_streaming: bool = True
    key: Secret = NO_SECRET
    max_output: int | None = None
    """A limit for this call, if the endpoint's own is too high."""
    seconds: float | None = None
    """The time left in the turn; the answer must be complete by then."""
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
        """The models that the endpoint lists. Costs nothing. Raises if it cannot be reached or does not accept the
        key."""
        ...

    async def reconnect(self) -> None:
        """Use new connections from now on; answers in progress keep theirs."""
        ...


class Decoder(Protocol):
    """Assembles one streamed answer."""

    def feed(self, data: bytes) -> Iterable[Delta]:
        """Raises `ProviderFailure` if the stream contains an error."""
        ...

    @property
    def is_complete(self) -> bool: ...

    def finish(self) -> Assistant:
        """Raises `Disconnected` if the stream ended before the answer did."""
        ...


class Wire(Protocol):
    @property
    def path(self) -> str: ...
    def headers(self, key: Secret) -> Mapping[str, str]: ...
    def encode(self, message: Message, origin: str) -> bytes:
        """A message as this wire's bytes. Depends only on its arguments, so the result can be kept."""
        ...

    def body(self, request: ModelRequest, endpoint: Endpoint, messages: Sequence[bytes]) -> bytes: ...
    def decoder(self, endpoint: Endpoint) -> Decoder: ...
    def document(self, body: bytes, endpoint: Endpoint) -> Assistant:
        """An answer that was not streamed."""
        ...


COMPACTION_SHARE = 0.5
_SMALL_WINDOW = 512_000
_SMALL_SHARE = 0.75
"""In a small window, a larger share is used before work is interrupted."""
_FLOOR = 64_000
_LAST_SHARE = 0.85
"""Used where the floor would leave no room."""


def compaction_threshold(window: int, max_output: int | None = None, share: float = COMPACTION_SHARE) -> int:
    """From the window without the answer's share of it."""
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
