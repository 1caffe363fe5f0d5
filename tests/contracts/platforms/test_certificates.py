"""Each platform trusts whom the system trusts, or `SSL_CERT_FILE` names, and nobody else.

The contexts that aiohttp makes for itself are of no use here: `net/tls.py` keeps it from reading certificates.
"""

import asyncio
import datetime as dt
import ipaddress
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from talaria.core.clock import SystemClock
from talaria.core.secret import decode_secret
from talaria.platforms.base import Kit, Platform, PlatformFailure, PlatformSettings, Refused
from talaria.platforms.discord.config import DiscordSettings
from talaria.platforms.loader import open_platform
from talaria.platforms.matrix.config import MatrixSettings
from talaria.platforms.slack.config import SlackSettings
from talaria.platforms.telegram.config import TelegramSettings
from talaria.testing.patience import PATIENCE_S

SETTINGS: dict[str, Callable[[str], tuple[type[PlatformSettings], dict[str, Any]]]] = {
    "discord": lambda url: (DiscordSettings, {"token": "t", "api_url": url}),
    "matrix": lambda url: (
        MatrixSettings,
        {"homeserver": url, "user_id": "@bot:server.org", "access_token": "t"},
    ),
    "slack": lambda url: (SlackSettings, {"bot_token": "xoxb-1", "app_token": "xapp-1", "api_url": f"{url}/"}),
    "telegram": lambda url: (TelegramSettings, {"token": "1:a", "base_url": url}),
}


@dataclass
class SecureServer:
    url: str = ""
    certificate: Path = Path()
    asked: list[str] = field(default_factory=list[str])
    answers: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """By path; everything else is refused."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        if request.path in self.answers:
            return web.json_response({"ok": True, **self.answers[request.path]})
        if request.path != "/line":
            return web.json_response({"ok": False, "error": "invalid_auth"}, status=401)
        line = web.WebSocketResponse()
        await line.prepare(request)
        await line.send_json({"type": "disconnect", "reason": "link_disabled"})
        return line


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 127.0.0.1, and of nobody whom the system knows; with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = tmp_path_factory.mktemp("tls") / "certificate.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return pem


@pytest.fixture
async def server(certificate: Path) -> AsyncIterator[SecureServer]:
    running = SecureServer(certificate=certificate)
    app = web.Application()
    app.router.add_route("*", "/{any:.*}", running.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    running.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    yield running
    await runner.cleanup()


def opening(platform: str, server: SecureServer, home: Path) -> AbstractAsyncContextManager[Platform]:
    form, given = SETTINGS[platform](server.url)
    settings = msgspec.convert(given, form, dec_hook=decode_secret)
    return open_platform(platform, settings, Kit(home, SystemClock(), lambda _: True))


@pytest.mark.parametrize("platform", SETTINGS)
async def test_a_certificate_that_the_environment_vouches_for_is_trusted(
    server: SecureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(server.certificate))
    with pytest.raises(PlatformFailure) as refused:
        async with asyncio.timeout(PATIENCE_S), opening(platform, server, tmp_path):
            pass
    assert server.asked, refused.value


@pytest.mark.parametrize("platform", SETTINGS)
async def test_a_certificate_of_a_stranger_is_refused_with_what_to_do(
    server: SecureServer, tmp_path: Path, platform: str
) -> None:
    with pytest.raises(Refused, match=r"certificate cannot be verified.* SSL_CERT_FILE"):
        async with asyncio.timeout(PATIENCE_S), opening(platform, server, tmp_path):
            pass
    assert server.asked == []


async def test_the_line_to_slack_is_opened_with_the_same_trust(
    server: SecureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(server.certificate))
    server.answers["/auth.test"] = {"team_id": "T1", "user_id": "U1"}
    server.answers["/apps.connections.open"] = {"url": server.url.replace("https", "wss") + "/line"}
    with pytest.raises(Refused, match="Socket Mode is turned off"):
        async with asyncio.timeout(PATIENCE_S), opening("slack", server, tmp_path):
            pass
