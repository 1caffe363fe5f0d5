"""What an endpoint sent, decoded into a type, or the failure that it stands for."""

from typing import Protocol, TypeVar

import msgspec

from talaria.providers import provider_failures

ABSENT = msgspec.Raw(b"null")
"""What a raw field holds when it was left out. (`Raw | None` is no type to msgspec: it takes only the null.)"""

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
