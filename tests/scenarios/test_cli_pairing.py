"""People who wrote to the agent are let in by their code, and sent away again."""

import json
import re
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from talaria.app.build import open_store
from talaria.core.clock import SystemClock
from talaria.gateway.authorization import Pairing
from talaria.platforms.base import Sender
from talaria.store.permission_ports import MAX_FAILURES
from talaria.store.sqlite.store import SqliteStore

Talaria = Callable[..., subprocess.CompletedProcess[str]]
WRONG = "22222222"


@pytest.fixture
async def store(home: Path) -> AsyncIterator[SqliteStore]:
    home.mkdir(mode=0o700)
    async with open_store(home) as opened:
        yield opened


async def offered(store: SqliteStore, sender: Sender) -> str:
    code = await Pairing(store.access, SystemClock()).offer("telegram", sender)
    assert code is not None
    return code


async def test_a_code_lets_in_however_it_is_typed(talaria: Talaria, store: SqliteStore) -> None:
    code = await offered(store, Sender("1002", "Bob \x1b[2J"))
    let_in = talaria("pairing", "approve", "Telegram", f"{code[:4]}-{code[4:]}".lower())
    assert (let_in.returncode, let_in.stderr) == (0, "Approved: telegram 1002 (Bob \\x1b[2J).\n")
    assert [(one.platform, one.user) for one in await store.access.members()] == [("telegram", "1002")]
    again = talaria("pairing", "approve", "telegram", code)
    assert (again.returncode, "Nobody on telegram is waiting with this code." in again.stderr) == (2, True)


async def test_who_waits_and_who_was_let_in_is_listed(talaria: Talaria, store: SqliteStore) -> None:
    assert talaria("pairing", "list").stderr == "Nobody is waiting, and nobody was approved.\n"
    code = await offered(store, Sender("1002", "Bob"))
    talaria("pairing", "approve", "telegram", code)
    await offered(store, Sender("1003", "Eve"))
    waiting, member = talaria("pairing", "list").stdout.splitlines()
    assert waiting == "waiting   telegram 1003 (Eve)  (the code is valid for 10 min)"
    assert member.startswith("approved  telegram 1002 (Bob)  since 20")
    told = json.loads(talaria("pairing", "list", "--json").stdout)
    assert [one["user"] for one in told["members"]] == ["1002"]
    assert told["requests"][0].keys() == {"platform", "user", "name", "expires_at"}


async def test_who_is_sent_away_is_a_stranger_again(talaria: Talaria, store: SqliteStore) -> None:
    talaria("pairing", "approve", "telegram", await offered(store, Sender("1002", "Bob")))
    assert talaria("pairing", "revoke", "telegram", "1002").stderr == "Removed: telegram 1002.\n"
    assert await store.access.members() == []
    again = talaria("pairing", "revoke", "telegram", "1002")
    assert (again.returncode, "was not approved by a code" in again.stderr) == (2, True)


async def test_too_many_wrong_codes_close_the_door_for_a_while(talaria: Talaria, store: SqliteStore) -> None:
    code = await offered(store, Sender("1002", "Bob"))
    pairing = Pairing(store.access, SystemClock())
    for _ in range(MAX_FAILURES):
        await pairing.approve("telegram", WRONG)
    refused = talaria("pairing", "approve", "telegram", code)
    assert refused.returncode == 2
    assert re.search(r"Too many wrong codes: try again after \d\d:\d\d:\d\d\.", refused.stderr)
    assert await store.access.members() == []
