"""What it means when an answer is not taken by whom it is for. Pure.

The receiver was asked to know a message by its key, but only what it surely has not seen is called `NotTaken`.
"""

from email.utils import parsedate_to_datetime

from talaria.core.errors import CertificateRefused, ProviderFailure
from talaria.platforms.base import AccessLost, NotTaken, PlatformFailure, Rejected, Unsure
from talaria.platforms.failures import NEVER_SENT, pause_s


def unanswered(route: str, fault: ProviderFailure) -> NotTaken | Unsure:
    if isinstance(fault, CertificateRefused) or isinstance(fault.__cause__, NEVER_SENT):
        return NotTaken(f"The webhook route {route} cannot be reached: {fault}")
    return Unsure(f"The webhook route {route} did not answer: {fault}")


def refused(route: str, status: int, retry_after: str, now: float) -> PlatformFailure:
    said = f"The reply_url of the webhook route {route} answered with {status}."
    wait_s = _wait_s(retry_after, now)
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


def _wait_s(retry_after: str, now: float) -> float | None:
    """In seconds, or until a date."""
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - now)
    except (ValueError, OverflowError):
        return pause_s(retry_after)
