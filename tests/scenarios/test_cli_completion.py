"""The tab key in a real shell: what stands on the line after it is what the command is given."""

import fcntl
import os
import pty
import select
import shutil
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from talaria.testing.patience import PATIENCE_S

Talaria = Callable[..., subprocess.CompletedProcess[str]]
Press = Callable[[str], str]

SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(talaria completion bash)"'),
    "zsh": (["zsh", "-f", "-i"], 'autoload -Uz compinit; compinit -u -D; eval "$(talaria completion zsh)"'),
    "fish": (["fish", "--no-config", "-i"], "talaria completion fish | source"),
}
COMMAND = f"""#!/bin/sh
[ "$1" = completion ] && exec {sys.executable} -m talaria.cli.main "$@"
printf 'given:'
printf '<%s>' "$@"
echo ':end'
"""
"""It completes as it does, and otherwise tells only what it was given."""


class Terminal:
    """With a shell in it."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self._seen = ""
        self._shell = subprocess.Popen(
            command,
            env=environment,
            cwd=environment["PWD"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  (it has jobs to control)
        )
        os.close(theirs)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def between(self, start: str, end: str) -> str:
        """What is shown next between these."""
        deadline = time.monotonic() + PATIENCE_S
        while not (start in self._seen and end in self._seen.partition(start)[2]):
            ready, _, _ = select.select([self._ours], [], [], max(0, deadline - time.monotonic()))
            assert ready, self._seen
            self._seen += os.read(self._ours, 4096).decode("utf-8", "replace")
        found, _, self._seen = self._seen.partition(start)[2].partition(end)
        return found

    def close(self) -> None:
        self._shell.kill()
        self._shell.wait()
        os.close(self._ours)


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    if shutil.which(request.param) is None:
        pytest.skip(f"there is no {request.param} on this machine")
    return request.param


@pytest.fixture
def press(shell: str, environment: dict[str, str], tmp_path: Path) -> Iterator[Press]:
    """Types this into the shell, then Enter: what the command is given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "talaria").write_text(COMMAND)
    (folder / "talaria").chmod(0o755)
    environment["PATH"] = f"{folder}:{environment['PATH']}"
    command, begin = SHELLS[shell]
    with ExitStack() as stack:
        terminal = Terminal(command, environment)
        stack.callback(terminal.close)
        terminal.type(f"{begin}\ntalaria ready\n")
        terminal.between("given:<ready>:", "end")

        def press(keys: str) -> str:
            terminal.type(f"{keys}\n")
            return terminal.between("given:", ":end")

        yield press


def test_words_of_the_command_are_completed(press: Press, environment: dict[str, str]) -> None:
    Path(environment["PWD"], "picture.png").touch()
    assert press("talaria sess\t") == "<sessions>"
    assert press("talaria sessions exp\t") == "<sessions><export>"
    assert press("talaria gateway st\tx") == "<gateway><stx>"  # start, stop, status
    assert press("talaria chat --out\tj\t") == "<chat><--output-format><json>"
    assert press("talaria config set agent.max_t\t5") == "<config><set><agent.max_turns><5>"
    assert press("talaria chat --image pic\t") == "<chat><--image><picture.png>"


def test_without_a_command_options_are_those_of_chat(press: Press) -> None:
    assert press("talaria --yo\t--cont\t") == "<--yolo><--continue>"
    assert press("talaria -q hi --output-f\ttext --max\t3") == "<-q><hi><--output-format><text><--max-turns><3>"
    assert press("talaria -m openai:gpt-4.\t") == "<-m><openai:gpt-4.1>"


def test_conversations_are_completed_by_title_and_id(press: Press, talaria: Talaria) -> None:
    talaria("-m", "demo", "-q", "hello")
    id = talaria("sessions", "list").stdout.split()[0]
    assert press(f"talaria -r {id[:4]}\t") == f"<-r><{id}>"
    talaria("sessions", "rename", id, "A trip to Rome & back")
    assert press("talaria -r A\\ tr\t") == "<-r><A trip to Rome & back>"
    assert press("talaria -r 'A tr\t") == "<-r><A trip to Rome & back>"
    assert press("talaria sessions show A\t--json") == "<sessions><show><A trip to Rome & back><--json>"


@pytest.mark.parametrize("quote", ["", '"', "'"])
def test_a_title_of_somebody_else_is_never_run(
    press: Press, talaria: Talaria, home: Path, shell: str, quote: str
) -> None:
    talaria("-m", "demo", "-q", "hello")
    id = talaria("sessions", "list").stdout.split()[0]
    title = f"Plan $(touch {home}/run1) `touch {home}/run2`; touch {home}/run3 '; touch {home}/run4"
    talaria("sessions", "rename", id, title)
    is_given = shell != "bash" or not quote  # bash would run it inside of quotes: there it is not offered
    end = "" if is_given else quote
    assert press(f"talaria -r {quote}Pla\t{end}") == f"<-r><{title if is_given else 'Pla'}>"
    assert not list(home.glob("run?"))


def test_what_a_profile_has_is_completed_in_its_home(press: Press, talaria: Talaria) -> None:
    talaria("profiles", "create", "work")
    talaria("-p", "work", "-m", "demo", "-q", "hello")
    id = talaria("-p", "work", "sessions", "list").stdout.split()[0]
    assert press(f"talaria -p wo\t-r {id[:4]}\t") == f"<-p><work><-r><{id}>"
    assert press(f"talaria -r {id[:4]}\t") == f"<-r><{id[:4]}>"


@pytest.mark.parametrize("line", ["talaria -r ", "talaria nonsense x", "talaria -p nobody -r ", "talaria -c word -"])
def test_where_nothing_is_known_nothing_is_said_and_nothing_made(talaria: Talaria, home: Path, line: str) -> None:
    ended = talaria("completion", "bash", "--line", line)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert not home.exists()


def test_platforms_and_their_labels_are_told_for_a_message(talaria: Talaria) -> None:
    token = {"TELEGRAM_BOT_TOKEN": "1:x"}
    assert talaria("completion", "fish", "--line", "talaria send t", env=token).stdout == "telegram\tTelegram\n"


def test_tokens_and_their_scopes_are_told_to_revoke_one(talaria: Talaria) -> None:
    talaria("api", "token", "create", "phone", "--scope", "chat", "--scope", "runs")
    assert talaria("completion", "fish", "--line", "talaria api token revoke p").stdout == "phone\tchat, runs\n"
    assert talaria("completion", "fish", "--line", "talaria api token create p").stdout == ""
