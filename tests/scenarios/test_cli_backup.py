"""A backup is made while everything goes on, and becomes the home again whole or not at all."""

import asyncio
import hashlib
import io
import json
import os
import resource
import subprocess
import tarfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.scenarios.typescript import Terminal

from talaria.app.build import open_store
from talaria.core.entries import Noted
from talaria.core.ids import SessionId
from talaria.gateway.claims import claim, gateway_file
from talaria.store.base import NewSession
from talaria.store.sqlite.connection import LATEST
from talaria.store.sqlite.store import SqliteStore

Talaria = Callable[..., subprocess.CompletedProcess[str]]
Change = Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]

LEFT = ("logs", "cache", "profiles")
KILLER = """
import os, sys
seen = 0
def step(event, arguments):
    global seen
    if event in {"os.rename", "os.symlink", "os.remove", "os.mkdir", "os.rmdir", "ctypes.dlsym", "shutil.copytree"}:
        seen += 1
        if seen == int(os.environ["KILLED_AT"]):
            os.kill(os.getpid(), 9)
sys.addaudithook(step)
"""


def put(home: Path, name: str, content: str, mode: int = 0o600) -> None:
    file = home / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    file.chmod(mode)


def tree(folder: Path) -> dict[str, bytes]:
    """All files but those of SQLite and of running processes."""
    files = [file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]
    kept = [file for file in files if ".db" not in file.name and file.parent.name != "run"]
    return {str(file.relative_to(folder)): file.read_bytes() for file in kept}


@pytest.fixture
def lived_in(talaria: Talaria, home: Path) -> Path:
    """A home with a bit of everything."""
    assert talaria("-m", "demo", "-q", "first needle").returncode == 0
    put(home, "config.yaml", "model: {provider: demo}\n")
    put(home, ".env", "OPENAI_API_KEY=sk-secret-of-tests\n")
    put(home, "SOUL.md", "You are kind.")
    put(home, "memories/MEMORY.md", "likes tea")
    put(home, "skills/tea/run.sh", "#!/bin/sh\n", 0o700)
    put(home, "spill/abc/1.txt", "x" * 70_000)
    put(home, "cache/thing", "can be made anew")
    put(home, "logs/talaria.log", "old")
    put(home, "platforms/matrix/login.json", "{}")
    put(home, "profiles/work/config.yaml", "model: {provider: demo}\n")
    return home


@pytest.fixture
def archive(talaria: Talaria, lived_in: Path, tmp_path: Path) -> Path:
    file = tmp_path / "kept.tar.gz"
    assert talaria("backup", str(file)).returncode == 0
    return file


def previews(talaria: Talaria) -> list[str]:
    return [row["preview"] for row in json.loads(talaria("sessions", "list", "--json").stdout)]


def test_backup_holds_what_is_the_persons_and_says_what_it_does_not(
    talaria: Talaria, lived_in: Path, environment: dict[str, str]
) -> None:
    (lived_in / "memories" / "link").symlink_to("/etc/passwd")
    ended = talaria("backup")
    (file,) = Path(environment["PWD"]).iterdir()
    assert ended.stderr.splitlines() == [
        f"Wrote {file.name}: 6 files, 0.0 MB.",
        "Left out: .env. --with-secrets includes keys; keep such a file to yourself.",
        "Left out, because they are links: memories/link.",
        "Never in a backup: cache, logs, platforms, profiles, run. Profiles have their own: talaria -p NAME backup",
    ]
    assert file.name.startswith("talaria-20")
    assert file.stat().st_mode & 0o777 == 0o600
    with tarfile.open(file) as tar:
        found = {member.name: tar.extractfile(member) for member in tar}
        content = {name: stream.read() for name, stream in found.items() if stream is not None}
    manifest = json.loads(content.pop("manifest.json"))
    assert manifest["files"] == {
        name.removeprefix("home/"): hashlib.sha256(text).hexdigest() for name, text in content.items()
    }
    assert sorted(manifest["files"]) == [
        *("SOUL.md", "config.yaml", "memories/MEMORY.md", "skills/tea/run.sh", "spill/abc/1.txt", "state.db"),
    ]
    assert manifest["schema"] == LATEST


def test_backup_leaves_out_what_can_be_undone(talaria: Talaria, lived_in: Path, tmp_path: Path) -> None:
    assert talaria("-m", "demo", "-q", "write hello to notes.txt").returncode == 0
    assert (lived_in / "undo.db").exists()
    assert talaria("backup", str(tmp_path / "kept.tar.gz")).returncode == 0
    with tarfile.open(tmp_path / "kept.tar.gz") as archive:
        assert [name for name in archive.getnames() if "undo" in name] == []


