"""`talaria import hermes`, on homes as several versions of Hermes leave them."""

import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from talaria.testing.servers.model_server import ModelServer

Talaria = Callable[..., subprocess.CompletedProcess[str]]

BEGAN = 1_750_000_000.0
SESSION = "20250615_150640_abcdef"

SCHEMA_2 = """
CREATE TABLE schema_version (version INTEGER NOT NULL);
INSERT INTO schema_version VALUES (2);
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, source TEXT NOT NULL, user_id TEXT, model TEXT, model_config TEXT, system_prompt TEXT,
    parent_session_id TEXT, started_at REAL NOT NULL, ended_at REAL, end_reason TEXT, message_count INTEGER DEFAULT 0,
    tool_call_count INTEGER DEFAULT 0, input_tokens INTEGER DEFAULT 0, output_tokens INTEGER DEFAULT 0
);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL REFERENCES sessions (id), role TEXT NOT NULL,
    content TEXT, tool_call_id TEXT, tool_calls TEXT, tool_name TEXT, timestamp REAL NOT NULL, token_count INTEGER,
    finish_reason TEXT
);
"""
SCHEMA_14 = f"""
{SCHEMA_2}
UPDATE schema_version SET version = 14;
ALTER TABLE sessions ADD COLUMN title TEXT;
ALTER TABLE sessions ADD COLUMN billing_provider TEXT;
ALTER TABLE sessions ADD COLUMN cwd TEXT;
ALTER TABLE messages ADD COLUMN reasoning TEXT;
ALTER TABLE messages ADD COLUMN reasoning_content TEXT;
ALTER TABLE messages ADD COLUMN observed INTEGER DEFAULT 0;
ALTER TABLE messages ADD COLUMN active INTEGER;
CREATE UNIQUE INDEX idx_sessions_title_unique ON sessions (title) WHERE title IS NOT NULL;
"""
SCHEMA_22 = """
CREATE TABLE schema_version (version INTEGER NOT NULL);
INSERT INTO schema_version VALUES (22);
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, source TEXT NOT NULL, session_key TEXT, model TEXT, model_config TEXT, system_prompt TEXT,
    parent_session_id TEXT, started_at REAL NOT NULL, ended_at REAL, end_reason TEXT, cwd TEXT, billing_provider TEXT,
    title TEXT, archived INTEGER NOT NULL DEFAULT 0, profile_name TEXT
);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL REFERENCES sessions (id), role TEXT NOT NULL,
    content TEXT, tool_call_id TEXT, tool_calls TEXT, tool_name TEXT, effect_disposition TEXT, timestamp REAL NOT NULL,
    token_count INTEGER, finish_reason TEXT, reasoning TEXT, reasoning_content TEXT, reasoning_details TEXT,
    observed INTEGER DEFAULT 0, active INTEGER NOT NULL DEFAULT 1, compacted INTEGER NOT NULL DEFAULT 0,
    api_content TEXT
);
CREATE INDEX idx_messages_session ON messages (session_id, timestamp);
CREATE VIRTUAL TABLE messages_fts USING fts5 (content);
CREATE TRIGGER messages_fts_insert AFTER INSERT ON messages BEGIN
    INSERT INTO messages_fts (rowid, content) VALUES (new.id, coalesce(new.content, ''));
END;
"""
SCHEMAS = {"2": SCHEMA_2, "14": SCHEMA_14, "22": SCHEMA_22}
CALLS = json.dumps(
    [{"id": "call_1", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "ls"}'}}]
)


class Hermes:
    """A Hermes home in the making."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self._moment = BEGAN

    def write(self, name: str, text: str) -> Path:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def database(self, schema: str) -> sqlite3.Connection:
        """Closed by whoever opens it."""
        db = sqlite3.connect(self.root / "state.db", isolation_level=None)
        db.execute("PRAGMA journal_mode = wal")
        db.executescript(schema)
        return db

    def session(self, db: sqlite3.Connection, id: str, **columns: Any) -> None:
        self._insert(db, "sessions", {"id": id, "source": "cli", "started_at": self._moment, **columns})

    def message(self, db: sqlite3.Connection, session: str, role: str, content: Any, **columns: Any) -> None:
        self._moment += 1
        values = {"session_id": session, "role": role, "content": content, "timestamp": self._moment, **columns}
        self._insert(db, "messages", values)

    def _insert(self, db: sqlite3.Connection, table: str, values: dict[str, Any]) -> None:
        marks = ", ".join("?" * len(values))
        db.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))

    def talk(self, db: sqlite3.Connection, id: str = SESSION, **columns: Any) -> None:
        """One exchange with a call."""
        self.session(db, id, model="anthropic/claude-opus-4.6", **columns)
        self.message(db, id, "user", "Which needles are there?")
        self.message(db, id, "assistant", None, tool_calls=CALLS)
        self.message(db, id, "tool", "knitting.txt", tool_call_id="call_1", tool_name="terminal")
        self.message(db, id, "assistant", "Only knitting needles.", finish_reason="stop")


@pytest.fixture
def hermes(tmp_path: Path) -> Hermes:
    return Hermes(tmp_path / ".hermes")


def contents(folder: Path) -> dict[str, object]:
    """Every file with its bytes and its time, every link with its target."""
    return {
        str(path.relative_to(folder)): (
            path.readlink() if path.is_symlink() else (path.read_bytes(), path.stat().st_mtime_ns)
        )
        for path in sorted(folder.rglob("*"))
        if not path.is_dir() or path.is_symlink()
    }


def document(ended: subprocess.CompletedProcess[str], code: int = 0) -> Any:
    assert ended.returncode == code, ended.stderr
    assert ended.stdout.count("\n") == 1
    return json.loads(ended.stdout)


def names(report: Any, verdict: str, kind: str) -> list[str]:
    return [item["name"] for item in report[verdict] if item["kind"] == kind]


def reason(report: Any, kind: str, name: str) -> str:
    (found,) = [item for item in report["left"] if (item["kind"], item["name"]) == (kind, name)]
    return found["reason"]


# What is no Hermes home.


def test_folder_that_is_no_hermes_home_is_one_sentence(talaria: Talaria, tmp_path: Path, home: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "nowhere"):
        ended = talaria("import", "hermes", str(path))
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.startswith(f"talaria: {path} is not a Hermes home: ")
        assert ended.stderr.count("\n") == 1
    assert not home.exists()


def test_no_hermes_home_is_told_as_json_too(talaria: Talaria, tmp_path: Path) -> None:
    report = document(talaria("import", "hermes", str(tmp_path / "nowhere"), "--json"), code=2)
    assert (report["ok"], report["error"]["type"], report["exit_code"]) == (False, "BadInput", 2)


def test_our_own_home_is_no_hermes_home(talaria: Talaria, home: Path) -> None:
    home.mkdir()
    (home / "config.yaml").touch()
    ended = talaria("import", "hermes", str(home))
    assert (ended.returncode, "is Talaria's own home" in ended.stderr) == (2, True)


def test_home_is_found_where_hermes_would_find_it(talaria: Talaria, hermes: Hermes, tmp_path: Path) -> None:
    hermes.write("SOUL.md", "the usual place")
    other = Hermes(tmp_path / "elsewhere")
    other.write("SOUL.md", "a place of its own")
    assert document(talaria("import", "hermes", "--dry-run", "--json"))["from"] == str(hermes.root)
    named = talaria("import", "hermes", "--dry-run", "--json", env={"HERMES_HOME": str(other.root)})
    assert document(named)["from"] == str(other.root)


# Conversations.


@pytest.mark.parametrize("version", SCHEMAS)
def test_conversation_of_every_version_comes_along(talaria: Talaria, hermes: Hermes, home: Path, version: str) -> None:
    db = hermes.database(SCHEMAS[version])
    hermes.talk(db)
    db.close()
    before = contents(hermes.root)

    ended = talaria("import", "hermes")

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "Imported:\n  conversations: 1 conversation with 4 messages\n"
    assert contents(hermes.root) == before
    told = document(talaria("sessions", "show", SESSION, "--json"))
    assert (told["source"], told["model"], told["title"]) == ("cli", "anthropic/claude-opus-4.6", None)
    assert (told["created_at"], told["updated_at"], told["is_interrupted"]) == (BEGAN, BEGAN + 4, False)
    kinds = [entry["entry"]["type"] for entry in told["entries"]]
    assert kinds == ["turn_started", *["message"] * 4, "turn_ended"]
    assert [entry["at"] - BEGAN for entry in told["entries"]] == [1, 1, 2, 3, 4, 4]
    shown = talaria("sessions", "show", SESSION).stdout
    assert '› Which needles are there?\n● terminal {"command": "ls"}\n  knitting.txt\nOnly knitting needles.' in shown
    assert talaria("sessions", "search", "knitting").stdout.count(SESSION) == 2


def test_conversation_goes_on_with_prompt_and_tools_and_can_be_taken_back(
    talaria: Talaria, hermes: Hermes, server: ModelServer, tmp_path: Path
) -> None:
    db = hermes.database(SCHEMA_22)
    hermes.talk(db, cwd=str(tmp_path / "work"), billing_provider="openrouter", title="Needles")
    db.close()
    hermes.write("SOUL.md", "You are a tailor.")
    assert document(talaria("import", "hermes", "--json"))["ok"]
    server.say("And sewing needles.")

    ended = talaria("-r", "Needles", "-q", "Look again")

    assert (ended.returncode, ended.stdout) == (0, "And sewing needles.\n")
    (request,) = server.requests
    asked = request.json
    assert [message["role"] for message in asked["messages"]] == [
        "system",
        *["user", "assistant", "tool", "assistant", "user"],
    ]
    assert asked["messages"][0]["content"].startswith("You are a tailor.")
    assert f"Working directory: {tmp_path / 'work'}" in asked["messages"][0]["content"]
    assert "terminal" in [tool["function"]["name"] for tool in asked["tools"]]
    talaria("-r", SESSION, input="/undo\n/undo\n/quit\n")
    server.say("From the start.")
    talaria("-r", SESSION, "-q", "Once more")
    again = server.requests[-1].json["messages"]
    assert [message["role"] for message in again] == ["system", "user"]


def test_second_import_adds_nothing(talaria: Talaria, hermes: Hermes, home: Path) -> None:
    db = hermes.database(SCHEMA_22)
    hermes.talk(db, title="Needles")
    db.close()
    talaria("import", "hermes")
    before = talaria("sessions", "export", SESSION).stdout

    ended = talaria("import", "hermes")

    assert ended.stdout == "Already there:\n  conversations: 1 conversation\n"
    assert talaria("sessions", "export", SESSION).stdout == before
    assert len(document(talaria("sessions", "list", "--json"))) == 1


def test_titles_parents_and_folders_find_their_place(talaria: Talaria, hermes: Hermes, tmp_path: Path) -> None:
    talaria("-m", "demo", "-q", "hello")
    (ours,) = document(talaria("sessions", "list", "--json"))
    talaria("sessions", "rename", ours["id"], "Needles")
    db = hermes.database(SCHEMA_22)
    hermes.talk(db, "mother", title="Needles", cwd=str(tmp_path / "gone"), billing_provider="openrouter")
    hermes.talk(db, "daughter", title="Needles #2", parent_session_id="mother")
    hermes.talk(db, "orphan", parent_session_id="deleted")
    db.close()

    talaria("import", "hermes")

    found = {row["id"]: row for row in document(talaria("sessions", "list", "--json"))}
    assert {id: found[id]["title"] for id in ("mother", "daughter", "orphan")} == {
        "mother": "Needles (2)",
        "daughter": "Needles #2",
        "orphan": None,
    }
    assert (found["daughter"]["parent"], found["orphan"]["parent"]) == ("mother", None)
    assert found["mother"]["cwd"] == str(tmp_path)
    assert found["mother"]["model"] == "openrouter:anthropic/claude-opus-4.6"


def test_what_is_no_conversation_is_left_and_told(talaria: Talaria, hermes: Hermes) -> None:
    db = hermes.database(SCHEMA_22)
    hermes.talk(db)
    hermes.session(db, "empty")
    hermes.talk(db, "helper-1", model_config='{"_delegate_from": "x"}')
    hermes.talk(db, "helper-2", source="tool")
    db.close()

    report = document(talaria("import", "hermes", "--json"))

    assert names(report, "taken", "conversations") == ["1 conversation with 4 messages"]
    assert reason(report, "conversations", "1 conversation") == "nothing was said"
    assert "subagents" in reason(report, "conversations", "2 conversations")


def test_odd_rows_are_no_obstacle(talaria: Talaria, hermes: Hermes) -> None:
    db = hermes.database(SCHEMA_14)
    hermes.session(db, SESSION, model=None, title="\x1b[2J", model_config="{broken")
    hermes.message(db, SESSION, "user", b"caf\xff")
    hermes.message(db, SESSION, "session_meta", "{}")
    hermes.message(db, SESSION, "assistant", '\0json:[{"type": "text", "text": "with\\u0000 and \\ud800"}]')
    hermes.message(db, SESSION, "user", "taken back", active=0)
    hermes.message(db, SESSION, "assistant", "x", tool_calls="[broken", active=None, timestamp=float("inf"))
    hermes.message(db, SESSION, "tool", 42, tool_call_id="nobody")
    hermes.message(db, SESSION, "user", None)
    db.close()

    report = document(talaria("import", "hermes", "--json"))

    assert names(report, "taken", "conversations") == ["1 conversation with 4 messages"]
    told = document(talaria("sessions", "show", SESSION, "--json"))
    assert BEGAN < told["updated_at"] < BEGAN + 60
    texts = [
        "".join(part["text"] for part in entry["entry"]["message"]["parts"])
        for entry in told["entries"]
        if entry["entry"]["type"] == "message"
    ]
    assert texts == ["caf\ufffd", "with and \ufffd\n\nx", "[An empty message.]", "[No answer to this was kept.]"]
    assert "42" in talaria("sessions", "show", SESSION).stdout


def test_conversation_that_was_made_shorter_is_whole_and_stays_short_for_the_model(
    talaria: Talaria, hermes: Hermes, server: ModelServer
) -> None:
    db = hermes.database(SCHEMA_22)
    hermes.talk(db)
    db.execute("UPDATE messages SET active = 0, compacted = 1")
    hermes.message(db, SESSION, "user", "[CONTEXT COMPACTION — REFERENCE ONLY] It was about needles.")
    hermes.message(db, SESSION, "user", "And thread?")
    hermes.message(db, SESSION, "assistant", "None.")
    db.close()
    talaria("import", "hermes")
    server.say("Still none.")

    talaria("-r", SESSION, "-q", "Sure?")

    assert "Which needles are there?" in talaria("sessions", "show", SESSION).stdout
    said = server.requests[-1].json["messages"][1:]
    assert [message["role"] for message in said] == ["user", "assistant", "user"]
    assert "It was about needles." in json.dumps(said[0])
    assert "Which needles" not in json.dumps(said)


def test_rows_from_before_rows_could_be_archived_are_live(talaria: Talaria, hermes: Hermes) -> None:
    db = hermes.database(SCHEMA_14)
    hermes.talk(db)
    hermes.message(db, SESSION, "user", "More?", active=1)
    hermes.message(db, SESSION, "assistant", "No.", active=1)
    db.close()
    talaria("import", "hermes")
    told = document(talaria("sessions", "show", SESSION, "--json"))
    assert "compacted" not in [entry["entry"]["type"] for entry in told["entries"]]
    assert told["message_count"] == 6


@pytest.fixture
def at_work(hermes: Hermes) -> Iterator[sqlite3.Connection]:
    """A Hermes that has its database open and has written what is only in its log yet."""
    db = hermes.database(SCHEMA_22)
    db.execute("PRAGMA wal_autocheckpoint = 0")
    hermes.talk(db)
    yield db
    db.close()


def test_hermes_at_work_is_read_with_what_it_wrote_last_and_not_disturbed(
    talaria: Talaria, hermes: Hermes, at_work: sqlite3.Connection
) -> None:
    at_work.execute("BEGIN IMMEDIATE")  # it is writing right now
    before = contents(hermes.root)

    report = document(talaria("import", "hermes", "--json"))

    assert names(report, "taken", "conversations") == ["1 conversation with 4 messages"]
    assert contents(hermes.root) == before
    hermes.message(at_work, SESSION, "user", "and it goes on")
    at_work.execute("COMMIT")


def test_hermes_that_was_killed_is_read_with_what_it_wrote_last(
    talaria: Talaria, hermes: Hermes, at_work: sqlite3.Connection, tmp_path: Path
) -> None:
    killed = tmp_path / "killed"
    shutil.copytree(hermes.root, killed)
    before = contents(killed)

    report = document(talaria("import", "hermes", str(killed), "--json"))

    assert names(report, "taken", "conversations") == ["1 conversation with 4 messages"]
    assert contents(killed) == before


def test_log_without_its_index_is_one_sentence(
    talaria: Talaria, hermes: Hermes, at_work: sqlite3.Connection, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(hermes.root, copy)
    (copy / "state.db-shm").unlink()

    report = document(talaria("import", "hermes", str(copy), "--json"), code=4)

    assert "copy state.db-shm as well as state.db-wal" in reason(report, "conversations", "state.db")
    assert not (copy / "state.db-shm").exists()


def test_locked_database_is_one_sentence_and_the_rest_goes_on(talaria: Talaria, hermes: Hermes, home: Path) -> None:
    db = hermes.database(SCHEMA_22)
    db.execute("PRAGMA journal_mode = delete")
    hermes.talk(db)
    hermes.write("memories/MEMORY.md", "remember")
    db.execute("BEGIN EXCLUSIVE")

    report = document(talaria("import", "hermes", "--json"), code=4)
    db.close()

    assert report["ok"] is False
    assert "is locked by another program: stop Hermes" in reason(report, "conversations", "state.db")
    assert (home / "memories" / "MEMORY.md").read_text() == "remember"


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"not a database, but long enough to be taken for one" * 40, "is damaged"), (b"", "no conversations of Hermes")],
)
def test_database_that_is_none_is_one_sentence_and_the_rest_goes_on(
    talaria: Talaria, hermes: Hermes, home: Path, content: bytes, problem: str
) -> None:
    (hermes.root / "state.db").write_bytes(content)
    hermes.write("SOUL.md", "You are a tailor.")

    ended = talaria("import", "hermes")

    assert (ended.returncode, ended.stderr) == (4, "")
    assert problem in ended.stdout
    assert (home / "SOUL.md").read_text() == "You are a tailor."
    assert (hermes.root / "state.db").read_bytes() == content


def test_damaged_part_costs_only_what_stood_there(talaria: Talaria, hermes: Hermes) -> None:
    db = hermes.database(SCHEMA_22)
    for number in range(40):
        hermes.session(db, f"session_{number:02}")
        hermes.message(db, f"session_{number:02}", "user", "q" * 3000)
        hermes.message(db, f"session_{number:02}", "assistant", "a" * 3000)
    db.close()
    file = hermes.root / "state.db"
    broken = bytearray(file.read_bytes())
    place = broken.index(b"session_20user") // 4096 * 4096
    broken[place : place + 4096] = b"\xff" * 4096
    file.write_bytes(broken)

    ended = talaria("import", "hermes", "--json")

    report = document(ended, code=4)
    (taken,) = names(report, "taken", "conversations")
    assert 35 < int(taken.split()[0]) < 40
    assert talaria("sessions", "show", "session_39").returncode == 0
    assert any("damaged" in item["reason"] for item in report["left"])


# Files.


def test_memories_soul_and_skills_come_along(talaria: Talaria, hermes: Hermes, home: Path) -> None:
    hermes.write("SOUL.md", "You are a tailor.")
    hermes.write("memories/MEMORY.md", "Likes wool\n§\nHas a cat")
    hermes.write("memories/USER.md", "Ann")
    hermes.write("memories/graph.bin", "x")
    hermes.write("skills/knit/SKILL.md", "---\nname: knit\n---\n")
    hermes.write("skills/knit/scripts/run.sh", "#!/bin/sh\n").chmod(0o777)
    hermes.write("skills/craft/sew/SKILL.md", "---\nname: sew\n---\n")
    hermes.write("skills/craft/DESCRIPTION.md", "crafts")
    hermes.write("skills/.hub/cache/SKILL.md", "not one")

    report = document(talaria("import", "hermes", "--json"))

    assert names(report, "taken", "identity") == ["SOUL.md"]
    assert names(report, "taken", "memory") == ["MEMORY.md", "USER.md"]
    assert names(report, "taken", "skill") == ["craft/sew", "knit"]
    assert reason(report, "memory", "graph.bin") == "it belongs to a plugin"
    assert (home / "memories" / "MEMORY.md").read_text() == "Likes wool\n§\nHas a cat"
    assert (home / "skills" / "craft" / "sew" / "SKILL.md").exists()
    script = home / "skills" / "knit" / "scripts" / "run.sh"
    assert (script.read_text(), script.stat().st_mode & 0o777) == ("#!/bin/sh\n", 0o755)
    assert (home / "memories" / "MEMORY.md").stat().st_mode & 0o777 == 0o600
    again = document(talaria("import", "hermes", "--json"))
    assert (again["taken"], len(again["there"])) == ([], 5)


def test_nothing_of_ours_is_overwritten(talaria: Talaria, hermes: Hermes, home: Path) -> None:
    for name in ("SOUL.md", "memories/MEMORY.md", "skills/knit/SKILL.md", "skills/sew/SKILL.md"):
        hermes.write(name, "theirs")
    ours = Hermes(home)
    ours.write("SOUL.md", "ours")
    ours.write("memories/MEMORY.md", "ours, and longer")
    ours.write("skills/knit/SKILL.md", "ours")
    (home / "skills" / "sew").symlink_to(home / "nowhere")
    before = contents(home)

    report = document(talaria("import", "hermes", "--json"))

    assert report["taken"] == report["there"] == []
    assert reason(report, "skill", "knit") == f"{home / 'skills' / 'knit'} is different and stays"
    assert {name: before[name] for name in before} == {name: contents(home)[name] for name in before}


def test_links_do_not_bring_what_lies_outside(talaria: Talaria, hermes: Hermes, home: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "SKILL.md").write_text("secret")
    hermes.write("skills/knit/SKILL.md", "knit")
    (hermes.root / "skills" / "knit" / "inner.md").symlink_to("SKILL.md")
    (hermes.root / "skills" / "knit" / "outer.md").symlink_to(secret / "SKILL.md")
    (hermes.root / "skills" / "knit" / "above.md").symlink_to("../../../secret/SKILL.md")
    (hermes.root / "skills" / "knit" / "absolute.md").symlink_to(hermes.root / "skills" / "knit" / "SKILL.md")
    (hermes.root / "skills" / "linked").symlink_to(secret)
    hermes.write("memories/USER.md", "Ann")
    (hermes.root / "memories" / "MEMORY.md").symlink_to(secret / "SKILL.md")
    os.mkfifo(hermes.root / "skills" / "knit" / "pipe")

    report = document(talaria("import", "hermes", "--json"))

    assert sorted(path.name for path in (home / "skills" / "knit").iterdir()) == ["SKILL.md", "inner.md"]
    assert (home / "skills" / "knit" / "inner.md").readlink() == Path("SKILL.md")
    (knit,) = [item for item in report["taken"] if item["kind"] == "skill"]
    assert all(name in knit["reason"] for name in ("outer.md", "above.md", "absolute.md", "pipe"))
    assert "a link to" in reason(report, "skill", "linked")
    assert "leads out" in reason(report, "memory", "MEMORY.md")
    assert "secret" not in {path.read_text() for path in home.rglob("*.md")}


def test_names_that_are_no_text_are_no_obstacle(talaria: Talaria, tmp_path: Path, home: Path) -> None:
    odd = Hermes(Path(os.fsdecode(os.fsencode(tmp_path) + b"/her\xffmes?#%")))
    odd.write(os.fsdecode(b"skills/kn\xffit/SKILL.md"), "knit")
    odd.talk(db := odd.database(SCHEMA_22))
    db.close()

    report = document(talaria("import", "hermes", str(odd.root), "--json"))

    assert names(report, "taken", "skill") == ["kn\ufffdit"]
    assert names(report, "taken", "conversations") == ["1 conversation with 4 messages"]
    assert (home / "skills" / os.fsdecode(b"kn\xffit") / "SKILL.md").read_text() == "knit"
    assert "kn" in talaria("import", "hermes", str(odd.root)).stdout


def test_skill_that_is_too_large_is_named(talaria: Talaria, hermes: Hermes, home: Path) -> None:
    hermes.write("config.yaml", "{}")
    hermes.write("skills/huge/SKILL.md", "huge")
    with (hermes.root / "skills" / "huge" / "model.bin").open("wb") as file:
        file.truncate(65 << 20)
    report = document(talaria("import", "hermes", "--json"))
    assert "copy it by hand" in reason(report, "skill", "huge")
    assert not (home / "skills").exists()


def test_soul_that_hermes_wrote_itself_does_not_make_us_hermes(
    talaria: Talaria, hermes: Hermes, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from talaria.compat.hermes_home import home_files

    file = hermes.write("SOUL.md", "I am what I was made.\n")
    monkeypatch.setattr(home_files, "DEFAULT_SOUL", home_files.digest(file.read_text()))
    (step,) = home_files.plan_files(hermes.root, home)
    assert (step.item.verdict, "says that it is Hermes" in step.item.reason) == ("left", True)


# Keys and settings.


def test_keys_are_named_and_taken_only_on_request(talaria: Talaria, hermes: Hermes, home: Path) -> None:
    hermes.write(
        ".env",
        "# keys\nexport OPENROUTER_API_KEY='sk-or-1'\nTELEGRAM_BOT_TOKEN=12:ab # bot\nEMPTY_KEY=\nno line\n"
        "TERMINAL_CWD=/work\nXAI_API_KEY=theirs\nGROQ_API_KEY=same\nOPENAI_BASE_URL=http://box/v1\n",
    )
    hermes.write("config.yaml", "{}")
    home.mkdir()
    (home / ".env").write_text("XAI_API_KEY=ours\nGROQ_API_KEY=same\n")
    (home / ".env").chmod(0o600)

    asked = talaria("import", "hermes", "--json")
    report = document(asked)

    assert names(report, "left", "key") == [
        *("OPENROUTER_API_KEY", "TELEGRAM_BOT_TOKEN", "TERMINAL_CWD", "XAI_API_KEY", "OPENAI_BASE_URL")
    ]
    assert "--keys" in reason(report, "key", "OPENROUTER_API_KEY")
    assert (home / ".env").read_text() == "XAI_API_KEY=ours\nGROQ_API_KEY=same\n"

    taking = talaria("import", "hermes", "--keys", "--json")
    report = document(taking)

    assert names(report, "taken", "key") == ["OPENROUTER_API_KEY", "TELEGRAM_BOT_TOKEN", "OPENAI_BASE_URL"]
    assert names(report, "there", "key") == ["GROQ_API_KEY"]
    assert "keeps it" in reason(report, "key", "XAI_API_KEY")
    assert sorted((home / ".env").read_text().splitlines()) == [
        "GROQ_API_KEY=same",
        "OPENAI_BASE_URL=http://box/v1",
        "OPENROUTER_API_KEY=sk-or-1",
        "TELEGRAM_BOT_TOKEN=12:ab",
        "XAI_API_KEY=ours",
    ]
    for ended in (asked, taking):
        assert "sk-or-1" not in ended.stdout + ended.stderr


def test_settings_of_the_api_are_named_and_not_taken(talaria: Talaria, hermes: Hermes) -> None:
    hermes.write(".env", "API_SERVER_ENABLED=true\nAPI_SERVER_KEY=0123456789abcdef\nAPI_SERVER_HOST=0.0.0.0\n")
    hermes.write("config.yaml", "{}")

    report = document(talaria("import", "hermes", "--keys", "--json"))

    assert names(report, "taken", "key") == ["API_SERVER_KEY"]
    for name in ("API_SERVER_ENABLED", "API_SERVER_HOST"):
        assert "put it into .env yourself" in reason(report, "key", name)


def test_settings_come_along_and_comments_stay(talaria: Talaria, hermes: Hermes, home: Path) -> None:
    hermes.write(
        "config.yaml",
        "model: {default: anthropic/claude-opus-4.6, provider: openrouter}\n"
        "agent: {max_turns: 90, api_max_retries: 7}\nmcp_servers: {git: {command: uvx}}\ndisplay: {skin: ares}\n",
    )
    home.mkdir()
    (home / "config.yaml").write_text("# mine\nagent:\n  max_turns: 5  # enough\n")

    report = document(talaria("import", "hermes", "--json"))

    assert names(report, "taken", "setting") == ["model", "agent.api_max_retries", "mcp_servers.git"]
    assert report["taken"][-1]["reason"].startswith("it runs in the sandbox and reaches no host")
    assert reason(report, "setting", "agent.max_turns") == "Talaria's agent.max_turns is set, and stays"
    assert reason(report, "setting", "display") == "Talaria has no such setting"
    assert names(report, "left", "setting") == ["agent.max_turns", "display"]
    text = (home / "config.yaml").read_text()
    assert text.startswith("# mine\nagent:\n  max_turns: 5  # enough\n")
    assert talaria("config", "get", "model.default").stdout == "anthropic/claude-opus-4.6\n"
    assert talaria("config", "get", "agent.api_max_retries").stdout == "7\n"
    assert talaria("config", "check", env={"OPENROUTER_API_KEY": "k"}).returncode == 0
    assert names(document(talaria("import", "hermes", "--json")), "there", "setting") == [
        "model",
        "agent.api_max_retries",
        "mcp_servers.git",
    ]
    servers = json.loads(talaria("mcp", "list", "--json").stdout)["servers"]
    assert [(one["name"], one["is_sandboxed"]) for one in servers] == [("git", True)]


def test_key_and_the_provider_that_names_it_come_in_one_import(talaria: Talaria, hermes: Hermes, home: Path) -> None:
    hermes.write(".env", "BOX_KEY=k-1\n")
    hermes.write(
        "config.yaml",
        "model: {default: m, provider: 'custom:box'}\n"
        "custom_providers: [{name: box, base_url: 'http://127.0.0.1:9/v1', key_env: BOX_KEY}]\n",
    )
    assert document(talaria("import", "hermes", "--keys", "--json"))["ok"]
    assert "${BOX_KEY}" in (home / "config.yaml").read_text()
    assert talaria("config", "check").returncode == 0


def test_config_that_cannot_be_read_is_told_and_the_rest_goes_on(talaria: Talaria, hermes: Hermes, home: Path) -> None:
    hermes.write("config.yaml", "model: [broken\n")
    hermes.write("memories/USER.md", "Ann")
    ended = talaria("import", "hermes")
    assert ended.returncode == 2
    assert "is not valid YAML" in ended.stdout
    assert (home / "memories" / "USER.md").exists()


def test_settings_of_ours_that_are_broken_come_first(talaria: Talaria, hermes: Hermes, home: Path) -> None:
    hermes.write("memories/USER.md", "Ann")
    home.mkdir()
    (home / "config.yaml").write_text("model: {defualt: x}\n")
    ended = talaria("import", "hermes")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "did you mean 'default'?" in ended.stderr
    assert not (home / "memories").exists()


# What stays behind, and what only would happen.


def test_what_is_not_taken_is_named_with_the_way_to_get_it(talaria: Talaria, hermes: Hermes) -> None:
    hermes.write("config.yaml", "plugins: {enabled: [loom, spotify]}\n")
    hermes.write("plugins/loom/plugin.yaml", "name: loom\n")
    hermes.write("plugins/memory/yarn/plugin.yaml", "name: yarn\n")
    hermes.write("profiles/work/config.yaml", "{}")
    hermes.write("cron/jobs.json", '{"jobs": [{}, {}, {}]}')
    hermes.write("auth.json", '{"token": "t-secret"}')
    hermes.write("hooks/greet/HOOK.yaml", "x")
    hermes.write("logs/agent.log", "x")
    hermes.write("gateway.pid", "1")
    (hermes.root / "skins").mkdir()

    ended = talaria("import", "hermes")

    assert (ended.returncode, ended.stderr) == (0, "")
    plugins = hermes.root / "plugins"
    for line in (
        f"  plugin: loom\n    → its code runs only if you say so: `talaria plugins install {plugins / 'loom'}`\n",
        f"`talaria plugins install {plugins / 'memory' / 'yarn'}`\n",
        "  plugin: spotify\n    → it was enabled; after installing it: `talaria plugins enable spotify`\n",
        f"`talaria -p work import hermes {hermes.root / 'profiles' / 'work'}`\n",
        "  file: cron (3 jobs)\n    → Talaria has no schedule yet\n",
        "  file: auth.json\n    → logins stay with Hermes",
        "  file: hooks\n",
    ):
        assert line in ended.stdout
    assert ended.stdout.startswith("Not imported:\n")
    for quiet in ("logs", "gateway.pid", "skins", "t-secret", "config.yaml"):
        assert quiet not in ended.stdout
    assert "enabled" not in talaria("config", "get", "plugins").stdout.replace('"enabled":[]', "")


def test_dry_run_says_it_all_and_changes_nothing(talaria: Talaria, hermes: Hermes, home: Path) -> None:
    hermes.write("config.yaml", "agent: {max_turns: 90}\ndisplay: {skin: ares}\n")
    hermes.write(".env", "OPENROUTER_API_KEY=sk-or-1\n")
    hermes.write("SOUL.md", "You are a tailor.")
    hermes.write("skills/knit/SKILL.md", "knit")
    db = hermes.database(SCHEMA_22)
    hermes.talk(db)
    db.close()
    before = contents(hermes.root)

    ended = talaria("import", "hermes", "--dry-run", "--keys")

    assert (ended.returncode, ended.stderr) == (0, "Nothing was changed.\n")
    assert ended.stdout == (
        "Would be imported:\n"
        "  key: OPENROUTER_API_KEY\n"
        "  setting: agent.max_turns\n"
        "  identity: SOUL.md\n"
        "  skill: knit\n"
        "  conversations: 1 conversation with 4 messages\n"
        "Would not be imported:\n"
        "  setting: display\n"
        "    → Talaria has no such setting\n"
    )
    assert not home.exists()
    assert contents(hermes.root) == before
    meant = document(talaria("import", "hermes", "--dry-run", "--keys", "--json"))
    done = document(talaria("import", "hermes", "--keys", "--json"))
    assert {**meant, "dry_run": False} == done


def test_dry_run_knows_what_is_there_and_leaves_it_alone(talaria: Talaria, hermes: Hermes, home: Path) -> None:
    hermes.write("SOUL.md", "You are a tailor.")
    db = hermes.database(SCHEMA_22)
    hermes.talk(db)
    db.close()
    talaria("import", "hermes")
    before = contents(home)

    ended = talaria("import", "hermes", "--dry-run")

    assert ended.stdout == "Already there:\n  identity: SOUL.md\n  conversations: 1 conversation\n"
    assert contents(home) == before


def test_home_that_cannot_be_written_is_told_for_each_thing(talaria: Talaria, hermes: Hermes, home: Path) -> None:
    hermes.write("SOUL.md", "You are a tailor.")
    hermes.write("memories/USER.md", "Ann")
    home.mkdir()
    (home / "memories").write_text("a file where a folder belongs")

    report = document(talaria("import", "hermes", "--json"), code=2)

    assert names(report, "taken", "identity") == ["SOUL.md"]
    assert reason(report, "memory", "USER.md").startswith("Cannot write ")


def test_store_of_ours_that_cannot_be_opened_is_told_beside_what_was_done(
    talaria: Talaria, hermes: Hermes, home: Path
) -> None:
    hermes.write("SOUL.md", "You are a tailor.")
    hermes.talk(db := hermes.database(SCHEMA_22))
    db.close()
    home.mkdir()
    (home / "state.db").write_bytes(b"not a database, but long enough to be taken for one" * 40)

    report = document(talaria("import", "hermes", "--json"), code=4)

    assert names(report, "taken", "identity") == ["SOUL.md"]
    assert f"{home / 'state.db'} is damaged" in reason(report, "conversations", "state.db")


def test_profile_has_a_home_of_its_own(talaria: Talaria, hermes: Hermes, home: Path) -> None:
    hermes.write("SOUL.md", "You are a tailor.")
    talaria("profiles", "create", "work")
    talaria("-p", "work", "import", "hermes")
    assert (home / "profiles" / "work" / "SOUL.md").exists()
    assert not (home / "SOUL.md").exists()


def test_help_and_list_of_commands_know_it(talaria: Talaria) -> None:
    assert "import" in talaria("--help").stdout
    assert "--dry-run" in talaria("import", "hermes", "--help").stdout
