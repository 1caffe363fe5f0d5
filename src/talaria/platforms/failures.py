"""What failures mean on every service alike. Pure.

What matters most: a refusal is an answer, so nothing was done; silence after the request went out leaves it open.
"""

import math
import os

from talaria.net import tls
from talaria.platforms.base import NotTaken, PlatformFailure, Refused, Unsure

with tls.skip_certificates():
    import aiohttp

NEVER_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)
"""Raised before the request is written."""
_MAX_QUOTE_CHARS = 300


def silence(service: str, fault: Exception) -> PlatformFailure:
    """Of a request that got no answer. `service` is its name in the middle of a sentence."""
    named = service[:1].upper() + service[1:]
    if isinstance(fault, aiohttp.ClientConnectorCertificateError):
        return Refused(
            f"{named}'s certificate cannot be verified. If it, or your network, has its own CA, set SSL_CERT_FILE."
        )
    if isinstance(fault, (*NEVER_SENT, aiohttp.InvalidURL)) or _is_unwritten(fault):
        return NotTaken(f"{named} cannot be reached: {_reason(fault)}.")
    if isinstance(fault, TimeoutError):
        return Unsure(f"{named} did not answer in time.")
    return Unsure(f"The connection to {service} broke before its answer.")


def _is_unwritten(fault: Exception) -> bool:
    """An old connection that the other side has closed breaks before the request is whole."""
    return "closing transport" in str(fault.__cause__)


def _reason(fault: Exception) -> str:
    if isinstance(fault, TimeoutError):
        return "it took too long"
    if isinstance(fault, aiohttp.InvalidURL):
        return "that is not an address"
    if isinstance(fault, OSError) and fault.errno is not None and fault.errno > 0:
        return os.strerror(fault.errno).lower()
    return "the connection was cut"


def harmless(failure: PlatformFailure) -> PlatformFailure:
    """Of a request that changes nothing that anybody sees: there is nothing to be unsure of."""
    return NotTaken(str(failure)) if isinstance(failure, Unsure) else failure


def pause_s(retry_after: str) -> float | None:
    """As the header says it in seconds."""
    try:
        seconds = float(retry_after)
    except ValueError:
        return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def format_quote(code: str, words: str) -> str:
    """What the service said, on one line."""
    flat = " ".join("".join(sign if sign.isprintable() else " " for sign in words).split())
    return f"{code}: {flat[:_MAX_QUOTE_CHARS]}" if flat else code
