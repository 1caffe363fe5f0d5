"""The gateway's log: lines of JSON that hold no secret, put aside when they are many."""

import io
import json
import logging
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from talaria.cli.gateway import log as gateway_log
from talaria.core.redaction import Redactor

SECRET = "sk-very-Secret-0815"
log = logging.getLogger("talaria.test")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    root, ours = logging.getLogger(), logging.getLogger("talaria")
    before, level, our_level = root.handlers[:], root.level, ours.level
    root.handlers = []
    gateway_log.set_up(tmp_path, Redactor([SECRET]), is_shown=False)
    yield tmp_path
    for handler in root.handlers:
        handler.close()
    root.handlers = before
    root.setLevel(level)
    ours.setLevel(our_level)


def written(home: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in gateway_log.file(home).read_text().splitlines()]


def test_a_line_says_when_where_and_for_which_conversation(home: Path) -> None:
    log.info("turn %d began", 3, extra={"session": "s1", "turn": "t1"})
    (line,) = written(home)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "INFO",
        "logger": "talaria.test",
        "message": "turn 3 began",
        "session": "s1",
        "turn": "t1",
    }


def test_no_secret_is_written_or_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gateway_log.set_up(home, Redactor([SECRET]), is_shown=True)
    try:
        int(f"bad key {SECRET}")
    except ValueError:
        log.exception("with %s and \udcff\x1b[2J", SECRET)
    (line,) = written(home)
    assert line["message"] == "with ••• and ?\x1b[2J"
    assert line["error"].endswith("with base 10: 'bad key •••'")
    shown = capsys.readouterr().err
    assert "ERROR talaria.test: with ••• and" in shown
    assert SECRET not in shown
    assert "\x1b" not in shown


def test_others_are_heard_only_when_something_is_wrong(home: Path) -> None:
    logging.getLogger("httpx").info("GET /bot123:token/getUpdates")
    logging.getLogger("httpx").warning("slow")
    log.debug("words of somebody")
    assert [line["message"] for line in written(home)] == ["slow"]


def test_a_full_file_is_put_aside_and_all_are_private(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for handler in logging.getLogger().handlers:
        monkeypatch.setattr(handler, "maxBytes", 400, raising=False)
    for number in range(30):
        log.info("line %d", number)
    files = sorted(gateway_log.file(home).parent.iterdir())
    assert [file.name for file in files] == ["gateway.log", *(f"gateway.log.{number}" for number in range(1, 6))]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_a_log_that_cannot_be_written_gets_in_nobodys_way(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gateway_log.file(home).symlink_to(home / "elsewhere")
    log.info("hello")
    assert not (home / "elsewhere").exists()
    assert capsys.readouterr().err == ""


def test_a_terminal_that_is_gone_gets_in_nobodys_way(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr("sys.stderr", gone)
        gateway_log.set_up(home, Redactor(), is_shown=True)
    gone.close()
    log.info("hello")
    assert [line["message"] for line in written(home)] == ["hello"]
    assert capsys.readouterr().err == ""


def test_the_last_lines_are_for_people(home: Path) -> None:
    for number in range(3):
        log.info("line %d\x1b[2J", number, extra={"session": "s1"})
    last = list(gateway_log.lines(home, 2, is_followed=False))
    assert [line.partition(" INFO ")[2] for line in last] == [
        "talaria.test: line 1[2J [s1]",
        "talaria.test: line 2[2J [s1]",
    ]


def test_what_is_written_later_is_followed_also_into_a_new_file(home: Path) -> None:
    log.info("first")
    followed = gateway_log.lines(home, 1, is_followed=True)
    assert next(followed).endswith("first")
    log.info("second")
    assert next(followed).endswith("second")
    log.info("third")
    (handler,) = (one for one in logging.getLogger().handlers if isinstance(one, logging.FileHandler))
    handler.close()
    gateway_log.file(home).rename(home / "put aside")
    log.info("fourth")
    assert next(followed).endswith("third")
    assert next(followed).endswith("fourth")


def test_a_line_that_is_no_json_is_shown_as_it_is() -> None:
    assert gateway_log.format_line("what is\x1b[31m this\n") == "what is[31m this"