def test_keys_go_in_when_they_are_asked_for(talaria: Talaria, lived_in: Path, tmp_path: Path) -> None:
    file = tmp_path / "all.tar.gz"
    told = json.loads(talaria("backup", str(file), "--with-secrets", "--json").stdout)
    assert told == {"ok": True, "file": str(file), "size_bytes": file.stat().st_size, "files": 7, "left_out": []}
    put(lived_in, ".env", "OPENAI_API_KEY=another\n")
    assert talaria("restore", str(file), "--yes").returncode == 0
    assert (lived_in / ".env").read_text() == "OPENAI_API_KEY=sk-secret-of-tests\n"


def test_the_home_of_plugins_is_kept_and_their_keys_stay_out_of_it(
    talaria: Talaria, lived_in: Path, tmp_path: Path
) -> None:
    put(lived_in, "hermes/lcm.db.txt", "of a plugin")
    put(lived_in, "hermes/.env", "LCM_TOKEN=t-secret-of-tests\n")
    (lived_in / "hermes" / "plugins").symlink_to("../plugins")
    file = tmp_path / "kept.tar.gz"
    told = json.loads(talaria("backup", str(file), "--json").stdout)
    assert told["left_out"] == [".env", "hermes/.env"]
    with tarfile.open(file) as tar:
        assert [name for name in tar.getnames() if "hermes" in name] == ["home/hermes/lcm.db.txt"]
    assert talaria("restore", str(file), "--yes").returncode == 0
    assert (lived_in / "hermes" / ".env").read_text() == "LCM_TOKEN=t-secret-of-tests\n"
    whole = tmp_path / "all.tar.gz"
    assert talaria("backup", str(whole), "--with-secrets").returncode == 0
    with tarfile.open(whole) as tar:
        assert {"home/.env", "home/hermes/.env"} <= set(tar.getnames())


def test_restored_home_is_as_it_was_and_the_other_one_is_kept(talaria: Talaria, archive: Path, home: Path) -> None:
    talaria("-m", "demo", "-q", "second")
    put(home, "SOUL.md", "You are grim.")
    put(home, ".env", "OPENAI_API_KEY=newer\n")
    put(home, "skills/later.md", "later")
    ended = talaria("restore", str(archive), "--yes")
    (aside,) = home.parent.glob("home.before-restore-*")
    first, second = ended.stderr.splitlines()
    assert first.startswith(f"{home} is as it was on 20")
    assert second == f"The previous home is in {aside}; delete it when you no longer need it."
    assert previews(talaria) == ["first needle"]
    assert (home / "SOUL.md").read_text() == "You are kind."
    assert (home / "skills" / "tea" / "run.sh").stat().st_mode & 0o777 == 0o700
    assert not (home / "skills" / "later.md").exists()
    assert (home / ".env").read_text() == "OPENAI_API_KEY=newer\n"
    assert (home / "platforms" / "matrix" / "login.json").exists()
    assert (home / "profiles" / "work" / "config.yaml").exists()
    assert not (home / "profiles").is_symlink()
    assert (aside / "SOUL.md").read_text() == "You are grim."
    assert json.loads(talaria("sessions", "search", "needle", "--json").stdout)[0]["role"] == "user"
    old = talaria("sessions", "list", "--json", env={"TALARIA_HOME": str(aside)})
    assert [row["preview"] for row in json.loads(old.stdout)] == ["second", "first needle"]


def test_backup_makes_a_home_where_there_is_none(talaria: Talaria, archive: Path, tmp_path: Path) -> None:
    there = {"TALARIA_HOME": str(tmp_path / "deep" / "er" / "home")}
    told = json.loads(talaria("restore", str(archive), "--json", env=there).stdout)
    assert told == {"ok": True, "home": there["TALARIA_HOME"], "files": 6, "kept_as": None}
    assert talaria("sessions", "show", "first", env=there).returncode == 2
    assert "first needle" in talaria("sessions", "list", env=there).stdout


async def test_backup_is_of_one_moment_while_others_write(
    talaria: Talaria, home: Path, tmp_path: Path, written: "Writer"
) -> None:
    before = await written.reached(50)
    ended = await asyncio.to_thread(talaria, "backup", str(tmp_path / "kept.tar.gz"))
    assert ended.returncode == 0
    after = await written.reached(written.count + 10)
    there = tmp_path / "there"
    restored = await asyncio.to_thread(
        talaria, "restore", str(tmp_path / "kept.tar.gz"), env={"TALARIA_HOME": str(there)}
    )
    assert restored.returncode == 0
    async with open_store(there) as store:
        count = len(await store.journal.entries(SessionId("busy")))
        assert await store.check() == ""
    assert count % 2 == 0
    assert 2 * before <= count < 2 * after


