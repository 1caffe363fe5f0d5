"""What a scripted model says, on any wire: text, thinking, tool calls, usage, and faults in the transmission.

Pure data. The `*_wire` modules render a `Reply`; `ModelServer` sends it, with its `Faults`.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Literal, TypeAlias, cast

JsonObject: TypeAlias = Mapping[str, object]
SseEvent: TypeAlias = tuple[str | None, JsonObject | str]
Stop: TypeAlias = Literal["stop", "tool_calls", "length", "content_filter"]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. `arguments` is the text that the model wrote, which need not be JSON."""

    id: str
    name: str
    arguments: str


def call(name: str, /, *, id: str = "call_1", **arguments: object) -> Call:
    return Call(id, name, json.dumps(arguments, ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class ReplyUsage:
    """Token counts. `input` excludes what was read from or written to a cache; `output` includes `reasoning`."""

    input: int = 10
    output: int = 5
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0

    @property
    def all_input(self) -> int:
        return self.input + self.cache_read + self.cache_write


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong in the transmission. Offsets count bytes of the body before any transfer encoding."""

    hang: bool = False
    """Read the request and never answer."""
    hang_up: bool = False
    """Read the request and close the connection without a word."""
    first_byte_delay_s: float = 0
    held_by: Event | None = None
    """Send nothing before this is set: until then the model thinks."""
    chunk_delay_s: float = 0
    drip: bool = False
    """Send every byte of the body as a chunk of its own."""
    cut_at: int | None = None
    """Close the connection after this many bytes of the body, or after all of it but before its proper end."""
    cut_inside: bytes | None = None
    """Close the connection in the middle of the first occurrence of these bytes."""
    stall_at: int | None = None
    """Send this many bytes of the body, then nothing, with the connection left open."""
    cut_before_end: bool = False
    """Leave out the end marker (`[DONE]`, `response.completed`, `message_stop`) and close the connection."""
    omit_end_marker: bool = False
    """Leave out the end marker, but end the HTTP response properly."""
    reset: bool = False
    """Make a cut or hang-up a TCP reset rather than an orderly close."""
    is_tidy: bool = False
    """End the HTTP response properly at a cut, so that only the body shows that something is missing."""
    error_in_stream: JsonObject | None = None
    """An error that ends a 200 stream after its text, before any tool calls and the end marker."""
    noise: bool = False
    """Put comments, bare `data:` lines and pings before each event; a correct parser ignores them all."""
    crlf: bool = False
    no_space_after_colon: bool = False
    huge_line_bytes: int = 0
    """Pad the first event's `data` line with spaces to at least this size."""
    duplicate_ids: bool = False
    """Give all tool calls the id of the first one."""
    twice: bool = False
    """Send every event twice."""
    usage: object = None
    """Report this as the usage, valid or not."""
    swap: tuple[bytes, bytes] | None = None
    """Replace the first by the second in every part of the body."""
    raw_body: bytes | None = None
    """Send these bytes, as `content_type`, instead of the rendered reply."""
    content_type: str = "text/html"

    @property
    def cuts_connection(self) -> bool:
        return (self.cut_at is not None or self.cut_before_end) and not self.is_tidy

    @property
    def drops_end_marker(self) -> bool:
        return (self.cut_before_end or self.omit_end_marker) and self.error_in_stream is None

    @property
    def last_byte(self) -> int | None:
        """The offset after which nothing is sent; None for the whole body."""
        return min((at for at in (self.cut_at, self.stall_at) if at is not None), default=None)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the model. `usage=None` leaves usage out of the response."""

    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    usage: ReplyUsage | None = field(default_factory=ReplyUsage)
    stop: Stop | None = None
    chunk_chars: int = 8
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    faults: Faults = field(default_factory=Faults)

    @property
    def stop_reason(self) -> Stop:
        return self.stop or ("tool_calls" if self.calls else "stop")

    @property
    def signature(self) -> str:
        """Sent as `signature` on the Messages wire and as `encrypted_content` on the Responses wire."""
        return base64.b64encode(f"sealed:{self.thinking}".encode()).decode()

    def pieces(self, text: str) -> Iterator[str]:
        for start in range(0, len(text), self.chunk_chars):
            yield text[start : start + self.chunk_chars]

    def with_one_call_id(self) -> "Reply":
        return replace(self, calls=tuple(replace(call, id=self.calls[0].id) for call in self.calls))


@dataclass(frozen=True, slots=True)
class Failure:
    """An HTTP error. Without a `body`, it has the form that the vendor of the wire uses."""

    status: int
    body: bytes | JsonObject | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    faults: Faults = field(default_factory=Faults)


def frame_event(events: Iterable[SseEvent], faults: Faults) -> Iterator[bytes]:
    """The events as server-sent events, with the variations and omissions that `faults` requires."""
    kept = list(events)
    for number, (name, data) in enumerate(kept[:-1] if faults.drops_end_marker else kept):
        if faults.noise:
            yield _block([": keep-alive", "", "data:", "", "event: ping"], faults)
        text = data if isinstance(data, str) else dump(data).decode()
        if number == 0:
            text = text.ljust(faults.huge_line_bytes)
        block = _block([*([f"event: {name}"] if name else []), f"data: {text}"], faults)
        yield from (block, block) if faults.twice else (block,)


def report_usage(usage: object, body: JsonObject) -> JsonObject:
    """An event or a document, with `usage` wherever it reports usage."""
    changed: dict[str, object] = {}
    for key, value in body.items():
        if isinstance(value, Mapping):
            changed[key] = usage if key == "usage" else report_usage(usage, cast("JsonObject", value))
    return {**body, **changed}


def dump(value: JsonObject) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _block(lines: Iterable[str], faults: Faults) -> bytes:
    if faults.no_space_after_colon:
        lines = (line.replace(": ", ":", 1) for line in lines)
    end = "\r\n" if faults.crlf else "\n"
    return end.join([*lines, "", ""]).encode()
