"""What an endpoint's refusal means: status, headers and body, or an exception, become one kind of
`ProviderFailure`; and the table of what may be done about each kind, by which `agent/retry.py`
decides.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from talaria.core.errors import (
    Disconnected,
    FailureKind,
    KeyRejected,
    Overloaded,
    ProviderFailure,
    RateLimited,
    Repair,
    RequestRejected,
)
from talaria.core.secret_finder import HIDDEN
from talaria.providers import failure_signs
from talaria.providers.failure_signs import reset_s, retry_after_s

MAX_QUOTE_CHARS = 300
STATUS_DIGITS = 3
UNREADABLE = (msgspec.MsgspecError, RecursionError, ValueError)
"""What decoding raises when bytes are not what they should be; the last for no UTF-8, and for
endless numbers."""
TRANSPORT_ERRORS = frozenset(
    {
        "ReadTimeout",
        "ConnectTimeout",
        "PoolTimeout",
        "WriteTimeout",
        "ConnectError",
        "ReadError",
        "WriteError",
        "RemoteProtocolError",
        "APIConnectionError",
        "APITimeoutError",
    }
)
"""Names of exception classes in the libraries that providers are written with. We import none of
those."""
_MISSPELT = "Check the model's name and base_url."


class _Metadata(msgspec.Struct):
    raw: str = ""


class _Detail(msgspec.Struct):
    message: str = ""
    type: str | None = None
    code: str | int | None = None
    metadata: _Metadata | None = None

    @property
    def names(self) -> tuple[str, str]:
        """Its code and its type, in words; a number that is no status says nothing."""
        is_odd = isinstance(self.code, int) and not 0 <= self.code < 1_000_000
        return "" if is_odd or self.code is None else str(self.code), self.type or ""


class _Complaint(msgspec.Struct):
    """Of a validator, which also quotes what it was given: that may hold any words."""

    msg: str = ""


class _Body(msgspec.Struct):
    error: _Detail | str | None = None
    message: str = ""
    detail: str | list[_Complaint] = ""

    @property
    def text(self) -> str:
        if isinstance(self.detail, str):
            return self.message or self.detail
        return self.message or "; ".join(complaint.msg for complaint in self.detail)


def from_response(
    label: str,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    now: float,
    is_large: bool = False,
    has_images: bool = False,
) -> ProviderFailure:
    """An HTTP status other than 2xx. `is_large`: the conversation fills a good part of the window.

    `has_images`: a refusal whose words say nothing to us may be about them.
    """
    detail = _read(body)
    kind, repair = _judge(status, detail, is_large=is_large)
    if kind == "format_error" and repair is None and has_images and status >= 400:
        repair = "drop_images"
    wait_s = retry_after_s(headers, _full_text(detail), now)
    if wait_s is None and kind in ("rate_limit", "upstream_rate_limit", "billing"):
        wait_s = reset_s(headers, now)
    said = _quote(detail)
    if 300 <= status < 400:
        said = "it redirects elsewhere; set base_url to the final address"
    return _failure(label, kind, f"{status}: {said}" if said else str(status), wait_s=wait_s, repair=repair)


def from_stream_error(label: str, error: bytes) -> ProviderFailure:
    """An error object inside a stream that began with 200."""
    try:
        detail = msgspec.json.decode(error, type=_Detail, strict=False)
    except UNREADABLE:
        detail = _Detail(message=error.decode("utf-8", "replace").strip('"'))
    said = _quote(detail)
    kind, repair = _judge(_guess_status(detail), detail, is_large=False)
    wait_s = retry_after_s({}, _full_text(detail), 0.0)
    told = f"in the middle of an answer{f': {said}' if said else ''}"
    return _failure(label, kind, told, wait_s=wait_s, repair=repair)


def from_exception(label: str, fault: Exception) -> ProviderFailure | None:
    """An exception of the library that a provider is written with; None if it is no failure of the
    transport."""
    names = {ancestor.__name__ for ancestor in type(fault).__mro__}
    if not names & TRANSPORT_ERRORS:
        return None
    said = _clip(str(fault))
    return Disconnected(f"The connection to {label} failed ({type(fault).__name__}{f': {said}' if said else ''}).")


def incomplete_answer() -> Disconnected:
    """The stream ended, and the answer had not."""
    return Disconnected("The model's answer broke off before its end.")


def unreadable_answer(label: str, data: bytes) -> Disconnected:
    text = data.decode("utf-8", "replace").lstrip()
    said = "a web page, not an answer" if text.startswith("<") else f"something that is not an answer: {_clip(text)!r}"
    return Disconnected(f"{label} sent {said}.", kind="invalid_answer")


def _judge(status: int, detail: _Detail, *, is_large: bool) -> tuple[FailureKind, Repair | None]:
    """The first rule that fits, from the most telling sign to the least."""
    said = _full_text(detail)
    if status < 400 and status != 0:
        return "format_error", None
    if status not in (401, 402, 429) and failure_signs.says_overflow(said):
        return "context_overflow", None
    if status in _PLAIN:
        return _PLAIN[status], None
    is_request = 400 <= status < 500 or failure_signs.blames_the_request(said)
    signs = _BY_WORDS.get(status, _OF_A_REQUEST if is_request else {})
    for kind, says in signs.items():
        if says(said):
            return kind, None
    if not is_request:
        return ("server_error" if status >= 500 else "unknown"), None
    if status == 400 and is_large and failure_signs.is_vague(detail.message):
        return "suspected_overflow", None
    return "format_error", failure_signs.repair_for(said)


_BY_WORDS: dict[int, dict[FailureKind, failure_signs.TextTest]] = {
    402: {"rate_limit": failure_signs.says_try_again, "billing": failure_signs.always},
    403: {
        "billing": failure_signs.says_billing,
        "content_policy_blocked": failure_signs.says_policy,
        "forbidden": failure_signs.always,
    },
    404: {
        "billing": failure_signs.says_billing,
        "policy_blocked": failure_signs.says_privacy,
        "model_not_found": failure_signs.says_model_missing,
        "unknown": failure_signs.always,
    },
    429: {
        "long_context_tier": failure_signs.says_long_context_tier,
        "upstream_rate_limit": failure_signs.says_upstream,
        "billing": failure_signs.wants_money,
        "overloaded": failure_signs.says_overload,
        "rate_limit": failure_signs.always,
    },
}
_OF_A_REQUEST: dict[FailureKind, failure_signs.TextTest] = {
    "auth": failure_signs.says_bad_key,
    "billing": failure_signs.says_unpaid,
    "invalid_answer": failure_signs.says_bad_call,
    "content_policy_blocked": failure_signs.says_policy,
    "model_not_found": failure_signs.says_model_missing,
}
"""Some vendors answer 400 to a bad key or an unpaid bill, too."""
_PLAIN: dict[int, FailureKind] = {
    401: "auth",
    408: "timeout",
    409: "overloaded",
    413: "payload_too_large",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}

_IMPLIED = {
    "authentication_error": 401,
    "invalid_api_key": 401,
    "billing_error": 402,
    "insufficient_quota": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "internal_server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
    "overloaded": 529,
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
}


def _guess_status(detail: _Detail) -> int:
    """Most vendors name the kind, some the status that they would have sent; 0: neither."""
    for named in detail.names:
        if named.isascii() and named.isdecimal() and len(named) == STATUS_DIGITS:
            return int(named)
        if named in _IMPLIED:
            return _IMPLIED[named]
        if named.startswith(("invalid_", "unsupported_")):
            return 400
    return 0


_SENTENCES: dict[FailureKind, str] = {
    "auth": "{label} did not accept the API key ({said}). Check the key in your .env.",
    "forbidden": "{label} does not allow this ({said}). Check what the key may do, and the model's name.",
    "billing": "{label} requires payment ({said}). Add credit there, or use another key in your .env.",
    "rate_limit": "{label} asks us to slow down ({said}).",
    "upstream_rate_limit": "The provider behind {label} asks it to slow down ({said}).",
    "long_context_tier": "{label} accepts a conversation this long only on a higher plan ({said}).",
    "overloaded": "{label} is having problems ({said}).",
    "server_error": "{label} is having problems ({said}).",
    "timeout": "{label} took too long ({said}).",
    "invalid_answer": "{label} could not finish its answer ({said}).",
    "context_overflow": "This conversation is too long for {label} ({said}). Start a new one, or use a model with a "
    "larger window.",
    "suspected_overflow": "{label} refused the request ({said}); this conversation may be too long for it.",
    "payload_too_large": "This conversation is too large for {label} ({said}). Start a new one, or use another model.",
    "model_not_found": f"{{label}} was not found ({{said}}). {_MISSPELT}",
    "policy_blocked": "No endpoint of {label} is allowed by your privacy settings there ({said}).",
    "content_policy_blocked": "{label} refused to answer because of its content policy ({said}).",
    "format_error": "{label} refused the request ({said}). Check the model's settings in config.yaml.",
    "unknown": f"{{label}} failed ({{said}}). {_MISSPELT}",
}
_CLASSES: dict[FailureKind, type[ProviderFailure]] = {
    "invalid_answer": Disconnected,
    "auth": KeyRejected,
    "forbidden": KeyRejected,
    "billing": KeyRejected,
    "rate_limit": RateLimited,
    "upstream_rate_limit": RateLimited,
    "long_context_tier": RateLimited,
    "overloaded": Overloaded,
    "server_error": Overloaded,
    "timeout": Overloaded,
    "unknown": Overloaded,
}
"""Who must act; whatever is not named here is a request that will not be taken."""


def _failure(
    label: str, kind: FailureKind, said: str, *, wait_s: float | None = None, repair: Repair | None = None
) -> ProviderFailure:
    sentence = _SENTENCES[kind].format(label=label, said=said)
    return _CLASSES.get(kind, RequestRejected)(sentence, kind=kind, retry_after_s=wait_s, repair=repair)


def _read(body: bytes) -> _Detail:
    try:
        decoded: _Body | list[_Body] = msgspec.json.decode(body, type=_Body | list[_Body], strict=False)
    except UNREADABLE:
        text = body.decode("utf-8", "replace")
        return _Detail() if text.lstrip().startswith("<") else _Detail(message=text)
    if isinstance(decoded, list):  # Google wraps its errors in one
        decoded = decoded[0] if decoded else _Body()
    if isinstance(decoded.error, _Detail):
        return decoded.error
    return _Detail(message=decoded.error or decoded.text)


def _full_text(detail: _Detail) -> str:
    """All that may tell what happened, in small letters."""
    raw = detail.metadata.raw if detail.metadata else ""
    return " ".join((detail.message, raw, *detail.names)).lower()


def _quote(detail: _Detail) -> str:
    """For people. Aggregators put what the provider behind them said into the metadata."""
    raw = detail.metadata.raw if detail.metadata else ""
    return _clip(f"{detail.message}: {raw}" if raw and raw not in detail.message else detail.message)


def _clip(text: str) -> str:
    printable = (char if char.isprintable() else " " for char in text[: 10 * MAX_QUOTE_CHARS])
    flat = " ".join("".join(printable).split()).rstrip(".")
    return flat if len(flat) <= MAX_QUOTE_CHARS else flat[:MAX_QUOTE_CHARS] + "…"


class Treatment(msgspec.Struct, frozen=True):
    retry: bool = False
    """The same request may pass a little later."""
    compact: bool = False
    """A shorter conversation may pass."""
    rotate: Literal["never", "second", "at_once"] = "never"
    """Another key may pass: after the second failure of this one, or at once."""
    reconnect: bool = False
    """Fresh connections may help."""
    fall_back: Literal["never", "wider", "at_once", "after_retries"] = "after_retries"
    """Another endpoint may pass; `wider`: one with a larger window."""


TREATMENTS: dict[FailureKind, Treatment] = {
    "auth": Treatment(rotate="at_once", fall_back="at_once"),
    "forbidden": Treatment(fall_back="at_once"),
    "billing": Treatment(rotate="at_once", fall_back="at_once"),
    "rate_limit": Treatment(retry=True, rotate="second", fall_back="at_once"),
    "upstream_rate_limit": Treatment(retry=True, fall_back="at_once"),
    "long_context_tier": Treatment(compact=True, fall_back="at_once"),
    "overloaded": Treatment(retry=True),
    "server_error": Treatment(retry=True),
    "timeout": Treatment(retry=True),
    "transport": Treatment(retry=True, reconnect=True),
    "not_listening": Treatment(fall_back="at_once"),
    "invalid_answer": Treatment(retry=True),
    "context_overflow": Treatment(compact=True, fall_back="wider"),
    "suspected_overflow": Treatment(retry=True, compact=True),
    "payload_too_large": Treatment(compact=True, fall_back="at_once"),
    "model_not_found": Treatment(fall_back="at_once"),
    "policy_blocked": Treatment(fall_back="never"),
    "format_error": Treatment(fall_back="at_once"),
    "content_policy_blocked": Treatment(fall_back="at_once"),
    "ssl_cert_verification": Treatment(fall_back="at_once"),
    "unknown": Treatment(retry=True),
}


CUT = "…"
MIN_CHARS = 6
"""What is shorter is no secret but a placeholder, and may be part of any word."""


def redact_secrets(text: str, secrets: Iterable[str]) -> str:
    """Also where a quotation was cut in the middle of one."""
    for secret in secrets:
        if len(secret) >= MIN_CHARS:
            text = _without_half(text.replace(secret, HIDDEN), secret)
    return text


def _without_half(text: str, secret: str) -> str:
    shown, cut, rest = text.partition(CUT)
    if not cut:
        return text
    length = next((size for size in range(len(secret), MIN_CHARS - 1, -1) if shown.endswith(secret[:size])), 0)
    kept = shown.removesuffix(secret[:length]) + HIDDEN if length else shown
    return kept + cut + _without_half(rest, secret)
