"""Questions of `talaria setup`: on stderr, a line each. Ctrl-D raises `EOFError`, Ctrl-C `KeyboardInterrupt`."""

import sys
import termios
from collections.abc import Mapping
from getpass import getpass

from talaria.cli.notices import say
from talaria.cli.safe import printable
from talaria.core.secret import Secret


def line(prompt: str) -> str:
    termios.tcflush(sys.stdin, termios.TCIFLUSH)  # what was typed before the question does not answer it
    sys.stderr.write(printable(prompt))
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        raise EOFError
    return answer.strip()


def secret(prompt: str) -> Secret:
    """Typed or pasted without a trace on the screen."""
    return Secret(getpass(printable(prompt), stream=sys.stderr).strip())


def one_of(prompt: str, answers: Mapping[str, str]) -> str:
    """What the answer stands for; asked until it is one."""
    while (given := line(prompt).lower()) not in answers:
        say("That is no answer.")
    return answers[given]
