"""Proofs that a body comes from somebody who knows the secret. Pure."""

import hmac
from collections.abc import Mapping

import msgspec

from talaria.core.secret import Secret
from talaria.platforms.webhook.config import WebhookRoute

TIMESTAMP = "X-Talaria-Timestamp"
SIGNATURE = "X-Talaria-Signature"
GITHUB_SIGNATURE = "X-Hub-Signature-256"
WINDOW_S = 300.0
"""How far the sender's clock may be from ours, either way."""


class Proof(msgspec.Struct, frozen=True):
    """What a request says of itself before its body is read."""

    given: str
    prefix: bytes = b""
    """Signed together with the body."""
    sent_at: float | None = None

    def holds(self, secret: Secret, body: bytes) -> bool:
        expected = _digest(secret, self.prefix + body)
        return hmac.compare_digest(expected.encode(), self.given.encode("utf-8", "surrogateescape"))

    def is_timely(self, now: float) -> bool:
        return self.sent_at is None or abs(now - self.sent_at) <= WINDOW_S


def proof(route: WebhookRoute, headers: Mapping[str, str]) -> Proof | None:
    """None: it has none of the kind that the route asks for."""
    if route.kind == "github":
        signature = headers.get(GITHUB_SIGNATURE, "")
        return Proof(signature.removeprefix("sha256=")) if signature.startswith("sha256=") else None
    timestamp, signature = headers.get(TIMESTAMP, ""), headers.get(SIGNATURE, "")
    is_number = timestamp.isascii() and timestamp.isdigit()
    if not signature.startswith("v1=") or not is_number:
        return None
    return Proof(signature.removeprefix("v1="), f"{timestamp}.".encode(), float(timestamp))


def signed(secret: Secret, body: bytes, now: float) -> dict[str, str]:
    """The headers that go with a body of ours."""
    timestamp = f"{now:.0f}"
    return {TIMESTAMP: timestamp, SIGNATURE: f"v1={_digest(secret, f'{timestamp}.'.encode() + body)}"}


def _digest(secret: Secret, content: bytes) -> str:
    return hmac.digest(secret.reveal().encode(), content, "sha256").hex()
