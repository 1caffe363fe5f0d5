"""Tokens of the HTTP API: made, listed and revoked."""

import json
import re
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from talaria.api.api_tokens import digest_of
from talaria.app.build import open_store
from talaria.gateway.claims import claim, gateway_file
from talaria.store.api_ports import ApiToken
from talaria.store.sqlite.store import SqliteStore

Talaria = Callable[..., subprocess.CompletedProcess[str]]
DAY_S = 86_400
TOKEN = re.compile(r"tal_[A-Za-z0-9_-]{43}\n")


@pytest.fixture
async def store(home: Path) -> AsyncIterator[SqliteStore]:
    home.mkdir(mode=0o700)
    async with open_store(home) as opened:
        yield opened


async def test_token_is_shown_once_and_only_its_digest_is_kept(
    talaria: Talaria, store: SqliteStore, home: Path
) -> None:
    created = talaria("api", "token", "create", "phone")

    assert created.returncode == 0
    assert TOKEN.fullmatch(created.stdout)
    assert created.stderr == (
        "This token is not shown again. Whoever has it is api:phone here: keep it like a password.\n"
    )
    token = created.stdout.strip()
    (kept,) = await store.api_tokens.list()
    assert (kept.name, kept.digest) == ("phone", digest_of(token))
    assert (kept.scopes, kept.expires_at) == (("chat", "runs", "sessions"), None)
    assert (kept.tokens_per_day, kept.usd_per_day, kept.requests_per_minute) == (None, None, None)
    assert [file.name for file in home.rglob("*") if file.is_file() and token.encode() in file.read_bytes()] == []


async def test_token_has_the_scopes_the_end_and_the_caps_that_were_asked_for(
    talaria: Talaria, store: SqliteStore
) -> None:
    asked = ["--scope", "metrics", "--scope", "chat", "--scope", "chat", "--expires", "30d"]
    capped = ["--tokens-per-day", "100000", "--usd-per-day", "2.5", "--requests-per-minute", "60"]

    assert talaria("api", "token", "create", "phone", *asked, *capped).returncode == 0

    (kept,) = await store.api_tokens.list()
    assert kept.scopes == ("chat", "metrics")
    assert kept.expires_at == kept.created_at + 30 * DAY_S
    assert time.time() - 60 < kept.created_at <= time.time()
    assert (kept.tokens_per_day, kept.usd_per_day, kept.requests_per_minute) == (100_000, 2.5, 60)


async def test_tokens_are_listed_without_their_digests(talaria: Talaria, store: SqliteStore) -> None:
    now = time.time()
    plain = ApiToken(name="laptop", digest="digest-1", created_at=now - 9 * DAY_S)
    capped = ApiToken(
        name="phone",
        digest="digest-2",
        scopes=("chat", "approve"),
        created_at=now - 2 * DAY_S,
        expires_at=now + DAY_S,
        tokens_per_day=100_000,
        usd_per_day=2.5,
        requests_per_minute=60,
    )
    old = ApiToken(name="tablet", digest="digest-3", created_at=now - DAY_S, expires_at=now - 1)
    for one in (capped, plain, old):
        await store.api_tokens.add(one)

    listed = talaria("api", "token", "list").stdout
    laptop, phone, tablet = (line.split("  ") for line in listed.splitlines())
    day = r"\d{4}-\d\d-\d\d \d\d:\d\d"
    assert laptop[:2] == ["laptop", "chat"]
    assert re.fullmatch(f"created {day}", laptop[2])
    assert laptop[3:] == ["never expires"]
    assert phone[:2] == ["phone", "chat, approve"]
    assert re.fullmatch(f"expires {day}", phone[3])
    assert phone[4:] == ["100,000 tokens a day", "$2.50 a day", "60 requests a minute"]
    assert re.fullmatch(f"expired {day}", tablet[3])

    told = talaria("api", "token", "list", "--json").stdout
    documents = json.loads(told)
    assert documents[1] == {
        "name": "phone",
        "person": "api:phone",
        "scopes": ["chat", "approve"],
        "created_at": capped.created_at,
        "expires_at": capped.expires_at,
        "is_expired": False,
        "tokens_per_day": 100_000,
        "usd_per_day": 2.5,
        "requests_per_minute": 60,
    }
    assert [one["is_expired"] for one in documents] == [False, False, True]
    assert "digest" not in listed + told


