"""What a person sees at a terminal."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.replies import Reply, call

QUESTION = ", [N]o: "


class Terminal:
    """A command with a terminal in front of it."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self._master, slave = pty.openpty()
        self.screen = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "talaria.cli.main", *arguments],
            env=environment,
            cwd=environment["PWD"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def see(self, text: str) -> str:
        """Wait for `text`; the screen up to and with it, which is then done with."""
        deadline = time.monotonic() + 20
        while text not in self.screen:
            ready, _, _ = select.select([self._master], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{text!r} did not appear in {self.screen!r}"
            self.screen += os.read(self._master, 4096).decode()
        seen, found, self.screen = self.screen.partition(text)
        return seen + found

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        """The exit code, once everything is on the screen."""
        while True:
            try:
                self.screen += os.read(self._master, 4096).decode()
            except OSError:  # how Linux says that the other side is closed
                return self._process.wait(timeout=20)


@pytest.fixture
def open_terminal(environment: dict[str, str]) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        opened.append(Terminal(environment, *arguments))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


EVIL = "safe\x1b[2J\x1b]0;title\x07 \x9b31m\rover\b\u202eodd\u200b end"


def test_escape_sequences_of_the_model_are_made_harmless(
    open_terminal: Callable[..., Terminal], server: ModelServer
) -> None:
    server.say(Reply(EVIL, chunk_chars=3))
    terminal = open_terminal("-q", "x")
    assert terminal.end() == 0
    assert terminal.screen == "safe[2J]0;title 31moverodd end\r\n"


def test_escape_sequences_in_tool_calls_and_kept_conversations_are_made_harmless(
    open_terminal: Callable[..., Terminal], server: ModelServer
) -> None:
    server.say(Reply(calls=(call("terminal", command=f"true {EVIL}"),)), "ok")
    asking = open_terminal("-q", EVIL)
    assert asking.end() == 0
    shown = open_terminal("sessions", "search", "odd")
    listed = open_terminal("sessions", "list")
    assert (shown.end(), listed.end()) == (0, 0)
    deleting = open_terminal("sessions", "delete", listed.screen.split()[0])
    deleting.see("for good? [y/N]: ")
    deleting.type("\n")
    deleting.see("Nothing was deleted.")
    assert deleting.end() == 0
    for terminal in (asking, shown, listed, deleting):
        assert not set(terminal.screen) & {"\x1b", "\x9b", "\x07", "\b", "\u202e", "\u200b"}


@pytest.fixture
def unconfined(server: ModelServer, home: Path) -> None:
    """Commands run on the machine itself, so they are asked about."""
    with (home / "config.yaml").open("a") as config:
        config.write("terminal: {backend: local}\n")


def ask_for(server: ModelServer, *commands: str) -> None:
    calls = tuple(call("terminal", id=f"c{number}", command=command) for number, command in enumerate(commands))
    server.say(Reply(calls=calls), "All told.")


@pytest.mark.usefixtures("unconfined")
def test_unclear_answer_is_asked_for_again(
    open_terminal: Callable[..., Terminal], server: ModelServer, environment: dict[str, str]
) -> None:
    ask_for(server, "touch ran")
    terminal = open_terminal()
    terminal.see("› ")
    terminal.type("go\n")
    terminal.see(QUESTION)
    terminal.type("maybe\n")
    terminal.see("That is no answer. [y]es")
    terminal.type("n\n")
    terminal.see("All told.")


@pytest.mark.usefixtures("unconfined")
def test_new_conversation_asks_again_and_a_title_needs_a_message(
    open_terminal: Callable[..., Terminal], server: ModelServer
) -> None:
    ask_for(server, "true")
    ask_for(server, "true")
    terminal = open_terminal()
    terminal.see("› ")
    terminal.type("/title too soon\n")
    terminal.see("Say something first")
    terminal.type("go\n")
    terminal.see(QUESTION)
    terminal.type("a\n")
    terminal.see("All told.")
    terminal.type("/new\n")
    terminal.see("A new conversation.")
    terminal.type("go\n")
    terminal.see(QUESTION)


def test_conversation_that_is_gone_on_with_is_recalled(
    open_terminal: Callable[..., Terminal],
    talaria: Callable[..., subprocess.CompletedProcess[str]],
    server: ModelServer,
) -> None:
    server.say("Forty-two.")
    talaria("-q", "What is the answer?")
    terminal = open_terminal("-c")
    screen = terminal.see("Forty-two.")
    assert "› What is the answer?" in screen


@pytest.mark.usefixtures("unconfined")
@pytest.mark.parametrize(
    ("answer", "runs"),
    [("", False), ("n", False), ("\x04", False), ("y", True), ("YES", True), ("a", True)],
)
def test_command_runs_only_after_a_clear_yes(
    open_terminal: Callable[..., Terminal],
    server: ModelServer,
    environment: dict[str, str],
    answer: str,
    runs: bool,
) -> None:
    ask_for(server, "touch ran")
    terminal = open_terminal()
    terminal.see("› ")
    terminal.type("go\n")
    asked = terminal.see(QUESTION)
    why = "(asked because it runs outside of any sandbox)"
    assert f"Run this command?\r\n  touch ran\r\n  (in {environment['PWD']})\r\n  {why}\r\n" in asked
    terminal.type(answer if answer == "\x04" else f"{answer}\n")
    terminal.see("All told.")
    assert Path(environment["PWD"], "ran").exists() == runs
    if not runs:
        assert "The person said no" in server.requests[1].json["messages"][-1]["content"]


def test_command_in_the_sandbox_is_not_asked_about(
    open_terminal: Callable[..., Terminal], server: ModelServer, environment: dict[str, str]
) -> None:
    ask_for(server, "touch ran")
    terminal = open_terminal()
    terminal.see("› ")
    terminal.type("go\n")
    assert QUESTION not in terminal.see("All told.")
    assert Path(environment["PWD"], "ran").exists()


@pytest.mark.usefixtures("unconfined")
def test_answer_for_all_holds_for_the_rest_of_the_chat(
    open_terminal: Callable[..., Terminal], server: ModelServer, environment: dict[str, str]
) -> None:
    ask_for(server, "touch one", "touch two")
    terminal = open_terminal()
    terminal.see("› ")
    terminal.type("go\n")
    terminal.see(QUESTION)
    terminal.type("a\n")
    assert QUESTION not in terminal.see("All told.")
    assert sorted(file.name for file in Path(environment["PWD"]).iterdir()) == ["one", "two"]


def test_words_that_come_whole_are_shown(
    open_terminal: Callable[..., Terminal], server: ModelServer, home: Path
) -> None:
    (home / "config.yaml").write_text(
        f"model: {{default: test-model, base_url: '{server.base_url}', streaming: false}}"
    )
    server.say(Reply("Looking.", calls=(call("terminal", command="true"),)), "All at once.")
    terminal = open_terminal("-q", "x")
    assert terminal.end() == 0
    assert terminal.screen.startswith("Looking.\r\n● terminal ")
    assert terminal.screen.endswith("\r\nAll at once.\r\n")


@pytest.mark.usefixtures("unconfined")
def test_nothing_is_asked_with_yolo(
    open_terminal: Callable[..., Terminal], server: ModelServer, environment: dict[str, str]
) -> None:
    ask_for(server, "touch ran")
    terminal = open_terminal("--yolo")
    terminal.see("› ")
    terminal.type("go\n")
    assert QUESTION not in terminal.see("All told.")
    assert Path(environment["PWD"], "ran").exists()


@pytest.mark.usefixtures("unconfined")
def test_what_hides_in_a_command_is_shown_before_it_is_asked_about(
    open_terminal: Callable[..., Terminal], server: ModelServer
) -> None:
    ask_for(server, "rm -rf x \x1b[2K\r\u202e# harmless")
    terminal = open_terminal()
    terminal.see("› ")
    terminal.type("go\n")
    assert r"  rm -rf x \x1b[2K\r\u202e# harmless" in terminal.see(QUESTION)


@pytest.mark.usefixtures("unconfined")
def test_what_was_typed_before_the_question_is_no_answer(
    open_terminal: Callable[..., Terminal], server: ModelServer, environment: dict[str, str]
) -> None:
    ask_for(server, "touch ran")
    terminal = open_terminal()
    terminal.see("› ")
    terminal.type("go\ny\n")
    terminal.see(QUESTION)
    terminal.type("\n")
    terminal.see("All told.")
    assert not Path(environment["PWD"], "ran").exists()


def test_slash_commands_are_obeyed(open_terminal: Callable[..., Terminal], server: ModelServer) -> None:
    server.say("one", '"A fine talk."', "two", "three")
    terminal = open_terminal()
    terminal.see("custom:test-model · session ")
    for typed, answer in [
        ("/help", "Ctrl-C stops an answer."),
        ("/title too early", "talaria: Say something first"),
        ("/title", "talaria: There is nothing to name yet"),
        ("hello", "one"),
        ("/title", "This conversation is called A fine talk."),
        ("/title my talk", "This conversation is called my talk."),
        ("/compress", "There is nothing that could be left out."),
        ("/undo", "Taken back: hello"),
        ("/undo", "There is nothing to take back."),
        ("/retry", "There is nothing to take back."),
        ("hello again", "two"),
        ("/retry", "three"),
        ("/status", "model custom:test-model"),
        ("/nonsense", "There is no command /nonsense; /help lists them."),
        ("/new", "A new conversation."),
    ]:
        terminal.see("› ")
        terminal.type(f"{typed}\n")
        terminal.see(answer)
    terminal.type("/quit\n")
    assert terminal.end() == 0


def test_the_tab_key_completes_a_command(open_terminal: Callable[..., Terminal], server: ModelServer) -> None:
    terminal = open_terminal()
    terminal.see("custom:test-model · session ")
    terminal.see("› ")
    terminal.type("/stat\t")
    terminal.see("/status ")
    terminal.type("\n")
    terminal.see("model custom:test-model")
    terminal.type("/quit\n")
    assert terminal.end() == 0
