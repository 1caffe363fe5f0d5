"""The screen in tmux: another terminal, which reflows its lines when its size changes."""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from shlex import quote
from textwrap import wrap

import pytest
from tests.scenarios.screen.conftest import READY, RUNNING, being_written, said_to, words_of
from tests.scenarios.screen.emulator import PATIENCE_S, talaria

from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Faults, Reply

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux")


class Tmux:
    """A server of its own with one window."""

    def __init__(self, socket: Path, environment: dict[str, str]) -> None:
        self._socket = socket
        self._environment = environment

    def start(self, *command: str) -> None:
        inside = " ".join(quote(f"{name}={value}") for name, value in self._environment.items() if name != "TERM")
        self("new-session", "-d", "-x", "80", "-y", "24", f"env {inside} {' '.join(map(quote, command))}")

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self._socket), "-f", "/dev/null", *arguments],
            env={**self._environment, "TERM": "xterm-256color"},
            cwd=self._environment["PWD"],
            capture_output=True,
            encoding="utf-8",
            timeout=PATIENCE_S,
            check=False,
        )
        return done.stdout

    def type(self, *keys: str) -> None:
        """Words, or names of keys as tmux knows them."""
        self("send-keys", *keys)

    def lines(self) -> list[str]:
        """What has left the window at the top, and what is in it."""
        return self("capture-pane", "-p", "-J", "-S", "-").rstrip("\n").split("\n")

    def see_rows(self, rows: list[str]) -> None:
        """As they are broken in the window, one below the other."""
        wanted = "\n".join(row.rstrip() for row in rows)
        self.wait(lambda _: wanted in self("capture-pane", "-p"), wanted)

    def resize(self, columns: int, rows: int) -> None:
        self("resize-window", "-x", str(columns), "-y", str(rows))

    def see(self, *texts: str) -> list[str]:
        return self.wait(lambda lines: all(any(text in line for line in lines) for text in texts), texts)

    def wait(self, is_so: Callable[[list[str]], bool], what: object) -> list[str]:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so(lines := self.lines()):
            assert time.monotonic() < deadline, f"{what!r} did not come about on\n" + "\n".join(lines)
        return lines


@pytest.fixture
def tmux(environment: dict[str, str], tmp_path: Path) -> Iterator[Tmux]:
    running = Tmux(tmp_path / "tmux", environment)
    yield running
    running("kill-server")


def test_talk_in_tmux_is_typed_pasted_streamed_interrupted_and_resized(tmux: Tmux, server: ModelServer) -> None:
    server.say("Hello **there**.", "Read.")
    tmux.start(*talaria())
    tmux.see(READY)
    tmux.type("hi", "Enter")
    tmux.see("› hi", "Hello there.")
    pasted = "\n".join(f"pasted line {number}" for number in range(30))
    tmux("set-buffer", pasted)
    tmux("paste-buffer", "-p")
    tmux.see("› [pasted #1: 30 lines]")
    tmux.type("Enter")
    tmux.see("Read.")
    assert said_to(server.requests[1])[-1] == pasted

    words = "\n\n".join(f"Paragraph {number} of many." for number in range(60))
    server.say(Reply(words, chunk_chars=30, faults=Faults(chunk_delay_s=0.01)))
    tmux.type("talk", "Enter")
    tmux.see("Paragraph 10 ")
    tmux.resize(50, 15)
    tmux.see("Paragraph 20 ")
    tmux.type("C-c")
    lines = tmux.see("Interrupted.")
    told = [line for line in lines if line.startswith("Paragraph ")]
    assert len(told) < 60
    assert told == [*words.split("\n\n")[: len(told) - 1], told[-1]]
    tmux.wait(lambda lines: not any(RUNNING in line for line in lines), "the end of the turn")

    server.say("Still **here**.")
    tmux.type("/st", "Tab")
    tmux.see("› /st", "/status")
    tmux.type("C-c")
    tmux.type("and", "C-j", "more", "Enter")
    tmux.see("› and", "  more", "Still here.")
    assert said_to(server.requests[-1])[-1] == "and\nmore"
    tmux.type("C-d")
    tmux.wait(lambda lines: lines == [""], "the end of the window")


