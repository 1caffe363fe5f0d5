"""What an endpoint's refusal means and who must act on it."""

from collections.abc import Mapping

import msgspec

from talaria.model.errors import Disconnected, KeyRejected, Overloaded, ProviderFailure, RateLimited, RequestRejected

MAX_QUOTE_CHARS = 300
_OVERLOAD_TYPES = frozenset(
    {"overloaded_error", "server_error", "api_error", "internal_server_error", "timeout_error", "overloaded"}
)
_RATE_TYPES = frozenset({"rate_limit_error", "rate_limit_exceeded", "insufficient_quota", "429"})


class _Detail(msgspec.Struct):
    message: str = ""
    type: str | None = None
    code: str | int | None = None


class _Body(msgspec.Struct):
    error: _Detail | str | None = None
    message: str = ""
    detail: str = ""


def refused(label: str, status: int, headers: Mapping[str, str], body: bytes) -> ProviderFailure:
    """An HTTP status other than 2xx."""
    said = _quote(body)
    if status in (401, 403):
        return KeyRejected(f"{label} did not accept the API key ({status}{said}). Check the key in your .env.")
    if status == 402:
        return KeyRejected(
            f"{label} wants to be paid first ({status}{said}). Add credit there, or change the key in your .env."
        )
    if status == 404:
        return RequestRejected(f"{label} does not exist there ({status}{said}). Check the model's name and base_url.")
    if status == 429:
        return RateLimited(f"{label} asks to slow down ({status}{said}).", retry_after_s=_retry_after(headers))
    if status in (408, 409) or status >= 500:
        return Overloaded(f"{label} is in trouble ({status}{said}).", retry_after_s=_retry_after(headers))
    if 300 <= status < 400:
        return RequestRejected(f"{label} redirects elsewhere ({status}); set base_url to the final address.")
    what_to_do = f"Check the model's settings in config.yaml{' against that reason' if said else ''}."
    return RequestRejected(f"{label} refused the request ({status}{said}). {what_to_do}")


def in_stream(label: str, error: bytes) -> ProviderFailure:
    """An error object inside a stream that began with 200."""
    detail = _detail(error)
    said = _clip(detail.message) or "no reason given"
    kinds = {str(detail.type), str(detail.code)}
    if kinds & _RATE_TYPES:
        return RateLimited(f"{label} asks to slow down: {said}.")
    if kinds & _OVERLOAD_TYPES or any(kind.startswith("5") for kind in kinds):
        return Overloaded(f"{label} failed in the middle of an answer: {said}.")
    return RequestRejected(f"{label} reported an error in the middle of an answer: {said}.")


def broken_off() -> Disconnected:
    """The stream ended, and the answer had not."""
    return Disconnected("The model's answer broke off before its end.")


def unreadable(label: str, data: bytes) -> Disconnected:
    return Disconnected(f"{label} sent something that is not an answer: {_clip(data.decode('utf-8', 'replace'))!r}.")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    try:
        return max(0.0, float(headers.get("retry-after", "")))
    except ValueError:
        return None


def _detail(error: bytes) -> _Detail:
    try:
        return msgspec.json.decode(error, type=_Detail, strict=False)
    except msgspec.MsgspecError:
        return _Detail(message=error.decode("utf-8", "replace").strip('"'))


def _quote(body: bytes) -> str:
    try:
        decoded = msgspec.json.decode(body, type=_Body, strict=False)
    except msgspec.MsgspecError:
        text = body.decode("utf-8", "replace")
        return "" if text.lstrip().startswith("<") else _prefixed(text)
    error = decoded.error
    said = error.message if isinstance(error, _Detail) else error or decoded.message or decoded.detail
    return _prefixed(said)


def _prefixed(text: str) -> str:
    clipped = _clip(text)
    return f": {clipped}" if clipped else ""


def _clip(text: str) -> str:
    flat = " ".join(text.split()).rstrip(".")
    return flat if len(flat) <= MAX_QUOTE_CHARS else flat[:MAX_QUOTE_CHARS] + "…"
