"""What the wires share: the bytes of a request, in the order that keeps prompt caches warm (what is
stable, the history, what may change), and the decoding of what an endpoint sent.

Call ids, tool names and arguments are written as strict endpoints take them: after a fallback, a
history holds ids that another vendor made up. A request that its endpoint refused is repaired here;
images and thinking are left out of the history before a wire sees it.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar, cast

import msgspec
from msgspec.structs import replace

from talaria.providers import provider_failures
from talaria.providers.base import Endpoint, ModelRequest

_encode = msgspec.json.Encoder().encode

MARK = {"type": "ephemeral"}
"""As the value of `cache_control`, on a part of the prompt or on the whole request."""
_MARK_FIELD = b',"cache_control":' + _encode(MARK)


def build_body(head: Mapping[str, object], name: str, history: bytes, tail: Mapping[str, object]) -> bytes:
    """A JSON object with `history`, items already joined by commas, as the array `name`. `tail` is
    not empty.

    Of two requests with the same head, the longer history's body begins with the shorter one's up
    to its last item, marks aside.
    """
    return b"".join((_encode(head)[:-1], b',"', name.encode(), b'":[', history, b"],", _encode(tail)[1:]))


def add_mark(encoded: bytes) -> bytes:
    """Bytes that end with an object's end, with a mark as that object's last field."""
    return encoded[:-1] + _MARK_FIELD + b"}"


def as_object(arguments: str) -> bytes:
    """The model's own text if it is a JSON object; otherwise that text inside one, so that history
    stays sendable."""
    text = arguments.strip()
    try:
        if isinstance(msgspec.json.decode(text), dict):
            return text.encode()
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        pass
    return (
        msgspec.json.encode({"unparsable_arguments": arguments.encode("utf-8", "replace").decode()}) if text else b"{}"
    )


_STRICT = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_KIMI = re.compile(r"functions\.[a-zA-Z0-9_-]{1,64}:\d{1,6}")
_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")


def safe_identifier(identifier: str) -> str:
    """The identifier itself if every endpoint takes it; otherwise one that does, the same each
    time."""
    if _STRICT.fullmatch(identifier):
        return identifier
    digest = hashlib.sha256(identifier.encode("utf-8", "replace")).hexdigest()[:12]
    return f"{_FOREIGN.sub('_', identifier)[:40]}_{digest}"


def safe_call_id(call_id: str) -> str:
    """`fitting`, on a wire behind which any vendor may stand.

    Kimi reads the name of its earlier calls from their ids, and falls silent when they come back in
    another form.
    """
    return call_id if _KIMI.fullmatch(call_id) else safe_identifier(call_id)


_NARROWING = frozenset(
    {
        "$schema",
        "contains",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "maxContains",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minContains",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "pattern",
        "patternProperties",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
    }
)
"""What local servers cannot put into a grammar. Nothing is lost: arguments are checked before a
call runs."""
_NAMES = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})
"""Their values map names to schemas, and a name may be any word, also one of the above."""
_DATA = frozenset({"const", "default", "enum", "examples", "required"})


def apply_repairs(request: ModelRequest, endpoint: Endpoint) -> tuple[ModelRequest, Endpoint]:
    if "plain_schemas" in request.repairs:
        plain = (
            replace(tool, parameters=msgspec.Raw(_encode(_plain(msgspec.json.decode(tool.parameters)))))
            for tool in request.tools
        )
        request = replace(request, tools=tuple(plain))
    if "drop_effort" in request.repairs:
        request = replace(request, effort=None)
    if drops_extras(request):
        request, endpoint = replace(request, effort=None), replace(endpoint, caching="off")
    return request, endpoint


def drops_extras(request: ModelRequest) -> bool:
    return "drop_extras" in request.repairs


def _plain(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_plain(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    keywords = cast("dict[str, Any]", schema)
    return {
        name: _plain_value(name, value)
        for name, value in keywords.items()
        if not (name in _NARROWING or (name == "additionalProperties" and not isinstance(value, bool)))
    }


def _plain_value(keyword: str, value: Any) -> Any:
    if keyword in _DATA:
        return value
    if keyword in _NAMES and isinstance(value, dict):
        return {name: _plain(schema) for name, schema in cast("dict[str, Any]", value).items()}
    return _plain(value)


ABSENT = msgspec.Raw(b"null")
"""What a raw field holds when it was left out. (`Raw | None` is no type to msgspec: it takes only
the null.)"""

MAX_COUNT = 10**12
"""No call has that many tokens; what a broken counter says must not break a sum."""


class _Listed(msgspec.Struct):
    id: str


class _Listing(msgspec.Struct):
    data: list[_Listed] = []


class HasError(Protocol):
    @property
    def error(self) -> msgspec.Raw: ...


Decoded = TypeVar("Decoded")
Fallible = TypeVar("Fallible", bound=HasError)


def decode(decoder: msgspec.json.Decoder[Decoded], data: bytes | msgspec.Raw, label: str) -> Decoded:
    try:
        return decoder.decode(data)
    except provider_failures.UNREADABLE as fault:
        raise provider_failures.unreadable_answer(label, bytes(data)) from fault


def decode_message(decoder: msgspec.json.Decoder[Fallible], data: bytes | msgspec.Raw, label: str) -> Fallible:
    """Raises `ProviderFailure` also when what came is an error."""
    message = decode(decoder, data, label)
    if is_present(message.error):
        raise provider_failures.from_stream_error(label, bytes(message.error))
    return message


def decode_leniently(decoder: msgspec.json.Decoder[Decoded], data: msgspec.Raw) -> Decoded | None:
    """What an answer may well be without, such as its token counts: None if it is missing or wrong."""
    try:
        return decoder.decode(data) if is_present(data) else None
    except provider_failures.UNREADABLE:
        return None


def clamp_count(tokens: int | None) -> int:
    return min(max(0, tokens or 0), MAX_COUNT)


def parse_model_list(body: bytes) -> list[str]:
    """The names in what an endpoint answers to `/models`. Raises one of `failures.UNREADABLE`."""
    return [listed.id for listed in msgspec.json.decode(body, type=_Listing).data]


def is_present(field: msgspec.Raw) -> bool:
    return field is not ABSENT and bytes(memoryview(field)[:5]) != b"null"
