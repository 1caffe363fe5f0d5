"""What plugins kept at the top of our home is moved into theirs: once, and nothing else."""

from pathlib import Path

import pytest

from talaria.compat.hermes.moving_in import move_in
from talaria.core.ids import OwnerId
from talaria.gateway.claims import claim, gateway_file
from talaria.store.sqlite.presence import Presence

THEIRS = ("honcho.json", "lcm.db", "lcm.db-wal", "hindsight/bank.json", "sessions/a.jsonl")
OURS = (
    *("config.yaml", ".env", "config.yaml.bak", ".git/config", "state.db", "state.db-wal", "search.db", "SOUL.md"),
    *("history", "plugins.json", "plugins/almanac/data.json", "skills/tea/SKILL.md", "memories/MEMORY.md"),
    *(
        "logs/talaria.log",
        "run/gateway.json",
        "cache/thing",
        "spill/a/1",
        "checkpoints/a/1",
        "mcp-trust.json",
        "todos/a.json",
    ),
    *("platforms/matrix/login.json", "profiles/work/config.yaml", "profiles/work/lcm.db"),
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that was lived in with plugins."""
    home = tmp_path / "home"
    for name in (*THEIRS, *OURS):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("" if name.startswith("config") else name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return home


def tree(folder: Path) -> set[str]:
    files = (path for path in folder.rglob("*") if path.is_file() or path.is_symlink())
    return {str(path.relative_to(folder)) for path in files}


def test_all_of_theirs_moves_once_and_nothing_of_ours(home: Path) -> None:
    told = move_in(home)
    (notice,) = told.notices
    assert notice.startswith(f"Plugins now have a home of their own, {home}/hermes. What they had kept in {home} was ")
    assert notice.endswith(" moved there: hindsight, honcho.json, lcm.db, lcm.db-wal, sessions.")
    assert tree(home) == {*OURS, *(f"hermes/{name}" for name in THEIRS), "hermes/.moved"}
    assert (home / "hermes" / "lcm.db-wal").read_text() == "lcm.db-wal"
    assert (home / "hermes").stat().st_mode & 0o777 == 0o700
    assert "honcho.json" in (home / "hermes" / ".moved").read_text()

    (home / "notes.txt").write_text("mine")
    assert move_in(home).notices == ()
    assert (home / "notes.txt").exists()


def test_where_no_plugin_ever_was_nothing_moves_then_or_later(home: Path) -> None:
    (home / "plugins.json").unlink()
    assert move_in(home).notices == ()
    (home / "plugins.json").write_text("{}")
    assert move_in(home).notices == ()
    assert (home / "lcm.db").exists()


def test_a_move_that_was_interrupted_is_finished(home: Path) -> None:
    (home / "hermes").mkdir()
    (home / "lcm.db").rename(home / "hermes" / "lcm.db")
    assert "lcm.db-wal" in move_in(home).notices[0]
    assert {f"hermes/{name}" for name in THEIRS} <= tree(home)


def test_what_is_there_already_is_not_replaced(home: Path) -> None:
    (home / "hermes").mkdir()
    (home / "hermes" / "lcm.db").write_text("newer")
    told = move_in(home)
    assert told.notices[1].endswith("where plugins now look for it: lcm.db.")
    assert ((home / "hermes" / "lcm.db").read_text(), (home / "lcm.db").read_text()) == ("newer", "lcm.db")


def test_what_is_mentioned_or_in_use_stays(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "people").mkdir()
    (home / "config.yaml").write_text("gateway: {workspace: ~/home/people}\n")
    (home / "work" / "deep").mkdir(parents=True)
    monkeypatch.chdir(home / "work" / "deep")
    move_in(home)
    assert (home / "people").is_dir()
    assert (home / "work").is_dir()
    assert not (home / "lcm.db").exists()


def test_links_lead_where_they_led(home: Path, tmp_path: Path) -> None:
    (home / "far").symlink_to(tmp_path / "disk")
    (home / "near").symlink_to("SOUL.md")
    move_in(home)
    assert (home / "hermes" / "far").readlink() == tmp_path / "disk"
    assert (home / "hermes" / "near").read_text() == "SOUL.md"


def test_while_a_gateway_may_use_the_files_they_stay_and_no_plugin_is_loaded(home: Path) -> None:
    with claim(gateway_file(home), "taken"):
        gateway_file(home).write_text("1\n")  # as if another process had it
        told = move_in(home)
        assert "process 1 still uses the old place" in told.obstacle
        assert (home / "lcm.db").exists()
    assert move_in(home).obstacle == ""
    assert not (home / "lcm.db").exists()


def test_so_it_is_while_a_chat_is_open(home: Path) -> None:
    chat = Presence(home / "run")
    chat.lock(OwnerId("1-abcdef"))
    assert "process 1" in move_in(home).obstacle
    chat.unlock_all()
    assert move_in(home).obstacle == ""


def test_our_own_process_is_no_obstacle(home: Path) -> None:
    with claim(gateway_file(home), "taken"):
        assert move_in(home).obstacle == ""


def test_out_of_a_folder_that_is_more_than_our_home_nothing_moves(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home))
    (notice,) = move_in(home).notices
    assert "contains more than Talaria, so these were left there: hindsight, honcho.json" in notice
    assert tree(home) == {*OURS, *THEIRS, "hermes/.moved"}
    assert move_in(home).notices == ()


@pytest.mark.parametrize("what", ["a file", "a link"])
def test_where_they_can_have_no_home_all_stays(home: Path, tmp_path: Path, what: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (home / "hermes").write_text("") if what == "a file" else (home / "hermes").symlink_to(tmp_path / "elsewhere")
    assert move_in(home).notices == ()
    assert (home / "lcm.db").exists()
    assert list((tmp_path / "elsewhere").iterdir()) == []
