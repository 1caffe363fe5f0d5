"""Answers → signed POSTs. Each is sent once; the receiver knows it by its key, also when it is sent again.

What it means when an answer is not taken by whom it is for. Pure.

The receiver was asked to know a message by its key, but only what it surely has not seen is called `NotTaken`.
"""

from email.utils import parsedate_to_datetime

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import BadConfig, CertificateRefused, ProviderFailure
from talaria.net.client import HttpClient, Response
from talaria.net.web_settings import Timeouts
from talaria.platforms.base import AccessLost, NotTaken, Outbound, PlatformFailure, Refused, Rejected, SentId, Unsure
from talaria.platforms.http_sessions import NEVER_SENT, parse_retry_after
from talaria.platforms.webhook import config
from talaria.platforms.webhook.config import WebhookSettings


def to_transport_failure(route: str, fault: ProviderFailure) -> NotTaken | Unsure:
    if isinstance(fault, CertificateRefused) or isinstance(fault.__cause__, NEVER_SENT):
        return NotTaken(f"The webhook route {route} cannot be reached: {fault}")
    return Unsure(f"The webhook route {route} did not answer: {fault}")


def to_status_failure(route: str, status: int, retry_after: str, now: float) -> PlatformFailure:
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
        return parse_retry_after(retry_after)


_TIMEOUTS = Timeouts(connect_s=10.0, first_byte_s=30.0, chunk_s=10.0, total_s=60.0)
_MAX_ANSWER_BYTES = 64 << 10


class _Posted(msgspec.Struct, frozen=True):
    chat: str
    """As the route calls it."""
    thread: str
    text: str
    """Markdown."""
    key: str
    """Whoever has seen it must not act on it again."""
    reply_to: str


class _Answer(msgspec.Struct):
    id: str | int = ""


class WebhookReplies:
    def __init__(self, settings: WebhookSettings, client: HttpClient, clock: Clock) -> None:
        self._settings = settings
        self._client = client
        self._clock = clock

    async def send(self, message: Outbound) -> SentId:
        name, _, chat = message.where.chat.partition("/")
        route = self._settings.routes.get(name)
        if route is None:
            raise AccessLost(f"There is no webhook route {name} any more.")
        if message.file is not None:
            raise Rejected("A webhook does not take files.")
        posted = _Posted(chat or name, message.where.thread, message.text, message.key, message.reply_to)
        return await self._post(name, route.reply_url, message.key, msgspec.json.encode(posted))

    async def _post(self, route: str, url: str, key: str, body: bytes) -> SentId:
        proof = config.sign(self._settings.secret_of(route), body, self._clock.now())
        headers = {"Content-Type": "application/json", "Idempotency-Key": key, **proof}
        try:
            async with self._client.post(url, body=body, headers=headers, timeouts=_TIMEOUTS) as response:
                if not 200 <= response.status < 300:
                    retry_after = response.headers.get("Retry-After", "")
                    raise to_status_failure(route, response.status, retry_after, self._clock.now())
                return SentId(await _id_in(response) or key)
        except ProviderFailure as fault:
            raise to_transport_failure(route, fault) from fault
        except BadConfig as fault:
            raise Refused(str(fault)) from fault


async def _id_in(response: Response) -> str:
    """What the receiver calls it, if it says so. It has the message, whatever comes now."""
    try:
        return str(msgspec.json.decode(await response.read(_MAX_ANSWER_BYTES), type=_Answer).id)
    except (ProviderFailure, ValueError, RecursionError):
        return ""