class Writer:
    """Writes two entries at a time, each with much in it, for as long as it is let."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.count = 0

    async def run(self) -> None:
        owner = await self._store.owners.join("test")
        await self._store.sessions.create(NewSession(SessionId("busy"), "test"))
        epoch = await self._store.journal.seize(SessionId("busy"), owner)
        assert isinstance(epoch, int)
        while True:
            await self._store.journal.record(SessionId("busy"), epoch, [Noted("x" * 9000), Noted("y" * 9000)])
            self.count += 1

    async def reached(self, count: int) -> int:
        while self.count < count:
            await asyncio.sleep(0)
        return self.count


@pytest.fixture
async def written(home: Path) -> AsyncIterator[Writer]:
    async with open_store(home) as store:
        writer = Writer(store)
        task = asyncio.create_task(writer.run())
        yield writer
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_nothing_is_replaced_while_a_gateway_runs(talaria: Talaria, archive: Path, home: Path) -> None:
    with claim(gateway_file(home), "taken"):
        ended = talaria("restore", str(archive), "--yes")
    assert ended.returncode == 2
    assert ended.stderr == "talaria: A gateway is running on this home; stop it first: talaria gateway stop\n"
    assert list(home.parent.glob("home.*")) == []


async def test_nothing_is_replaced_while_a_terminal_is_open(talaria: Talaria, archive: Path, home: Path) -> None:
    async with open_store(home) as store:
        await store.owners.join("terminal")
        ended = talaria("restore", str(archive), "--yes")
    assert (ended.returncode, f"Talaria is running on {home}" in ended.stderr) == (2, True)
    assert list(home.parent.glob("home.*")) == []
    assert talaria("restore", str(archive), "--yes").returncode == 0


def test_person_is_asked_before_a_home_is_replaced(talaria: Talaria, archive: Path, home: Path) -> None:
    put(home, "SOUL.md", "now")
    nobody = talaria("restore", str(archive), input="y\n")
    assert (nobody.returncode, f"Nobody can be asked whether {home} may be replaced" in nobody.stderr) == (2, True)
    assert at_terminal(home, "n\n", "restore", str(archive)).endswith("Nothing was changed.")
    assert (home / "SOUL.md").read_text() == "now"
    assert list(home.parent.glob("home.*")) == []
    assert f"Replace {home} with the backup" in at_terminal(home, "y\n", "restore", str(archive))
    assert (home / "SOUL.md").read_text() == "You are kind."


def at_terminal(home: Path, typed: str, *arguments: str) -> str:
    """What is on it in the end."""
    environment = {"PATH": os.environ["PATH"], "TALARIA_HOME": str(home), "HOME": str(home.parent), "LANG": "C.UTF-8"}
    with Terminal(environment, *arguments) as terminal:
        terminal.type(typed)
        terminal.end()
        return terminal.screen.strip()


def test_progress_is_shown_on_a_terminal_and_goes(archive: Path, home: Path, tmp_path: Path) -> None:
    seen = at_terminal(home, "", "backup", str(tmp_path / "again.tar.gz"))
    assert "\rWriting the backup" in seen
    assert seen.splitlines()[-3].rpartition("\r")[2].startswith("Wrote ")


def members(archive: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(archive) as tar:
        streams = [(member, tar.extractfile(member)) for member in tar]
        return [(member, stream.read()) for member, stream in streams if stream is not None]


def changed(archive: Path, change: Change) -> None:
    """The archive with other members."""
    found = members(archive)
    change(found)
    with tarfile.open(archive, "w:gz") as tar:
        for member, content in found:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def add(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> Change:
    def change(found: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, target
        found.insert(1, (member, b"" if kind != tarfile.REGTYPE else b"evil"))

    return change


def described(**facts: object) -> Change:
    def change(found: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        member, content = found[-1]
        found[-1] = (member, json.dumps({**json.loads(content), **facts}).encode())

    return change


def rewrite(found: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    place = next(number for number, (member, _) in enumerate(found) if member.name == "home/SOUL.md")
    found[place] = (found[place][0], b"You are mine.")


HOSTILE: dict[str, tuple[Change, str]] = {
    "absolute": (add("/etc/evil"), "'/etc/evil' does not belong in a backup"),
    "upwards": (add("home/../../evil"), "'home/../../evil' does not belong in a backup"),
    "hidden upwards": (add("home/skills/../../evil"), "does not belong in a backup"),
    "beside": (add("elsewhere/evil"), "does not belong in a backup"),
    "of processes": (add("home/run/gateway.lock"), "does not belong in a backup"),
    "old writes": (add("home/state.db-wal"), "does not belong in a backup"),
    "symlink": (
        add("home/skills/evil", tarfile.SYMTYPE, "/etc/passwd"),
        "'home/skills/evil' in it is not a regular file",
    ),
    "hard link": (add("home/evil", tarfile.LNKTYPE, "home/state.db"), "is not a regular file"),
    "device": (add("home/evil", tarfile.CHRTYPE), "is not a regular file"),
    "pipe": (add("home/evil", tarfile.FIFOTYPE), "is not a regular file"),
    "twice": (add("home/state.db"), "'state.db' is in it twice"),
    "file and folder": (add("home/state.db/evil"), "does not belong in a backup"),
    "file as folder": (
        lambda found: found.insert(1, (tarfile.TarInfo("home/skills"), b"")),
        "as a file and as a folder",
    ),
    "not listed": (add("home/skills/evil"), "'skills/evil' in it is missing or changed"),
    "changed": (rewrite, "'SOUL.md' in it is missing or changed"),
    "missing": (lambda found: found.pop(1) and None, "is missing or changed"),
    "no manifest": (lambda found: found.pop() and None, "it is cut off before its end"),
    "manifest of others": (described(files=[]), "its manifest cannot be read"),
    "newer form": (described(format=2, version="9.9"), "was made by a newer Talaria (9.9)"),
    "newer conversations": (described(schema=LATEST + 1), "was made by a newer Talaria"),
}


def test_archive_that_is_not_as_we_made_it_changes_nothing(talaria: Talaria, archive: Path, home: Path) -> None:
    sound = archive.read_bytes()
    for change, sentence in HOSTILE.values():
        archive.write_bytes(sound)
        changed(archive, change)
        refused(talaria, archive, home, sentence)


def refused(talaria: Talaria, archive: Path, home: Path, sentence: str) -> None:
    before = tree(home.parent)
    ended = talaria("restore", str(archive), "--yes")
    assert ended.returncode in (2, 4)
    assert sentence in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert "othing was changed." in ended.stderr
    assert tree(home.parent) == before


def test_archive_that_would_fill_the_disk_is_refused_before_it_is_written(
    talaria: Talaria, archive: Path, home: Path
) -> None:
    with tarfile.open(archive, "w:gz") as tar:
        bomb = tarfile.TarInfo("home/skills/bomb")
        bomb.size = 2 << 30
        tar.fileobj.write(bomb.tobuf())  # pyright: ignore[reportOptionalMemberAccess, reportUnknownMemberType]
    refused(talaria, archive, home, "it would unpack to more than 1,024 MB")
    with tarfile.open(archive, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        long = tarfile.TarInfo("home/skills/long")
        long.pax_headers = {"comment": "x" * (2 << 20)}
        tar.addfile(long)
    refused(talaria, archive, home, "the header of a file in it is too long")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_archive_that_is_larger_than_the_disk_is_refused_before_it_is_written(
    talaria: Talaria, archive: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=66m", "tmpfs", disk], check=True)
    try:
        (disk / "filled").write_bytes(bytes(3 << 20))
        ended = talaria("restore", str(archive), "--yes", env={"TALARIA_HOME": str(disk / "home")})
        assert "Cannot unpack" in ended.stderr
        assert "No space left on device. Nothing was changed." in ended.stderr
        assert [file.name for file in disk.iterdir()] == ["filled"]
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_restores_in_the_same_second_lose_nothing(talaria: Talaria, archive: Path, home: Path) -> None:
    """Whatever the name for the old home would be, it is taken."""
    now = time.time()
    for second in range(30):
        name = time.strftime("home.before-restore-%Y-%m-%d-%H%M%S", time.localtime(now + second))
        put(home.parent / name, "SOUL.md", "You are old.")
    put(home, "SOUL.md", "You are grim.")
    ended = talaria("restore", str(archive), "--yes")
    assert ended.returncode == 0, ended.stderr
    assert (home / "SOUL.md").read_text() == "You are kind."
    souls = [(place / "SOUL.md").read_text() for place in home.parent.glob("home.before-restore-*")]
    assert sorted(souls) == ["You are grim.", *["You are old."] * 30]


def test_old_home_that_cannot_be_put_aside_is_not_deleted(
    talaria: Talaria, archive: Path, home: Path, tmp_path: Path
) -> None:
    refusing = tmp_path / "refusing"
    put(
        refusing,
        "sitecustomize.py",
        "import sys\n"
        "def refuse(event, arguments):\n"
        "    if event == 'os.rename' and 'before-restore' in str(arguments[1]):\n"
        "        raise OSError(28, 'No space left on device')\n"
        "sys.addaudithook(refuse)\n",
    )
    put(home, "SOUL.md", "You are grim.")
    ended = talaria("restore", str(archive), "--yes", env={"PYTHONPATH": str(refusing)})
    (old,) = home.parent.glob("home.restoring-*")
    assert ended.returncode != 0
    assert f"The previous home is in {old}; nothing was deleted." in ended.stderr
    assert (old / "SOUL.md").read_text() == "You are grim."
    assert (home / "SOUL.md").read_text() == "You are kind."


def test_archive_that_breaks_off_changes_nothing(talaria: Talaria, archive: Path, home: Path) -> None:
    content = archive.read_bytes()
    for share in (0.0, 0.3, 0.6, 0.95):
        archive.write_bytes(content[: int(len(content) * share)])
        refused(talaria, archive, home, "This is not a valid backup: it ")


def test_file_that_is_no_archive_changes_nothing(talaria: Talaria, archive: Path, home: Path, tmp_path: Path) -> None:
    archive.write_text("not an archive")
    refused(talaria, archive, home, "This is not a valid backup: it cannot be read")
    ended = talaria("restore", str(tmp_path / "none"), "--yes")
    assert ended.stderr == f"talaria: Cannot read {tmp_path / 'none'}: No such file or directory.\n"


def test_archive_with_damaged_conversations_changes_nothing(talaria: Talaria, archive: Path, home: Path) -> None:
    def damage(found: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        member, content = found[0]
        assert member.name == "home/state.db"
        torn = content[:4096] + b"\xff" * 8192 + content[12288:]
        found[0] = (member, torn)
        files = json.loads(found[-1][1])["files"]
        described(files={**files, "state.db": hashlib.sha256(torn).hexdigest()})(found)

    changed(archive, damage)
    refused(talaria, archive, home, "are damaged")


def test_full_disk_is_told_and_nothing_is_lost(talaria: Talaria, archive: Path, home: Path, tmp_path: Path) -> None:
    def shrink() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    before = tree(home.parent)
    ended = talaria("restore", str(archive), "--yes", preexec_fn=shrink)
    assert (ended.returncode, "Cannot unpack" in ended.stderr) == (2, True)
    ended = talaria("backup", str(tmp_path / "again.tar.gz"), preexec_fn=shrink)
    assert (ended.returncode, ended.stderr.count("\n")) == (4, 1)
    assert "check whether the disk is full" in ended.stderr
    assert tree(home.parent) == before


def test_backup_goes_where_it_outlives_the_home(talaria: Talaria, archive: Path, home: Path, tmp_path: Path) -> None:
    inside = talaria("backup", str(home / "kept.tar.gz"))
    assert (inside.returncode, "is inside the home" in inside.stderr) == (2, True)
    there = talaria("backup", str(archive))
    assert (there.returncode, "already exists" in there.stderr) == (2, True)
    nowhere = talaria("backup", str(tmp_path / "no" / "where.tar.gz"))
    assert (nowhere.returncode, "No backup was made." in nowhere.stderr) == (2, True)


def test_whenever_a_restore_is_killed_there_is_one_whole_home(
    talaria: Talaria, archive: Path, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "killer").mkdir()
    (tmp_path / "killer" / "sitecustomize.py").write_text(KILLER)
    kills = 0
    while True:
        put(home, "SOUL.md", "You are grim.")
        put(home, "skills/later.md", "later")
        old, new = persons(home), {**persons(home), "SOUL.md": b"You are kind."}
        del new["skills/later.md"]
        killing = {"PYTHONPATH": str(tmp_path / "killer"), "KILLED_AT": str(kills + 1)}
        ended = talaria("restore", str(archive), "--yes", env=killing)
        assert persons(home) in (old, new)
        assert (home / "profiles" / "work" / "config.yaml").exists()
        assert previews(talaria) == ["first needle"]
        if ended.returncode == 0:
            break
        assert ended.returncode == -9
        kills += 1
    assert persons(home) == new
    assert kills >= 8


def persons(home: Path) -> dict[str, bytes]:
    """What a backup has, or a restore takes along."""
    return {name: content for name, content in tree(home).items() if name.split("/")[0] not in LEFT}
