"""What a homeserver's refusals mean. Pure."""

import aiohttp

from talaria.platforms.base import AccessLost, NotTaken, PlatformFailure, Refused, Rejected, Unsure
from talaria.platforms.failures import quoted

TRANSPORT = (aiohttp.ClientError, TimeoutError, OSError)
"""All that a request may raise."""

_LOGGED_OUT = frozenset({"M_UNKNOWN_TOKEN", "M_MISSING_TOKEN"})
_NO_ENTRY = frozenset({
    "M_USER_DEACTIVATED", "M_USER_SUSPENDED", "M_USER_LOCKED", "M_CONSENT_NOT_GIVEN", "M_RESOURCE_LIMIT_EXCEEDED",
})  # fmt: skip


class LoggedOut(Refused):
    """The server does not know our login any more; a password makes a new one."""


class AlreadySo(Rejected):
    """It was done before."""


def refusal(status: int, errcode: str, words: str, retry_after_s: float | None) -> PlatformFailure:
    """Of an answer that is no success."""
    said = quoted(errcode or str(status), words)
    if status == 429 or errcode == "M_LIMIT_EXCEEDED":
        return NotTaken(f"The Matrix server asks to slow down ({said}).", retry_after_s=retry_after_s)
    if errcode in _LOGGED_OUT:
        return LoggedOut(
            f"The Matrix server does not know our login any more ({said}). "
            "Set MATRIX_PASSWORD or a new MATRIX_ACCESS_TOKEN."
        )
    if status == 401 or errcode in _NO_ENTRY:
        return Refused(f"The Matrix server does not let us in ({said}).")
    if status >= 500 or status < 400:  # a success that cannot be read is none
        return Unsure(f"The Matrix server is in trouble ({said}).")
    if errcode == "M_DUPLICATE_ANNOTATION":
        return AlreadySo(f"The Matrix server has this already ({said}).")
    if status == 403:
        return AccessLost(f"The Matrix server does not let us into this room ({said}).")
    return Rejected(f"The Matrix server does not take this ({said}).")
