"""Which values of the environment and of the settings nobody may be shown."""

from pathlib import Path
from typing import Any

import pytest

from talaria.config.load import decode
from talaria.config.schema import Config
from talaria.config.secrets import find_secrets

KEY = "4fT9xQz7WmB2kLpR8sVd"


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY",
        "OPENAI_API_KEY_2",
        "KEY",
        "MyApiKey",
        "GITHUB_TOKEN",
        "X_TOKENS",
        "SLACK_SIGNING_SECRET",
        "DB_PASSWORD",
        "PGPASSWORD",
        "MYSQL_PWD",
        "SSHPASS",
        "LDAP_PASS",
        "BORG_PASSPHRASE",
        "ADMIN_PASSWD",
        "GH_PAT",
        "NPM_AUTH",
        "SERVICE_CREDENTIALS",
        "SESSION_COOKIE",
    ],
)
def test_a_name_tells_that_its_value_is_secret(name: str) -> None:
    assert find_secrets({name: "blue whale"}, Config()) == {"blue whale"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MONKEY", "banana-banana"),
        ("KEYBOARD_LAYOUT", "de-latin1-nodeadkeys"),
        ("TOKENIZERS_PARALLELISM", "false-false"),
        ("COMPASS", "north-by-northwest"),
        ("TELEGRAM_ALLOWED_USERS", "alice,robert"),
        ("XDG_SESSION_ID", "session-0001"),
        ("SSH_PUBLIC_KEY", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA"),
        ("SSH_AUTH_SOCK", "/run/user/1000/keyring/ssh"),
        ("GPG_AGENT_INFO", "/run/user/1000/gnupg/S.gpg-agent:0:1"),
        ("SSH_KEY", "/home/me/.ssh/id_ed25519"),
        ("SSH_KEY", "~/.ssh/id_ed25519"),
        ("SSH_KEY", "../keys/id_ed25519"),
        ("SSH_KEY", "/Users/Me/Library/Keys/Id2026"),
        ("SSH_KEY", r"C:\Users\Me\id_ed25519"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/home/me/gcloud.json"),
        ("PWD", "/work/somewhere"),
        ("MAX_TOKENS", "200000000"),
        ("MAX_TOKENS", "200_000.50"),
        ("AUTH", "disabled"),
        ("OPENAI_API_KEY", "sk-no-key-required"),
        ("OPENAI_API_KEY", "short"),
        ("OPENAI_API_KEY", ""),
        ("TOKEN_URL", "https://auth.example.org/token"),
        ("AUTH_TOKEN", "https://auth.example.org/token"),
        ("TOKEN_LIFETIME", "three hundred seconds"),
        ("DATABASE_URL", "postgres://localhost:5432/app"),
        ("DATABASE_URL", "postgres://somebody@localhost/app"),
        ("DATABASE_URL", "postgres://postgres:postgres@localhost/app"),
        ("DATABASE_URL", "postgres://somebody:somebody@localhost/app"),
    ],
)
def test_what_only_looks_like_a_secret_is_none(name: str, value: str) -> None:
    assert find_secrets({name: value}, Config()) == frozenset()


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("postgres://app:S3cret-pass@db/app", {"S3cret-pass"}),
        ("redis://:S3cret-pass@cache:6379", {"S3cret-pass"}),
        ("http://me:p%40ss%20word@proxy:3128", {"p%40ss%20word", "p@ss word"}),
        (f"https://{KEY}@sentry.example.org/1", {KEY}),
        ("a=postgres://x:S3cret-one@h b=postgres://x:S3cret-two@h", {"S3cret-one", "S3cret-two"}),
    ],
)
def test_a_password_in_an_address_is_secret_whatever_its_name(value: str, found: set[str]) -> None:
    assert find_secrets({"PLACE": value}, Config()) == found


@pytest.mark.parametrize("name", ["AWS_BEARER_TOKEN_BEDROCK", "API_KEY_OF_MINE", "SECRET_KEY_BASE"])
def test_a_name_that_hints_is_believed_if_the_value_looks_like_a_key(name: str) -> None:
    assert find_secrets({name: KEY}, Config()) == {KEY}
    assert find_secrets({name: "0123456789abcdef" * 2}, Config()) == {"0123456789abcdef" * 2}
    assert find_secrets({name: "three hundred seconds"}, Config()) == frozenset()


def test_a_key_that_begins_with_a_slash_is_no_path() -> None:
    assert find_secrets({"AWS_SECRET_ACCESS_KEY": "/wJalrXUtnFEMI/K7MDENG"}, Config()) == {"/wJalrXUtnFEMI/K7MDENG"}


def test_each_of_several_is_secret_and_each_line_of_a_key() -> None:
    assert find_secrets({"KEYS": f"{KEY}, {KEY[::-1]}"}, Config()) == {f"{KEY}, {KEY[::-1]}", KEY, KEY[::-1]}
    pem = f"-----BEGIN PRIVATE KEY-----\\n{KEY}\\n-----END PRIVATE KEY-----"
    assert find_secrets({"DEPLOY_KEY": pem}, Config()) == {pem, KEY}


def settings(**document: Any) -> Config:
    return decode(document, Path("config.yaml"))


@pytest.mark.parametrize(
    "document",
    [
        {"model": {"api_key": "blue whale"}},
        {"providers": {"x": {"api_key": "blue whale"}}},
        {"providers": {"x": {"api_keys": ["short", "blue whale"]}}},
        {"providers": {"x": {"headers": {"Authorization": "Bearer blue whale"}}}},
        {"providers": {"x": {"headers": {"X-Api-Key": "blue whale", "X-Title": "Of Talaria"}}}},
        {"fallback_providers": [{"provider": "x", "api_key": "blue whale"}]},
        {"fallback_model": {"provider": "x", "api_key": "blue whale"}},
        {"mcp_servers": {"x": {"command": "c", "env": {"X_TOKEN": "blue whale", "NODE_ENV": "productive"}}}},
        {"mcpServers": {"x": {"url": "http://x/mcp", "headers": {"Cookie": "blue whale"}}}},
        {"plugins": {"entries": {"x": {"deep": [{"apiKey": "blue whale", "mode": "very careful"}]}}}},
        {"model": {"base_url": "http://me:blue%20whale@x/v1"}},
    ],
)
def test_secrets_are_found_anywhere_in_the_settings(document: dict[str, Any]) -> None:
    assert find_secrets({}, settings(**document)) - {"blue%20whale"} == {"blue whale"}


def test_a_setting_of_a_secret_type_counts_under_any_name_if_it_looks_like_a_key() -> None:
    env = {"SERVICE": KEY, "LOG_LEVEL": "debugging", "VERSION": "prompt-caching-2024-07-31"}
    assert find_secrets({}, settings(mcp_servers={"x": {"command": "c", "env": env}})) == {KEY}
