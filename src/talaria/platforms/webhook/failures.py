"""What it means when an answer is not taken by whom it is for. Pure.

The receiver was asked to know a message by its key, but only what it surely has not seen is called `NotTaken`.
"""

import math
from email.utils import parsedate_to_datetime

from talaria.model.errors import CertificateRefused, ProviderFailure
from talaria.net import tls
from talaria.platforms.base import AccessLost, NotTaken, PlatformFailure, Rejected, Unsure

with tls.certificates_unread():
    import aiohttp

_NEVER_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)


def unanswered(route: str, fault: ProviderFailure) -> NotTaken | Unsure:
    if isinstance(fault, CertificateRefused) or isinstance(fault.__cause__, _NEVER_SENT):
        return NotTaken(f"The webhook route {route} cannot be reached: {fault}")
    return Unsure(f"The webhook route {route} did not answer: {fault}")


def refused(route: str, status: int, retry_after: str, now: float) -> PlatformFailure:
    said = f"The reply_url of the webhook route {route} answered with {status}."
    wait_s = _seconds(retry_after, now)
    match status:
        case 410:
            return AccessLost(said)
        case 408 | 425 | 429:
            return NotTaken(said, retry_after_s=wait_s)
        case 503 if wait_s is not None:
            return NotTaken(said, retry_after_s=wait_s)
        case _ if status >= 500:
            return Unsure(said)
        case _ if status < 400:
            return Rejected(f"{said} It must be the final address: nothing is sent on to another.")
        case _:
            return Rejected(said)


def _seconds(retry_after: str, now: float) -> float | None:
    try:
        seconds = float(retry_after)
    except ValueError:
        seconds = _until(retry_after, now)
    return max(0.0, seconds) if seconds is not None and math.isfinite(seconds) else None


def _until(date: str, now: float) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() - now
    except (ValueError, OverflowError):
        return None
