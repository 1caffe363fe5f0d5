"""Somebody is forgotten: what is kept about them goes, also from the bytes of the store, and what stays is said."""

import hashlib
import json
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.scenarios.test_cli_backup import at_terminal, put

from talaria.app.build import open_store
from talaria.core.entries import MessageAdded, Noted, TurnEnded, TurnStarted
from talaria.core.ids import GrantId, InboxId, SessionId, TurnId
from talaria.core.messages import Usage, user
from talaria.gateway.envelope import KeyRules, Principal, Received, encode_body, session_key
from talaria.platforms.base import Address, Arrival, Sender
from talaria.store.api_ports import ApiToken
from talaria.store.base import NewSession, Spent
from talaria.store.chat_ports import Inbound, Outgoing
from talaria.store.permission_ports import Grant, PairingRequest
from talaria.store.sqlite.store import SqliteStore

Talaria = Callable[..., subprocess.CompletedProcess[str]]

OWN, SHARED = SessionId("20261115_own"), SessionId("20261115_shared")
SECRET = "marzipan-under-the-stairs"
NAME = "Annabel Quux"
PADDING = "x" * 3000


@pytest.fixture
async def store(home: Path, environment: dict[str, str]) -> AsyncIterator[SqliteStore]:
    home.mkdir(mode=0o700)
    async with open_store(home) as opened:
        yield opened


def inbound(session: SessionId, id: str, text: str, user: str = "42", chat: str = "") -> Inbound:
    where = Address("telegram", chat or user)
    sender = Sender(user, NAME if user == "42" else "Bob")
    arrival = Arrival(id, where, "group" if chat else "dm", sender, text)
    key = f"agent:main:telegram:group:{chat}" if chat else f"agent:main:telegram:dm:{user}"
    received = Received(arrival, Principal("telegram", user, sender.name), key)
    return Inbound("telegram", "bot", where.chat, id, session, encode_body(received), key)


async def say(store: SqliteStore, session: SessionId, *texts: str) -> None:
    owner = await store.owners.join("test")
    epoch = await store.journal.seize(session, owner)
    assert isinstance(epoch, int)
    for number, text in enumerate(texts):
        turn = TurnId(f"{session}-{number}")
        spoken = [TurnStarted(turn, "platform"), MessageAdded(user(text)), Noted(PADDING), TurnEnded(turn, "completed")]
        await store.journal.record(session, epoch, spoken)
    await store.journal.release(session, epoch, leaves_mail=True)
    await store.owners.leave(owner)


@pytest.fixture
async def known(store: SqliteStore, home: Path, tmp_path: Path) -> SqliteStore:
    """Ann has spoken to the agent, alone and among others."""
    folder = tmp_path / "talaria" / "telegram-42"
    put(folder, "attachments/1-photo.txt", SECRET)
    put(tmp_path / "talaria" / "telegram-43", "attachments/2.txt", "of Bob")
    await store.sessions.create(NewSession(OWN, "telegram", person="telegram:42", cwd=str(folder)))
    await store.sessions.create(NewSession(SHARED, "telegram", person="telegram:43", cwd=str(tmp_path)))
    await say(store, OWN, *(f"{SECRET} {number} {PADDING}" for number in range(20)))
    await say(store, SHARED, f"[Bob] hello {PADDING}", "[Ann] hello")
    await store.inbox.accept([inbound(OWN, "1", SECRET), inbound(SHARED, "2", "hello", chat="-9")])
    for id, session in ((1, OWN), (2, SHARED)):
        await store.inbox.take(InboxId(id))
        said = SECRET if session == OWN else "hello all"
        await store.inbox.finish(session, [InboxId(id)], [Outgoing(f"telegram:{id}", said, f"key-{id}", 9e9)])
    await store.chats.bind("agent:main:telegram:dm:42", OWN, "telegram:42")
    await store.access.request(PairingRequest("telegram", "42", NAME, "digest", 9e9), 3)
    await store.access.approve("telegram", "digest")
    await store.grants.add(Grant(GrantId("g"), "telegram:42", "terminal", f"echo {SECRET}", "/", None, 0.0, None))
    await store.spending.add(OWN, [Spent("x:y", "telegram:42", "turn", Usage(1, 2), 0.5)])
    put(home, f"spill/{OWN}/1.txt", SECRET)
    put(home, f"todos/{OWN}.json", "[]")
    put(home, "memories/MEMORY.md", "annabel quux likes tea")
    put(home, "memories/OTHER.md", "4242 is no id of hers")
    put(home, "config.yaml", "gateway: {platforms: {telegram: {allowed_users: ['42', '1042']}}}\n")
    assert (await store.search.search("marzipan"))[0].session == OWN
    return store


GONE = [
    "1 conversation with 20 messages",
    "2 messages received",
    "1 reply",
    "1 chat",
    "1 standing approval",
    "1 pairing",
]


async def test_dry_run_says_what_would_go_and_deletes_nothing(
    talaria: Talaria, known: SqliteStore, home: Path, tmp_path: Path
) -> None:
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file() and ".db" not in file.name}
    told = json.loads(talaria("forget", "telegram:42", "--dry-run", "--json").stdout)
    assert told == {
        "ok": True,
        "dry_run": True,
        "person": "telegram:42",
        "gone": [*GONE, f"{tmp_path}/talaria/telegram-42 (1 file)"],
        "stays": [
            "1 model call, counted without their name",
            f"what they said in other people's conversations: {SHARED}",
            "files that mention them, for you to check: memories/MEMORY.md",
            "backups made before",
        ],
    }
    assert {file: file.read_bytes() for file in before} == before
    assert len(await known.sessions.list()) == 2


