"""What a hostile command does with its copy of git's settings: nothing that was not judged reaches the real ones."""

import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from talaria.tools.git_config import NOT_UNDERSTOOD, parse_config
from talaria.tools.git_program import list_settings
from talaria.tools.git_settings import GitSettings
from talaria.tools.sandbox.base import SandboxPolicy

PIECES = (
    *("[core]", "[CORE]\n", '[remote "a"]', '[remote "a.b"]\n', "[branch.old]", "[a]", "[", "]", '""'),
    *('[include "x"]', "\\\n"),
    *(
        "hooksPath",
        "sshCommand = x",
        "url",
        "name",
        "path = ../x",
        "=",
        " = ",
        "\n",
        "\r\n",
        "\r",
        "\t",
        " ",
        "\\",
        "\\\n",
    ),
    *('"', '\\"', "\\n", "\\x", "#", ";", "# c\n", "\ufeff", "\x0b", "\x0c", "\xa0", "\0", "é", "-", ".", "0", "on\n"),
)
"""Of what git reads in a file of settings, and of what it does not."""


def as_git_reads(text: bytes) -> list[tuple[str, str]] | None:
    """None: it refuses the file."""
    words = ("git", "config", "--file", "-", "--no-includes", "--list", "-z")
    ran = subprocess.run(words, input=text, capture_output=True, check=False)
    if ran.returncode != 0:
        return None
    pairs = (entry.partition("\n") for entry in ran.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1])
    return [(key, value if is_set else "true") for key, is_set, value in pairs]


def compare_with_git(pieces: list[str]) -> None:
    """What git takes for a setting we find, too, with the same value. A NUL ends what git reads of a line. Git before
    2.45 reads every white space in a value as a blank."""
    text = "".join(pieces).encode()
    by_git = as_git_reads(text)
    if by_git is not None and "\0" not in "".join(pieces):
        found = [pair for pair in parse_config(text) if pair[0] != NOT_UNDERSTOOD]
        assert [*map(with_blanks, found)] == [*map(with_blanks, by_git)]


def with_blanks(pair: tuple[str, str]) -> tuple[str, str]:
    return pair[0], pair[1].replace("\t", " ").replace("\r", " ")


@settings(max_examples=120, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14))
def test_our_parser_sees_what_git_sees(pieces: list[str]) -> None:
    compare_with_git(pieces)


@pytest.mark.long
@settings(max_examples=10_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(PIECES), max_size=30))
def test_our_parser_sees_what_git_sees_in_many_texts(pieces: list[str]) -> None:
    compare_with_git(pieces)


class Repository:
    """One with a copy of its settings, as commands have it."""

    def __init__(self, folder: Path) -> None:
        self.settings = GitSettings(folder / "home/git/s1", has_mounts=True)
        subprocess.run(["git", "init", "-q", folder / "work"], check=True)
        self.file = folder / "work/.git/config"
        self.run("remote.origin.url", "https://good.example/", file=self.file)
        assert self.settings.prepare(folder / "work")
        self.settings.link_copies([self.file])
        self.copy = folder / "home/git/s1/copies/0/config"

    def run(self, *words: str, file: Path | None = None) -> None:
        subprocess.run(["git", "config", "--file", file or self.copy, *words], check=True)

    def sync(self) -> tuple[list[str], tuple[str, ...]]:
        """What is to be asked about, and what is told."""
        synced = self.settings.sync(unguarded)
        return [change.effect for change in synced.to_ask], synced.messages

    @property
    def known(self) -> dict[str, tuple[str, ...]]:
        return dict(list_settings(self.file.read_bytes()) or {})


@contextmanager
def unguarded(file: Path, content: bytes) -> Generator[None]:
    yield


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "home").mkdir()
    return Repository(tmp_path)


@pytest.mark.parametrize("hidden", ["branch.x.description", "user.name", "remote.origin.fetch", "branch.x.merge"])
@pytest.mark.parametrize("key", ["remote.origin.pushurl", "remote.evil.url", "submodule.lib.url"])
def test_no_address_comes_in_by_way_of_another_setting(repository: Repository, hidden: str, key: str) -> None:
    repository.run(hidden, "https://evil.example/")
    assert repository.sync() == ([], ())
    repository.run("--unset-all", hidden)
    repository.run(key, "https://evil.example/")
    asked, _ = repository.sync()
    assert len(asked) == 1
    assert "https://evil.example/" in asked[0]
    assert key not in repository.known


def test_a_remote_may_have_another_name(repository: Repository) -> None:
    repository.run("--rename-section", "remote.origin", "remote.upstream")
    assert repository.sync() == ([], ())
    assert repository.known["remote.upstream.url"] == ("https://good.example/",)


@pytest.mark.parametrize("version", ["0", "1", "99"])
def test_a_command_cannot_make_the_repository_unreadable(repository: Repository, version: str) -> None:
    before = repository.known["core.repositoryformatversion"]
    repository.run("core.repositoryformatversion", version)
    _, told = repository.sync()
    assert repository.known["core.repositoryformatversion"] == before
    assert bool(told) == ((version,) != before)


@pytest.mark.parametrize(
    "value",
    ["--global", "-f/tmp/x", "--unset-all", "--file=/tmp/x", "-", "--", "x\ny", 'a"b', "a\\b", "é", "#;", " x "],
)
def test_a_value_is_never_an_option_or_anything_else(repository: Repository, value: str) -> None:
    before = repository.known
    repository.copy.write_bytes(repository.copy.read_bytes() + b"[user]\nname = " + quoted(value) + b"\n")
    repository.sync()
    after = repository.known
    assert after.pop("user.name", (value,)) == (value,)
    assert after == before


def quoted(value: str) -> bytes:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'.encode()


def link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize("kind", [Path.touch, Path.mkdir, link])
def test_a_lock_of_somebody_else_is_respected(repository: Repository, kind: Callable[[Path], None]) -> None:
    lock = repository.file.with_name("config.lock")
    kind(lock)
    repository.run("user.name", "Bob")
    _, told = repository.sync()
    assert "config.lock exists" in told[0]
    assert "user.name" not in repository.known
    assert lock.is_symlink() or lock.exists()


def test_what_the_person_sets_meanwhile_wins(repository: Repository) -> None:
    repository.run("user.name", "Bob")
    repository.run("user.name", "Ada", file=repository.file)
    repository.sync()
    assert repository.known["user.name"] == ("Ada",)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=12))
def test_no_value_of_the_person_becomes_another_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / ".gitconfig").unlink(missing_ok=True)
    subprocess.run(["git", "config", "--file", tmp_path / ".gitconfig", "user.name", name], check=True)
    shown = GitSettings(tmp_path / "home/git/s1", has_mounts=True)
    assert shown.prepare(tmp_path)
    view = shown.add_to_policy(SandboxPolicy(project=tmp_path, home=tmp_path))
    assert view.binds
    content = (tmp_path / "home/git/s1/shown/settings").read_bytes()
    of_machine = {"user.name": (name,)}
    listed = dict(list_settings(content) or {})
    assert listed.pop("user.name") == of_machine["user.name"]
    assert not any(key.startswith("user.") for key in listed)
