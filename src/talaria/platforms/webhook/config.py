"""The settings of `gateway.platforms.webhook`, and what is wrong with them.

Proofs that a body comes from somebody who knows the secret. Pure.
"""

import hmac
import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from talaria.core.errors import BadConfig
from talaria.core.secret import NO_SECRET, Secret
from talaria.platforms.base import PlatformSettings

MIN_SECRET_CHARS = 16
_WHERE = "gateway.platforms.webhook"
_ROUTE = re.compile(r"[\w-]{1,64}", re.ASCII)


class WebhookRoute(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One program that may speak to the agent, under `/webhook/NAME`."""

    reply_url: str
    """Where answers are posted to. https, except for this machine and `http_hosts`."""
    secret: Secret = NO_SECRET
    """In place of the platform's: whoever knows that one can speak as every route that has none of its own."""
    user: str = ""
    """What it is called. Its id is the name of the route."""
    kind: Literal["message", "github"] = "message"
    """`github`: what comes are GitHub's events, signed as GitHub does."""
    prompt: str = "This happened on GitHub:"
    """What the model reads before an event."""


class WebhookSettings(PlatformSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    secret: Secret = NO_SECRET
    routes: dict[str, WebhookRoute] = msgspec.field(default_factory=dict[str, WebhookRoute])
    listen_host: str = "127.0.0.1"
    listen_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8644
    behind_proxy: bool = False
    """Somebody with a certificate stands before us, so that we may listen on other addresses than this machine's."""
    http_hosts: tuple[str, ...] = ()
    """Hosts that answers may go to without TLS."""

    def __post_init__(self) -> None:
        """A route is allowed because it is there: its secret proves who speaks."""
        allowed = dict.fromkeys((*self.allowed_users, *self.routes))
        msgspec.structs.force_setattr(self, "allowed_users", tuple(allowed))

    @property
    def admins(self) -> tuple[str, ...]:
        """Programs, and what they pass on is often written by strangers: none, unless it is said."""
        return self.admin_users

    def secret_of(self, route: str) -> Secret:
        return self.routes[route].secret or self.secret


SETTINGS = WebhookSettings


def check(settings: WebhookSettings) -> None:
    """Raises `BadConfig`."""
    for complaint in _complaints(settings):
        raise BadConfig(complaint)


def _complaints(settings: WebhookSettings) -> Iterator[str]:
    if not settings.routes:
        yield f"{_WHERE}.routes names nobody who may speak."
    if not settings.behind_proxy and not _is_this_machine(settings.listen_host):
        yield (
            f"{_WHERE}.listen_host is {settings.listen_host!r}, which others can reach without TLS. Put a proxy that "
            "has a certificate before it and set behind_proxy, or listen on 127.0.0.1."
        )
    yield from _weak("secret (WEBHOOK_SECRET)", settings.secret)
    for name, route in settings.routes.items():
        if not _ROUTE.fullmatch(name):
            yield f"{_WHERE}.routes has {name!r}: use up to 64 letters, digits, _ or -."
        if route.secret != NO_SECRET:
            yield from _weak(f"routes.{name}.secret", route.secret)
        if not _may_reply_to(route.reply_url, settings.http_hosts):
            yield f"{_WHERE}.routes.{name}.reply_url must begin with https://, or its host be listed in http_hosts."
    for who in (*settings.allowed_users, *settings.admin_users, *filter(None, [settings.home_channel])):
        if who.partition(":")[0].partition("/")[0] not in settings.routes:
            yield f"{_WHERE} speaks of {who!r}, which is not among its routes."


def _weak(name: str, secret: Secret) -> Iterator[str]:
    if len(secret.reveal().strip()) < MIN_SECRET_CHARS:
        yield f"{_WHERE}.{name} must have at least {MIN_SECRET_CHARS} characters; `openssl rand -hex 32` makes some."


def _may_reply_to(url: str, http_hosts: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return False
    is_plain = parts.scheme == "http" and (_is_this_machine(host) or host in http_hosts)
    return bool(host) and (parts.scheme == "https" or is_plain)


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


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


def sign(secret: Secret, body: bytes, now: float) -> dict[str, str]:
    """The headers that go with a body of ours."""
    timestamp = f"{now:.0f}"
    return {TIMESTAMP: timestamp, SIGNATURE: f"v1={_digest(secret, f'{timestamp}.'.encode() + body)}"}


def _digest(secret: Secret, content: bytes) -> str:
    return hmac.digest(secret.reveal().encode(), content, "sha256").hex()
