"""The settings under `api`, their validation, and what Hermes' variables say instead."""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from talaria.core.errors import BadConfig
from talaria.core.secret import NO_SECRET, Secret

MIN_KEY_CHARS = 16
DEFAULT_PORT = 8642
VARIABLES = tuple(f"API_SERVER_{name}" for name in ("ENABLED", "HOST", "PORT", "KEY", "CORS_ORIGINS"))
"""What is read of the environment."""
_YES = frozenset({"1", "true", "yes", "on"})
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


class ApiSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The HTTP API of the gateway."""

    enabled: bool = False
    """Whether `talaria gateway run` serves it. `talaria api` always does."""
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = DEFAULT_PORT
    hosts: tuple[str, ...] = ()
    """Other names by which clients reach it, such as `agent.example.org`. Requests for any other name are refused."""
    public_url: str = ""
    """Under which address people reach it, such as `https://agent.example.org`, for links to files. Otherwise they
    begin as the program's request did."""
    origins: tuple[str, ...] = ()
    """Web pages whose scripts may call it, such as `https://chat.example.org`."""
    behind_proxy: bool = False
    """A proxy with a certificate forwards requests to us, so we may listen on public addresses."""
    tls_cert: str = ""
    """The file of a certificate, to serve https without a proxy."""
    tls_key: str = ""
    key: Secret = NO_SECRET
    """API_SERVER_KEY: a token named `server-key` that may only chat."""
    requests_per_minute: Annotated[int, msgspec.Meta(ge=1)] = 600
    """For each token that has no limit of its own."""

    @property
    def allowed_hosts(self) -> frozenset[str]:
        own = f"[{self.host}]" if ":" in self.host else self.host
        return frozenset(name.lower() for name in (*_LOCAL_NAMES, own, *self.hosts))

    @property
    def is_local(self) -> bool:
        """Only programs on this machine reach it."""
        from ipaddress import ip_address  # noqa: PLC0415  (every start reads this module, few need that one)

        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def scheme(self) -> str:
        return "https" if self.tls_cert else "http"


def read_api_settings(given: ApiSettings, environment: Mapping[str, str]) -> ApiSettings:
    """config.yaml, and API_SERVER_* where that has the default. Raises `BadConfig`."""
    found: dict[str, object] = {}
    if environment.get("API_SERVER_ENABLED", "").lower() in _YES:
        found["enabled"] = True
    if host := environment.get("API_SERVER_HOST"):
        found["host"] = host
    if port := environment.get("API_SERVER_PORT"):
        if not port.isdecimal() or int(port) > 65535:
            raise BadConfig(f"API_SERVER_PORT is {port!r}, which is not a port.")
        found["port"] = int(port)
    if key := environment.get("API_SERVER_KEY"):
        found["key"] = Secret(key)
    if origins := environment.get("API_SERVER_CORS_ORIGINS"):
        found["origins"] = tuple(one.strip() for one in origins.split(",") if one.strip())
    default = ApiSettings()
    wanted = {name: value for name, value in found.items() if getattr(given, name) == getattr(default, name)}
    return msgspec.structs.replace(given, **wanted)


def check_api_settings(settings: ApiSettings) -> None:
    """Raises `BadConfig`."""
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise BadConfig("api.tls_cert and api.tls_key belong together: set both, or neither.")
    if not (settings.tls_cert or settings.behind_proxy or settings.is_local):
        raise BadConfig(
            f"api.host is {settings.host!r}, which others can reach without TLS. Set api.tls_cert and api.tls_key, or "
            "put a proxy with a certificate in front of it and set api.behind_proxy, or listen on 127.0.0.1."
        )
    if settings.key != NO_SECRET and len(settings.key.reveal()) < MIN_KEY_CHARS:
        raise BadConfig(
            f"API_SERVER_KEY must have at least {MIN_KEY_CHARS} characters; `openssl rand -hex 32` makes one."
        )
    if settings.public_url and not settings.public_url.startswith(("http://", "https://")):
        raise BadConfig(f"api.public_url is {settings.public_url!r}; it must begin with https:// or http://.")
    if "*" in settings.origins:
        raise BadConfig("api.origins: '*' would let any web page call it; list the pages.")
