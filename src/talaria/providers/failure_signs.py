"""What endpoints say when they refuse: the words that tell what went wrong where the status does
not, and how long they ask us to wait. All texts are in lower case. Patterns are compiled at their
first use: a start does not pay for refusals.
"""

import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime

from talaria.core.errors import Repair

TextTest = Callable[[str], object]
"""Whether a text says it."""


def _any_of(*phrases: str) -> TextTest:
    return lambda said: any(phrase in said for phrase in phrases)


def _pattern(pattern: str) -> TextTest:
    return lambda said: re.search(pattern, said)


_is_about_length = _pattern(
    r"context.?(?:length|window|size|limit)|maximum context|prompt.{0,20} too long|input.{0,20} too long"
    r"|prompt length is|token count.{0,40} exceeds|exceeds the (?:maximum number of tokens|limit of \d+)"
    r"|model token limit|token limit exceeded|too many (?:input )?tokens|reduce the length of the messages"
    r"|greater than the context|range of input length"
)
_is_about_output = _pattern(r"max_(?:completion_|output_)?tokens\W.{0,60}too (?:large|high|big)")
says_billing = _any_of(
    *("billing", "credit", "payment", "insufficient_quota", "insufficient quota", "insufficient balance"),
    *("exceeded your current quota", "not enough balance", "top up", "arrears", "key limit exceeded"),
)
says_bad_key = _pattern(
    r"(?:invalid|incorrect|expired|unauthorized) (?:api[ _]?key|x-api-key)|api[ _]?key (?:not valid|expired)"
)
says_unpaid = _pattern(
    r"credit balance|insufficient (?:credit|quota|balance|funds)|purchase (?:more )?credits|out of credits"
)
"""Whole phrases only: a refused request may be about anything, also about credit cards."""
_names_a_wait = _pattern(r"(?:try again|retry) (?:in|after) \d")
says_bad_call = _any_of("tool_use_failed")
"""It is the model's, not ours."""
_passes = _any_of("try again", "usage limit", "resets at", "reset at")
says_overload = _any_of("overload", "capacity", "server is busy", "engine is busy", "temporarily unavailable")
says_upstream = _any_of("upstream", "provider returned error", "error from provider")
says_privacy = _any_of("data policy", "privacy", "guardrail restrictions")
says_model_missing = _pattern(
    r"model.{0,60}(?:not found|not exist|is not supported|is not available|not a valid)"
    r"|(?:unknown|invalid|no such|unsupported|a valid) model|model_not_found|not_found_error|no endpoints found"
)
says_policy = _any_of(
    *("content policy", "content_policy", "content filter", "content_filter", "usage policies", "usage policy"),
    *("safety", "responsible ai", "moderation", "flagged"),
)
blames_the_request = _any_of(
    "invalid_request", "invalid request", "validation error", "unsupported parameter", "bad request"
)
"""Some endpoints answer a malformed request with a 5xx."""
_VAGUE = frozenset({"", "error", "bad request", "invalid request", "invalid_request_error", "400", "400 bad request"})

_REPAIRS: dict[Repair, TextTest] = {
    "drop_thinking": _pattern(
        r"signature|thinking block|encrypted.?content.{0,80}(?:verif|decrypt)"
        r"|reasoning.{0,40}(?:verif|decrypt|not found)|'rs_\w+'"
    ),
    "drop_images": _pattern(r"image|media_type|\bvision\b|multimodal|content.{0,30}(?:must be|expected).{0,10}string"),
    "plain_schemas": _pattern(
        r"grammar|json.?schema|input_schema|invalid schema|schema.{0,60}(?:unsupported|not supported)"
    ),
    "rename_limit": _any_of("max_completion_tokens"),
    "drop_effort": _pattern(
        r"(?:unsupported|invalid) value:? '(?:none|minimal|low|medium|high)'|think value"
        r"|value.{0,40}(?:reasoning|effort)|reasoning.?effort.{0,10} must be"
    ),
    "drop_extras": _pattern(
        r"unsupported|not supported|unrecognized|unknown (?:parameter|field|name|argument)|unexpected keyword"
        r"|extra inputs|extra fields|not permitted|additional properties|invalid parameter"
        r"|does not support thinking|thinking\.|reasoning|cache_control|stream_options|tool_choice"
    ),
}