async def test_revoked_token_is_gone_and_its_name_free(talaria: Talaria, store: SqliteStore) -> None:
    first = talaria("api", "token", "create", "phone").stdout
    revoked = talaria("api", "token", "revoke", "phone")

    said = "Revoked phone. Its conversations stay; `talaria forget api:phone` deletes them.\n"
    assert (revoked.returncode, revoked.stdout, revoked.stderr) == (0, "", said)
    assert await store.api_tokens.list() == []
    assert talaria("api", "token", "create", "phone").stdout != first


def test_home_without_tokens_says_how_to_create_one(talaria: Talaria) -> None:
    listed = talaria("api", "token", "list")

    assert (listed.returncode, listed.stdout) == (0, "")
    assert listed.stderr == "There are no tokens yet; `talaria api token create NAME` creates one.\n"
    assert json.loads(talaria("api", "token", "list", "--json").stdout) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["create"], ["Missing argument 'NAME'"]),
        (["create", "Phone"], ["'Phone' is not a name for a token", "a-z, 0-9"]),
        (["create", ""], ["'' is not a name for a token"]),
        (["create", "server-key"], ["API_SERVER_KEY", "another name"]),
        (["create", "old"], ["already a token 'old'", "revoke"]),
        (["create", "new", "--scope", "all"], ["'all' is not one of", "'chat'", "'runs'", "'approve'", "'admin'"]),
        (["create", "new", "--expires", "soon"], ["'soon' is not a duration", "as in 90d"]),
        (["create", "new", "--expires", "-1d"], ["'-1d' is not a duration"]),
        (["create", "new", "--expires", "٣d"], ["is not a duration"]),
        (["create", "new", "--expires", "0d"], ["expires after 0d"]),
        (["create", "new", "--usd-per-day", "0"], ["--usd-per-day", "above 0"]),
        (["create", "new", "--usd-per-day", "nan"], ["--usd-per-day", "above 0"]),
        (["create", "new", "--usd-per-day", "inf"], ["--usd-per-day", "above 0"]),
        (["create", "new", "--usd-per-day", "much"], ["--usd-per-day", "'much' is not a valid float"]),
        (["create", "new", "--tokens-per-day", "0"], ["--tokens-per-day", "0 is not in the range"]),
        (["create", "new", "--tokens-per-day", "9" * 30], ["--tokens-per-day", "is not in the range"]),
        (["create", "new", "--requests-per-minute", "1.5"], ["--requests-per-minute", "'1.5' is not a valid integer"]),
        (["revoke", "new"], ["There is no token 'new'", "talaria api token list"]),
        (["revoke", "ol"], ["There is no token 'ol'"]),
        (["rename", "old", "new"], ["No such command 'rename'"]),
    ],
)
async def test_mistake_is_one_sentence_and_changes_nothing(
    talaria: Talaria, store: SqliteStore, arguments: list[str], says: list[str]
) -> None:
    await store.api_tokens.add(ApiToken(name="old", digest="digest"))

    refused = talaria("api", "token", *arguments)

    assert (refused.returncode, refused.stdout) == (2, "")
    assert all(part in refused.stderr for part in says), refused.stderr
    assert len([line for line in refused.stderr.splitlines() if line.startswith(("talaria: ", "Error: "))]) == 1
    assert [one.name for one in await store.api_tokens.list()] == ["old"]


def test_api_that_may_not_listen_says_so_once(talaria: Talaria, home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text("model: {provider: demo}\napi: {host: 0.0.0.0}\n")
    refused = talaria("api")

    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("talaria: api.host is '0.0.0.0', which others can reach without TLS.")
    assert len(refused.stderr.splitlines()) == 1


def test_api_beside_a_running_gateway_says_how_that_serves_it(talaria: Talaria, home: Path) -> None:
    home.mkdir(mode=0o700)
    with claim(gateway_file(home), "taken"):
        refused = talaria("api")

    assert refused.returncode == 2
    assert "A gateway is already running on" in refused.stderr
    assert "`talaria config set api.enabled true` has it serve the API" in refused.stderr
