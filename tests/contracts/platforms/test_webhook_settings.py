"""The settings of webhooks: what would be unsafe is refused in a sentence that says which setting it is."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from talaria.core.errors import BadConfig
from talaria.core.secret import Secret, decode_secret
from talaria.platforms.base import Kit, PlatformManifest
from talaria.platforms.webhook import platform as webhook
from talaria.platforms.webhook.config import WebhookSettings, check
from talaria.testing.manual_clock import ManualClock

GOOD: dict[str, Any] = {"secret": "s" * 16, "routes": {"ci": {"reply_url": "https://example.org/x"}}}


def settings(**changes: Any) -> WebhookSettings:
    return msgspec.convert({**GOOD, **changes}, WebhookSettings, dec_hook=decode_secret)


def route(**changes: Any) -> WebhookSettings:
    return settings(routes={"ci": {**GOOD["routes"]["ci"], **changes}})


def test_as_little_as_can_be_is_enough() -> None:
    check(settings())
    assert settings().listen_host == "127.0.0.1"


def test_a_route_is_allowed_because_its_secret_proves_who_speaks() -> None:
    assert settings().allowed_users == ("ci",)
    assert settings(allowed_users=["ci"]).allowed_users == ("ci",)


def test_a_route_is_an_admin_only_if_it_is_named() -> None:
    """On other platforms all who are allowed are, where nobody is named."""
    assert settings().admins == ()
    assert settings(admin_users=["ci"]).admins == ("ci",)


WRONG: dict[str, tuple[WebhookSettings, str]] = {
    "no secret": (settings(secret=""), r"webhook\.secret .*16 characters"),
    "a blank secret": (settings(secret=" " * 40), r"webhook\.secret .*16 characters"),
    "a short secret": (settings(secret="s" * 15), r"webhook\.secret .*16 characters"),
    "a padded secret": (settings(secret="s" + " " * 40), r"webhook\.secret .*16 characters"),
    "a blank secret of a route": (route(secret=" " * 40), r"routes\.ci\.secret .*16 characters"),
    "a short secret of a route": (route(secret="short"), r"routes\.ci\.secret .*16 characters"),
    "no routes": (settings(routes={}), "routes is empty"),
    "a route with a slash": (settings(routes={"a/b": GOOD["routes"]["ci"]}), "'a/b'"),
    "a route without a name": (settings(routes={"": GOOD["routes"]["ci"]}), "''"),
    "all addresses": (settings(listen_host="0.0.0.0"), "behind_proxy"),
    "all addresses, in short": (settings(listen_host=""), "behind_proxy"),
    "an address of the house": (settings(listen_host="192.168.1.2"), "behind_proxy"),
    "a name": (settings(listen_host="example.org"), "behind_proxy"),
    "answers in the clear": (route(reply_url="http://example.org/x"), r"ci\.reply_url must begin with https"),
    "answers to a file": (route(reply_url="file:///etc/passwd"), r"ci\.reply_url"),
    "answers to nowhere": (route(reply_url="https://"), r"ci\.reply_url"),
    "answers to no port": (route(reply_url="https://example.org:x/"), r"ci\.reply_url"),
    "no answers": (route(reply_url=""), r"ci\.reply_url"),
    "an admin who is no route": (settings(admin_users=["1001"]), "'1001'"),
    "a person who is no route": (settings(allowed_users=["1001"]), "'1001'"),
    "a home that is no route": (settings(home_channel="desk:1"), "'desk:1'"),
}


@pytest.mark.parametrize(("wrong", "sentence"), WRONG.values(), ids=WRONG.keys())
async def test_what_is_unsafe_or_wrong_does_not_start(wrong: WebhookSettings, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=sentence):
        async with webhook.open(wrong, Kit(tmp_path, ManualClock(), lambda _: True)):
            pass


@pytest.mark.parametrize(
    "right",
    [
        settings(listen_host="::1"),
        settings(listen_host="localhost"),
        settings(listen_host="127.0.0.2"),
        settings(listen_host="0.0.0.0", behind_proxy=True),
        settings(admin_users=["ci"], home_channel="ci/deploys:1"),
        route(reply_url="http://127.0.0.1:9/x"),
        route(reply_url="http://[::1]:9/x"),
        settings(
            http_hosts=["box.lan"], routes={"ci": {"reply_url": "http://box.lan/x", "secret": "t" * 16, "user": "CI"}}
        ),
    ],
)
def test_what_is_safe_is_taken(right: WebhookSettings) -> None:
    check(right)


def test_a_misspelt_setting_is_no_setting() -> None:
    with pytest.raises(msgspec.ValidationError, match="behind_proxi"):
        settings(behind_proxi=True)
    with pytest.raises(msgspec.ValidationError, match="reply"):
        route(reply="https://example.org")


def test_a_secret_is_not_shown() -> None:
    assert "s" * 16 not in repr(settings())
    assert "t" * 16 not in repr(route(secret="t" * 16))


def test_the_manifest_tells_what_is_needed() -> None:
    file = Path(webhook.__file__).parent / "manifest.toml"
    manifest = msgspec.toml.decode(file.read_bytes(), type=PlatformManifest)
    assert manifest.name == "webhook"
    assert dict(manifest.environment) == {"WEBHOOK_SECRET": "secret"}
    fields = {field.name: field.type for field in msgspec.structs.fields(WebhookSettings)}
    assert {*manifest.required, *manifest.environment.values()} <= {*fields}
    assert fields["secret"] is Secret
