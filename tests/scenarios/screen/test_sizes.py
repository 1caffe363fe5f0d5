"""Screens of every size, with and without colours, and terminals that are none."""

import re
import subprocess
import sys
from pathlib import Path
from textwrap import wrap

import pytest
from tests.scenarios.screen.conftest import READY, RUNNING, OpenScreen, Run, being_written, said_to, see_quiet, words_of
from tests.scenarios.screen.emulator import END, ENTER, Terminal, talaria

from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Faults, Reply, call

COLOUR = re.compile(rb"\x1b\[[0-9;]*\b(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m")
PARAGRAPHS = [f"Paragraph {number} says a few words more than fit into a narrow line." for number in range(40)]


def test_forty_columns_are_enough(open_screen: OpenScreen, server: ModelServer) -> None:
    server.say(
        Reply("Looking at it.", calls=(call("terminal", command=f"echo {'long ' * 30}"),)),
        f"{PARAGRAPHS[0]}\n\n```python\nvalue = '{'x' * 60}'\n```\n\n| a | b |\n|---|---|\n| {'wide ' * 12}| 2 |\n",
    )
    screen = open_screen(columns=40, rows=30, is_ready=False)
    screen.say("go on with a line that is longer than the screen is wide")
    screen.see("narrow line.", " 2")
    see_quiet(screen)
    (tool,) = [line for line in screen.lines if "✓ terminal" in line]
    assert re.search(r"…  \d+\.\d s$", tool)
    screen.wait(lambda: screen.status.startswith("test-model · "), "the status")
    assert screen.status.endswith(" · sandbox strict"), "it is what the model's name has become shorter for"
    assert len(screen.status) <= 40
    told = " ".join(" ".join(screen.lines).split())
    assert PARAGRAPHS[0] in told
    assert "x" * 60 in "".join(line.strip() for line in screen.lines)
    screen.type("and a line that is typed over the edge of it")
    screen.wait(lambda: screen.typed.replace("\n", "") == "and a line that is typed over the edge of it")


@pytest.mark.parametrize("typed", ["", "typed"])
def test_terminal_that_keeps_its_rows_loses_none_of_them(
    open_screen: OpenScreen, server: ModelServer, typed: str
) -> None:
    words = [f"word{number}" for number in range(60)]
    server.say(being_written("\n\n".join([*words[:10], " ".join(words[10:])])))
    screen = open_screen(rows=40, **({"XTERM_VERSION": "XTerm(390)"} if typed else {}))
    screen.say("talk")
    screen.see("word59", RUNNING)
    if typed:
        screen.type(typed)
        screen.see_typed(typed)
    screen.resize(50, 40)
    last = wrap(" ".join(words[10:]), 50)[-2:]
    screen.wait(lambda: last[1] in screen.lines and last[0] in screen.lines, "what is drawn for that width")
    screen.see(RUNNING)
    assert words_of(screen.scrollback) == words


@pytest.mark.parametrize(("columns", "rows"), [(50, 24), (110, 30), (80, 12)])
def test_resizing_while_words_stream_in_loses_and_doubles_nothing(
    open_screen: OpenScreen, server: ModelServer, columns: int, rows: int
) -> None:
    server.say(Reply("\n\n".join(PARAGRAPHS), chunk_chars=20, faults=Faults(chunk_delay_s=0.002)))
    screen = open_screen()
    screen.say("talk")
    screen.see("Paragraph 12 ")
    screen.resize(columns, rows)
    screen.type("typed meanwhile")
    screen.see("Paragraph 39 ")
    see_quiet(screen)
    screen.see_typed("typed meanwhile")
    begun = [line.split()[1] for line in screen.scrollback if line.startswith("Paragraph ")]
    assert begun == [str(number) for number in range(40)]
    assert sum(RUNNING in line for line in screen.scrollback) == 0


def test_wide_signs_are_typed_and_streamed(open_screen: OpenScreen, server: ModelServer) -> None:
    server.say(Reply("翼は**軽い** 🪽 と言う。\n\n- 漢字\n- 🙂", chunk_chars=1))
    screen = open_screen(columns=40)
    screen.type("日本語 🙂 ok")
    screen.wait(lambda: screen.cursor[0] == 2 + 6 + 1 + 2 + 3, "the cursor behind what was typed")
    screen.see_typed("日本語 🙂 ok")
    screen.type("\x7f\x7f\x7f\x7f\x7f語")  # backspaces
    screen.see_typed("日本語語")
    screen.type(ENTER)
    screen.see("› 日本語語", "翼は軽い 🪽 と言う。", " • 漢字", " • 🙂")
    assert said_to(server.requests[0]) == ["日本語語"]
    screen.type("字" * 30)
    screen.wait(lambda: screen.typed.replace("\n", "") == "字" * 30, "what is wider than the screen")


