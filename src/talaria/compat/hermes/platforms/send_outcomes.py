"""What an adapter says of a message that it should send, as we say it: sent, or which failure. Pure.

Adapters mostly know no more than the words of an exception. So the words decide what was surely not taken (the
connection never stood) and what may have been (it was cut, or fell silent).
"""

from collections.abc import Sequence

from talaria.compat.hermes.aliases.agent_redact import redact_sensitive_text
from talaria.core.plugin_calls import PluginError, as_text, contain
from talaria.platforms.base import AccessLost, NotTaken, PlatformFailure, Rejected, SentId, Unsure
from talaria.providers.provider_failures import redact_secrets

_MAX_SAID_CHARS = 300
_KINDS = (
    ("too_long", ("too long", "too_long")),
    ("bad_format", ("parse entit", "unsupported start tag", "can't find end")),
    ("forbidden", ("forbidden", "blocked by the user", "bot was blocked", "deactivated", "not a member", "no rights")),
    ("not_found", ("chat not found", "thread not found", "not found", "topic_deleted", "message_id_invalid")),
    ("rate_limited", ("flood", "too many requests", "retry after", "rate limit")),
    ("transient", ("connecttimeout", "connection refused", "connectionrefused", "connecterror", "cannot connect")),
)
_MAYBE_TAKEN = (
    *("timed out", "timeout", "connection reset", "connectionreset", "broken pipe", "disconnected", "eoferror"),
    *("connectionerror", "network", "closing transport"),
)


def kind_of(words: str) -> str:
    """As adapters name kinds of failures."""
    said = words.lower()
    return next((kind for kind, signs in _KINDS if any(sign in said for sign in signs)), "unknown")


def read_sent_id(result: object, key: str, label: str, secrets: Sequence[str] = ()) -> SentId:
    """Raises what `Platform.send` may. A message whose name the adapter does not tell is called by our own key."""
    try:
        return contain(lambda: _read(result, key, label, secrets))
    except PluginError as fault:
        if isinstance(fault.__cause__, PlatformFailure):
            raise fault.__cause__ from None
        raise Unsure(f"What {label} answered cannot be read: it {fault}.") from fault


def _read(result: object, key: str, label: str, secrets: Sequence[str]) -> SentId:
    if not hasattr(result, "success"):
        raise Unsure(f"{label} does not say whether it was sent.")
    if not getattr(result, "success", False):
        raise _failure(result, label, secrets)
    known_as = getattr(result, "message_id", None)
    return SentId(key if known_as in (None, "") else as_text(known_as))


def _failure(result: object, label: str, secrets: Sequence[str]) -> PlatformFailure:
    error = as_text(getattr(result, "error", None) or "")
    kind = as_text(getattr(result, "error_kind", None) or "") or kind_of(error)
    said = f": {to_safe_line(error, secrets)}" if error else ""
    later = _seconds(getattr(result, "retry_after", None))
    if getattr(result, "retryable", False) or later is not None or kind in ("transient", "rate_limited"):
        return NotTaken(f"{label} did not take it{said}.", retry_after_s=later)
    if kind == "forbidden":
        return AccessLost(f"{label} does not let us speak there{said}.")
    if kind == "unknown" and any(sign in error.lower() for sign in _MAYBE_TAKEN):
        return Unsure(f"{label} may have taken it{said}.")
    return Rejected(f"{label} refused it{said}.")


def to_safe_line(words: str, secrets: Sequence[str] = ()) -> str:
    """On one line, and without secrets: these, and those that can be known by their looks."""
    plain = redact_sensitive_text(redact_secrets(words, secrets))
    return " ".join(plain.split())[:_MAX_SAID_CHARS].rstrip(".")


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        return None
    return float(value)