async def test_all_that_is_kept_about_a_person_goes(
    talaria: Talaria, known: SqliteStore, home: Path, tmp_path: Path
) -> None:
    ended = talaria("forget", "telegram:42", "--yes")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(f"Deleted:\n  {GONE[0]}\n")
    assert [one.id for one in await known.sessions.list()] == [SHARED]
    assert not (tmp_path / "talaria" / "telegram-42").exists()
    assert (tmp_path / "talaria" / "telegram-43" / "attachments" / "2.txt").exists()
    assert not (home / "spill" / OWN).exists()
    assert not (home / "todos" / f"{OWN}.json").exists()
    assert await known.search.search("marzipan") == []
    assert len(await known.search.search("hello")) == 2
    again = talaria("forget", "telegram:42", "--yes")
    assert (again.returncode, again.stderr) == (0, "Nothing is stored about telegram:42.\n")


async def test_bytes_of_the_store_do_not_hold_their_words_any_more(
    talaria: Talaria, known: SqliteStore, home: Path
) -> None:
    assert holding(home, SECRET) >= {"state.db-wal"}
    assert holding(home, "marzipan") >= {"state.db-wal", "search.db-wal"}
    assert talaria("forget", "telegram:42", "--yes").returncode == 0
    for word in (SECRET, "marzipan", NAME, "telegram:42", '"42"'):
        assert holding(home, word) == set()
    assert holding(home, "[Bob] hello") == {"state.db"}


def holding(home: Path, word: str) -> set[str]:
    """Files of the store with these bytes in them, as another process sees them: ours has SQLite's locks."""
    found = subprocess.run(
        ["grep", "-l", "-a", "-F", "--", word, *map(str, home.glob("*.db*"))],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return {Path(line).name for line in found.stdout.splitlines()}


async def test_person_is_not_forgotten_while_their_turn_runs(talaria: Talaria, known: SqliteStore) -> None:
    epoch = await known.journal.seize(OWN, await known.owners.join("gateway"))
    assert isinstance(epoch, int)
    ended = talaria("forget", "telegram:42", "--yes")
    sentence = f"Session {OWN} is running a turn of theirs; stop it before forgetting them."
    assert (ended.returncode, ended.stderr) == (2, f"talaria: {sentence}\n")
    assert (await known.sessions.get(OWN)) is not None
    await known.journal.release(OWN, epoch)
    assert talaria("forget", "telegram:42", "--yes").returncode == 0


async def test_person_at_the_terminal_is_asked(talaria: Talaria, known: SqliteStore, home: Path) -> None:
    nobody = talaria("forget", "telegram:42", input="y\n")
    assert nobody.stderr == "talaria: Nobody can be asked whether telegram:42 may be forgotten: add --yes.\n"
    refused = at_terminal(home, "n\n", "forget", "telegram:42")
    assert "Delete 1 conversation with 20 messages; 2 messages received; " in refused
    assert refused.endswith("Nothing was deleted.")
    assert (await known.sessions.get(OWN)) is not None
    assert "Deleted:" in at_terminal(home, "y\n", "forget", "telegram:42")
    assert (await known.sessions.get(OWN)) is None


@pytest.mark.parametrize("person", ["local", "telegram:", ":42", ""])
def test_nobody_is_called_so(talaria: Talaria, person: str) -> None:
    ended = talaria("forget", person, "--yes", "--json")
    assert ended.returncode == 2
    assert "does not name a person; use the platform and their id" in json.loads(ended.stdout)["error"]["message"]


async def test_somebody_who_was_never_here_leaves_everything_as_it_is(talaria: Talaria, known: SqliteStore) -> None:
    ended = talaria("forget", "telegram:4", "--yes")
    assert (ended.returncode, ended.stderr) == (0, "Nothing is stored about telegram:4.\n")
    assert len(await known.sessions.list()) == 2
    assert [one.user for one in await known.access.members()] == ["42"]


async def test_chats_of_groups_in_their_name_go_and_folders_of_odd_names_are_found(
    talaria: Talaria, store: SqliteStore, tmp_path: Path
) -> None:
    ann, room = "@ann:example.org", Address("matrix", "!room:x")
    await store.sessions.create(NewSession(OWN, "matrix"))
    keys = {
        session_key(room, "group", ann, KeyRules()): False,
        session_key(room, "group", "@bob:example.org", KeyRules()): True,
        session_key(room, "group", ann, KeyRules(is_group_per_person=False)): True,
        session_key(Address("slack", "C1"), "group", ann, KeyRules()): True,
    }
    for key in keys:
        await store.chats.bind(key, OWN, "matrix:x")
    folder = tmp_path / "talaria" / f"matrix--ann-example-org-{hashlib.sha256(ann.encode()).hexdigest()[:8]}"
    put(folder, "a.txt", "x")
    told = json.loads(talaria("forget", f"matrix:{ann}", "--yes", "--json").stdout)
    assert told["gone"] == ["1 chat", f"{folder} (1 file)"]
    assert not folder.exists()
    assert {key: await store.chats.get(key) is not None for key in keys} == keys


async def test_program_is_forgotten_with_its_token(talaria: Talaria, known: SqliteStore) -> None:
    for name in ("phone", "laptop"):
        await known.api_tokens.add(ApiToken(name=name, digest=f"digest of {name}"))

    ended = talaria("forget", "api:phone", "--yes")

    assert (ended.returncode, ended.stdout.splitlines()[:2]) == (0, ["Deleted:", "  1 API token"])
    assert [one.name for one in await known.api_tokens.list()] == ["laptop"]
