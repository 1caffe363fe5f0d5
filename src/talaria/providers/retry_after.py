"""How long an endpoint asks us to wait, in whichever way it says so."""

import math
import re
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_IN_WORDS = re.compile(r"(?:try again|retry) (?:in|after) ((?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+)\b")
_IN_SECONDS = re.compile(r"(?:try again|retry) (?:in|after) (\d+(?:\.\d+)?) seconds?")
_RESET = re.compile(r"(?:x-)?ratelimit-reset(?P<what>-.+)?|anthropic-ratelimit(?P<whose>-.+)-reset")
_A_DATE_S = 1e9
_A_DATE_MS = 1e11


def retry_after_s(headers: Mapping[str, str], said: str, now: float) -> float | None:
    """Seconds, never negative; None when nothing sensible was said. `said` is the error's text in small letters."""
    exact_ms = _number(headers.get("retry-after-ms", ""))
    if exact_ms is not None:
        return max(0.0, exact_ms / 1000)
    header = headers.get("retry-after", "").strip()
    words, seconds = _IN_WORDS.search(said), _IN_SECONDS.search(said)
    in_words = _duration(words[1]) if words else _number(seconds[1]) if seconds else None
    found = (_number(header), _duration(header), _until(header, headers, now), in_words)
    return next((max(0.0, seconds) for seconds in found if seconds is not None), None)


def reset_s(headers: Mapping[str, str], now: float) -> float | None:
    """When the limits that are used up begin anew. A header that names one of several limits (requests, tokens) counts
    only if another says that nothing remains of it."""
    by_name = {name.lower(): value.strip() for name, value in headers.items()}
    found: list[float] = []
    for name, value in by_name.items():
        match = _RESET.fullmatch(name)
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
    parts = _DURATION.findall(said)
    if not parts or _DURATION.sub("", said):
        return None
    return sum(float(amount) * _UNIT_S[unit] for amount, unit in parts)


def _until(said: str, headers: Mapping[str, str], now: float) -> float | None:
    """A date means: until then, by the clock of the server that names it."""
    due, here = _moment(said), _moment(headers.get("date", ""))
    return None if due is None else due - (now if here is None else here)


def _moment(said: str) -> float | None:
    try:
        return parsedate_to_datetime(said).timestamp()
    except (ValueError, OverflowError):
        return None