def says_overflow(said: str) -> bool:
    """The conversation does not fit; an output limit that is too high is another matter."""
    return bool(_is_about_length(said)) and not _is_about_output(said)


def always(_: str) -> bool:
    return True


def wants_money(said: str) -> bool:
    """What names a wait will pass by itself: no bill has to be paid."""
    return bool(says_billing(said)) and not _names_a_wait(said)


def says_try_again(said: str) -> bool:
    """A plan's limit that is lifted by time, not by money."""
    return "usage limit" in said and bool(_passes(said.replace("usage limit", "", 1)))


def says_long_context_tier(said: str) -> bool:
    return "long context" in said and ("extra usage" in said or "tier" in said)


def is_vague(message: str) -> bool:
    """No reason was given that anybody could act on."""
    return message.strip(" .!").lower() in _VAGUE


def repair_for(said: str) -> Repair | None:
    return next((repair for repair, says in _REPAIRS.items() if says(said)), None)


_DURATION = r"(\d+(?:\.\d+)?)(ms|s|m|h|d)"
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_IN_WORDS = r"(?:try again|retry) (?:in|after) ((?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+)\b"
_IN_SECONDS = r"(?:try again|retry) (?:in|after) (\d+(?:\.\d+)?) seconds?"
_RESET = r"(?:x-)?ratelimit-reset(?P<what>-.+)?|anthropic-ratelimit(?P<whose>-.+)-reset"
_A_DATE_S = 1e9
_A_DATE_MS = 1e11


def retry_after_s(headers: Mapping[str, str], said: str, now: float) -> float | None:
    """Seconds, never negative; None when nothing sensible was said. `said` is the error's text in
    lower case."""
    exact_ms = _number(headers.get("retry-after-ms", ""))
    if exact_ms is not None:
        return max(0.0, exact_ms / 1000)
    header = headers.get("retry-after", "").strip()
    words, seconds = re.search(_IN_WORDS, said), re.search(_IN_SECONDS, said)
    in_words = _duration(words[1]) if words else _number(seconds[1]) if seconds else None
    due, here = _moment(header), _moment(headers.get("date", ""))  # a date is by the clock of the server that names it
    until = None if due is None else due - (now if here is None else here)
    found = (_number(header), _duration(header), until, in_words)
    return next((max(0.0, seconds) for seconds in found if seconds is not None), None)


def reset_s(headers: Mapping[str, str], now: float) -> float | None:
    """When the limits that are used up are reset. A header for one of several limits (requests,
    tokens) counts only if another says that nothing remains of it."""
    by_name = {name.lower(): value.strip() for name, value in headers.items()}
    found: list[float] = []
    for name, value in by_name.items():
        match = re.fullmatch(_RESET, name)
        if match is None:
            continue
        remaining = by_name.get(name.replace("reset", "remaining"))
        is_one_of_several = match["what"] or match["whose"]
        if remaining == "0" or (remaining is None and not is_one_of_several):
            seconds = _seconds_to(value, now)
            found += [] if seconds is None else [max(0.0, seconds)]
    return max(found, default=None)


def _seconds_to(said: str, now: float) -> float | None:
    """A number of seconds, a duration, or a moment: a date, or seconds or milliseconds since 1970."""
    number = _number(said)
    if number is not None:
        return number / 1000 - now if number >= _A_DATE_MS else number - now if number >= _A_DATE_S else number
    try:
        return datetime.fromisoformat(said).timestamp() - now
    except ValueError:
        return _duration(said)


def _number(said: str) -> float | None:
    try:
        number = float(said)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _duration(said: str) -> float | None:
    """As in `1m30s` or `500ms`."""
    parts = re.findall(_DURATION, said)
    if not parts or re.sub(_DURATION, "", said):
        return None
    return sum(float(amount) * _UNIT_S[unit] for amount, unit in parts)


def _moment(said: str) -> float | None:
    from email.utils import parsedate_to_datetime  # noqa: PLC0415  (few endpoints name a date)

    try:
        return parsedate_to_datetime(said).timestamp()
    except (ValueError, OverflowError):
        return None
