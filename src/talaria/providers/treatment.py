"""What may be done about each kind of failure. The table; `agent/retry.py` decides by it."""

from typing import Literal

import msgspec

from talaria.core.errors import FailureKind


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