def test_nothing_of_the_area_is_kept_above_on_a_cleared_screen(tmux: Tmux, server: ModelServer) -> None:
    tmux.start(*talaria())
    assert prompts(tmux.see(READY, " · sandbox")) == ["›"]
    tmux.type("C-l")
    tmux.wait(lambda _: tmux("capture-pane", "-p").startswith("›"), "the line at the top")
    tmux.type("/stop", "Enter")
    lines = tmux.see("Nothing is running.", " · sandbox")
    assert prompts(lines) == ["› /stop", "›"]
    assert sum(" · sandbox" in line for line in lines) == 1


def prompts(lines: list[str]) -> list[str]:
    return [line.rstrip() for line in lines if line.startswith("›")]


@pytest.mark.parametrize("typed", ["", "typed meanwhile"])
def test_resizing_while_a_paragraph_is_written_loses_and_doubles_nothing(
    tmux: Tmux, server: ModelServer, typed: str
) -> None:
    words = [f"word{number}" for number in range(400)]
    before, written = " ".join(words[:360]), " ".join(words[360:])
    server.say(being_written(f"{before}\n\n{written}"))
    tmux.start(*talaria())
    tmux.see(READY)
    tmux.type("talk", "Enter")
    tmux.see("word399", RUNNING)
    if typed:
        tmux.type(typed)
        tmux.see(f"› {typed}")
    for columns, rows in ((50, 24), (110, 24), (45, 20), (80, 24)):
        tmux.resize(columns, rows)
        tmux.see_rows(wrap(written, columns))
        lines = tmux.wait(lambda lines: words_of(lines) == words, "every word once")
        assert prompts(lines) == ["› talk", f"› {typed}".rstrip()]
        assert sum(RUNNING in line for line in lines) == 1


def test_resizing_again_and_again_while_words_stream_in_loses_and_doubles_nothing(
    tmux: Tmux, server: ModelServer
) -> None:
    words = [f"word{number}" for number in range(900)]
    paragraphs = [" ".join(words[first : first + 30]) for first in range(0, 900, 30)]
    server.say(Reply("\n\n".join(paragraphs), chunk_chars=12, faults=Faults(chunk_delay_s=0.002)))
    tmux.start(*talaria())
    tmux.see(READY)
    tmux.type("talk", "Enter")
    tmux.see("word300 ")
    for columns in (60, 90, 65, 100, 70, 80):
        tmux.resize(columns, 24)  # also before it was told of the last time
    tmux.see("word899", " tokens · ")
    tmux.wait(lambda lines: words_of(lines) == words, "every word once")


def test_line_of_several_rows_is_there_once_after_resizing(tmux: Tmux, server: ModelServer) -> None:
    tmux.start(*talaria())
    tmux.see(READY)
    tmux.type("/help", "Enter")
    tmux.see("Leaving:")
    line = " ".join(f"word{number}" for number in range(30))
    tmux.type(line)
    tmux.see("word29")
    for columns in (50, 100, 60):
        tmux.resize(columns, 24)
        rows = [line[first : first + columns - 2] for first in range(0, len(line), columns - 2)]
        tmux.see_rows([f"› {rows[0]}", *(f"  {row}" for row in rows[1:])])
        assert [prompt[:7] for prompt in prompts(tmux.lines())] == ["› /help", "› word0"]


def test_cursor_stands_where_joined_emoji_and_syllables_end(tmux: Tmux, server: ModelServer) -> None:
    family, syllable = "👩\u200d👩\u200d👧", "क्\u200dष"
    tmux.start(*talaria())
    tmux.see(READY)
    tmux("send-keys", "-l", f"{family}{family} {syllable}")
    tmux.wait(lambda _: tmux("display-message", "-p", "#{cursor_x}").strip() == "9", "two, two, a blank and two")
    tmux.type("Left", "Left", "Left", "x")
    tmux.wait(lambda lines: f"› {family}x{family} {syllable}" in lines, "a letter between the families")
