"""What a homeserver's refusals and silences mean. Pure.

A refusal is an answer, so nothing was done; silence after the request went out, and a server in trouble, leave it open.
"""

import aiohttp

from talaria.platforms.base import AccessLost, NotTaken, PlatformFailure, Refused, Rejected, Unsure

TRANSPORT = (aiohttp.ClientError, TimeoutError, OSError)
"""All that a request may raise."""

_LOGGED_OUT = frozenset({"M_UNKNOWN_TOKEN", "M_MISSING_TOKEN"})
_NO_ENTRY = frozenset({
    "M_USER_DEACTIVATED", "M_USER_SUSPENDED", "M_USER_LOCKED", "M_CONSENT_NOT_GIVEN", "M_RESOURCE_LIMIT_EXCEEDED",
})  # fmt: skip
_MAX_QUOTE_CHARS = 200


class LoggedOut(Refused):
    """The server does not know our login any more; a password makes a new one."""


class AlreadySo(Rejected):
    """It was done before."""


def refusal(status: int, errcode: str, words: str, retry_after_s: float | None) -> PlatformFailure:
    """Of an answer that is no success."""
    said = _quoted(errcode or str(status), words)
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


def silence(fault: Exception) -> PlatformFailure:
    """Of a request that got no answer."""
    if isinstance(fault, aiohttp.ClientConnectorCertificateError):
        return Refused("The Matrix server's certificate cannot be verified. If it has its own CA, set SSL_CERT_FILE.")
    if isinstance(fault, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return NotTaken("The Matrix server cannot be reached.")
    if isinstance(fault, TimeoutError):
        return Unsure("The Matrix server did not answer in time.")
    return Unsure("The connection to the Matrix server broke before its answer.")


def harmless(failure: PlatformFailure) -> PlatformFailure:
    """Of a request that changes nothing that anybody sees: there is nothing to be unsure of."""
    return NotTaken(str(failure)) if isinstance(failure, Unsure) else failure


def _quoted(code: str, words: str) -> str:
    flat = " ".join("".join(sign if sign.isprintable() else " " for sign in words).split())
    return f"{code}: {flat[:_MAX_QUOTE_CHARS]}" if flat else code
