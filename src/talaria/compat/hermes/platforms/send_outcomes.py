"""What an adapter reports about a message that it should send, in our terms: sent, or which failure. Pure.

Adapters mostly know no more than the text of an exception. So the text decides what was surely not taken (there was no
connection) and what may have been (it broke off, or timed out).
"""

from collections.abc import Sequence
from typing import Any

from talaria.compat.hermes.aliases.hermes_agent import redact_sensitive_text
from talaria.core.plugin_calls import PluginError, contain
from talaria.core.text import as_text
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
    """What adapters call this kind of failure."""
    said = words.lower()
    return next((kind for kind, parts in _KINDS if any(part in said for part in parts)), "unknown")


def read_sent_id(result: object, key: str, label: str, secrets: Sequence[str] = ()) -> SentId:
    """Our own key if the adapter does not give the message an id. Raises what `Platform.send` may."""
    try:
        return contain(lambda: _read(result, key, label, secrets))
    except PluginError as fault:
        if isinstance(fault.__cause__, PlatformFailure):
            raise fault.__cause__ from None
        raise Unsure(f"The answer of {label} cannot be read: it {fault}.") from fault


def _read(result: object, key: str, label: str, secrets: Sequence[str]) -> SentId:
    if not hasattr(result, "success"):
        raise Unsure(f"{label} does not say whether it was sent.")
    if getattr(result, "success", False):
        known_as = getattr(result, "message_id", None)
        return SentId(key if known_as in (None, "") else as_text(known_as))
    error = as_text(getattr(result, "error", None) or "")
    kind = as_text(getattr(result, "error_kind", None) or "") or kind_of(error)
    said = f": {to_safe_line(error, secrets)}" if error else ""
    wait: Any = getattr(result, "retry_after", None)
    is_wait = isinstance(wait, int | float) and not isinstance(wait, bool) and 0 <= wait < float("inf")
    if getattr(result, "retryable", False) or is_wait or kind in ("transient", "rate_limited"):
        raise NotTaken(f"{label} did not take it{said}.", retry_after_s=float(wait) if is_wait else None)
    if kind == "forbidden":
        raise AccessLost(f"{label} does not let us write there{said}.")
    if kind == "unknown" and any(part in error.lower() for part in _MAYBE_TAKEN):
        raise Unsure(f"{label} may have taken it{said}.")
    raise Rejected(f"{label} refused it{said}.")


def to_safe_line(words: str, secrets: Sequence[str] = ()) -> str:
    """On one line, without these secrets and without what looks like one."""
    plain = redact_sensitive_text(redact_secrets(words, secrets))
    return " ".join(plain.split())[:_MAX_SAID_CHARS].rstrip(".")
