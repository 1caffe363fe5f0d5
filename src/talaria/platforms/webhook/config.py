"""The settings under `gateway.platforms.webhook`, their validation, and the signatures. Pure."""

import hmac
import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from talaria.core.errors import BadConfig
from talaria.core.secret import NO_SECRET, Secret
from talaria.platforms.base import PlatformSettings

MIN_SECRET_CHARS = 16
TIMESTAMP = "X-Talaria-Timestamp"
SIGNATURE = "X-Talaria-Signature"
GITHUB_SIGNATURE = "X-Hub-Signature-256"
WINDOW_S = 300.0
"""How far the sender's clock may differ from ours."""
_WHERE = "gateway.platforms.webhook"
_ROUTE = re.compile(r"[\w-]{1,64}", re.ASCII)


class WebhookRoute(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One program that may speak to the agent, under `/webhook/NAME`."""

    reply_url: str
    """Where answers are posted. Must be https, except for this machine and `http_hosts`."""
    secret: Secret = NO_SECRET
    """Instead of the platform's secret, which is valid for every route that has none of its own."""
    user: str = ""
    """The program's name. Its id is the name of the route."""
    kind: Literal["message", "github"] = "message"
    """`github`: the requests are GitHub's events, with GitHub's signature."""
    prompt: str = "This happened on GitHub:"
    """Put before each event for the model."""


class WebhookSettings(PlatformSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    secret: Secret = NO_SECRET
    routes: dict[str, WebhookRoute] = msgspec.field(default_factory=dict[str, WebhookRoute])
    listen_host: str = "127.0.0.1"
    listen_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8644
    behind_proxy: bool = False
    """A proxy with a certificate forwards requests to us, so we may listen on public addresses."""
    http_hosts: tuple[str, ...] = ()
    """Hosts that answers may be sent to without TLS."""

    def __post_init__(self) -> None:
        """Every route is allowed, because its secret proves who is speaking."""
        allowed = dict.fromkeys((*self.allowed_users, *self.routes))
        msgspec.structs.force_setattr(self, "allowed_users", tuple(allowed))

    @property
    def admins(self) -> tuple[str, ...]:
        """None unless listed, because programs often forward text from strangers."""
        return self.admin_users

    def secret_of(self, route: str) -> Secret:
        return self.routes[route].secret or self.secret


SETTINGS = WebhookSettings


def check(settings: WebhookSettings) -> None:
    """Raises `BadConfig`."""
    if not settings.routes:
        raise BadConfig(f"{_WHERE}.routes is empty: add a route for each program that may talk to the agent.")
    if not settings.behind_proxy and not _is_this_machine(settings.listen_host):
        raise BadConfig(
            f"{_WHERE}.listen_host is {settings.listen_host!r}, which others can reach without TLS. Put a proxy with "
            "a certificate in front of it and set behind_proxy, or listen on 127.0.0.1."
        )
    _check_secret("secret (WEBHOOK_SECRET)", settings.secret)
    for name, route in settings.routes.items():
        if not _ROUTE.fullmatch(name):
            raise BadConfig(f"{_WHERE}.routes has {name!r}: use up to 64 letters, digits, _ or -.")
        if route.secret != NO_SECRET:
            _check_secret(f"routes.{name}.secret", route.secret)
        if not _may_reply_to(route.reply_url, settings.http_hosts):
            raise BadConfig(
                f"{_WHERE}.routes.{name}.reply_url must begin with https://, unless its host is listed in http_hosts."
            )
    for id in (*settings.allowed_users, *settings.admin_users, *filter(None, [settings.home_channel])):
        if id.partition(":")[0].partition("/")[0] not in settings.routes:
            raise BadConfig(f"{_WHERE} mentions {id!r}, which is not one of its routes.")


def _check_secret(name: str, secret: Secret) -> None:
    if len(secret.reveal().strip()) < MIN_SECRET_CHARS:
        raise BadConfig(
            f"{_WHERE}.{name} must have at least {MIN_SECRET_CHARS} characters; `openssl rand -hex 32` makes one."
        )


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


class Proof(msgspec.Struct, frozen=True):
    """The signature of a request, known before its body is read."""

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
    """None if the headers have no signature of the kind that the route requires."""
    if route.kind == "github":
        signature = headers.get(GITHUB_SIGNATURE, "")
        return Proof(signature.removeprefix("sha256=")) if signature.startswith("sha256=") else None
    timestamp, signature = headers.get(TIMESTAMP, ""), headers.get(SIGNATURE, "")
    is_number = timestamp.isascii() and timestamp.isdigit()
    if not signature.startswith("v1=") or not is_number:
        return None
    return Proof(signature.removeprefix("v1="), f"{timestamp}.".encode(), float(timestamp))


def sign(secret: Secret, body: bytes, now: float) -> dict[str, str]:
    """The headers that prove that a body comes from us."""
    timestamp = f"{now:.0f}"
    return {TIMESTAMP: timestamp, SIGNATURE: f"v1={_digest(secret, f'{timestamp}.'.encode() + body)}"}


def _digest(secret: Secret, content: bytes) -> str:
    return hmac.digest(secret.reveal().encode(), content, "sha256").hex()