def test_without_colours_nothing_is_coloured(open_screen: OpenScreen, server: ModelServer, work: Path) -> None:
    (work / "f").write_text("one\n")
    server.say(
        Reply(calls=(call("read_file", path="f"),)),
        Reply(calls=(call("patch", path="f", old="one", new="two"),)),
        Reply(calls=(call("clarify", question="Well?", choices=["yes", "no"]),)),
        "# Head\n\nA **heavy** word and `code`.\n\n```python\nreturn 1\n```\n",
    )
    screen = open_screen(NO_COLOR="1")
    screen.type("/he")
    screen.see("  /help ")
    screen.type(f"\x7f\x7f\x7fgo{ENTER}")
    screen.see("The model asks")
    screen.type(ENTER)
    screen.see("return 1", "+two")
    see_quiet(screen)
    screen.type(END)
    assert screen.end() == 0
    assert COLOUR.findall(screen.raw) == []
    assert b"\x1b[1m" in screen.raw or b";1m" in screen.raw, "weight is no colour"


def test_colours_are_there_otherwise(open_screen: OpenScreen, server: ModelServer) -> None:
    screen = open_screen()
    assert COLOUR.findall(screen.raw)


def test_terminal_that_cannot_move_its_cursor_gets_lines(open_screen: OpenScreen, server: ModelServer) -> None:
    server.say("Plain **words**.")
    terminal = open_screen(TERM="dumb")
    terminal.say("hi")
    terminal.see("Plain **words**.")
    terminal.say("/quit")
    assert terminal.end() == 0
    assert b"\x1b[?" not in terminal.raw.replace(b"\x1b[?2004h", b"").replace(b"\x1b[?2004l", b"")


def test_without_a_terminal_each_line_is_a_turn(server: ModelServer, environment: dict[str, str]) -> None:
    server.say("One.", "Two.")
    done = subprocess.run(
        talaria(),
        input="first\nsecond\n",
        env={**environment, "TERM": "xterm-256color"},
        cwd=environment["PWD"],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "One.\nTwo.\n")
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "settings", "sentence"),
    [
        ((), "model: [", "talaria: "),
        ((), "nonsense: 1\n", "talaria: "),
        ((), "display: {steer_key: c-nonsense}\n", "'c-nonsense' is not a key"),
        (("-c",), "", "There is no conversation to continue yet."),
        (("-r", "nothing like it"), "", "nothing like it"),
    ],
)
def test_what_cannot_be_opened_closes_the_screen_with_a_sentence(
    environment: dict[str, str], home: Path, arguments: tuple[str, ...], settings: str, sentence: str
) -> None:
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text(settings)
    with Terminal(talaria(*arguments), {**environment, "TERM": "xterm-256color"}, columns=500) as screen:
        assert screen.end() == 2
        lines = [line for line in screen.lines if line]
        assert len(lines) == 1, screen.text
        assert lines[0].startswith("talaria: ")
        assert sentence in lines[0]
        assert screen.is_restored


def test_profile_that_is_not_there_is_not_made(open_screen: OpenScreen, server: ModelServer, home: Path) -> None:
    screen = open_screen("-p", "nobody", is_ready=False)
    screen.wait(lambda: any(text in screen.text for text in (READY, "talaria: ")), "a screen, or a sentence")
    assert "talaria: There is no profile 'nobody'" in screen.text
    assert not (home / "profiles").exists()
    assert screen.end() == 2


def test_link_in_a_narrow_table_is_written_in_one_piece(open_screen: OpenScreen, server: ModelServer) -> None:
    link = f"https://example.com/{'page/' * 12}index.html"
    server.say(f"| what | where |\n|---|---|\n| docs | {link} |\n\nThat is it.")
    screen = open_screen(columns=40, is_ready=False)
    screen.say("where")
    screen.see("That is it.")
    assert f"\n[1] {link}\r" in screen.raw.decode(), "so that the terminal knows it as one"
    assert "docs  [1]" in screen.text


def test_screen_leaves_its_words_and_nothing_else(open_screen: OpenScreen, server: ModelServer, talaria: Run) -> None:
    server.say("Kept.")
    screen = open_screen()
    screen.say("hi")
    screen.see("Kept.")
    see_quiet(screen)
    screen.type(f"{END}")
    assert screen.end() == 0
    assert "custom:test-model · 20" not in screen.text.split("Kept.")[1], "the status is gone"
    session = talaria("sessions", "list").stdout.split()[0]
    assert f"talaria -r {session}" in screen.text
    assert screen.is_restored
    assert sys.executable not in screen.text
