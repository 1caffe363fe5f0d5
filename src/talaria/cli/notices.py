"""What is said to a person: answers on stdout, and all that is said beside them on stderr."""

import os
import sys

from talaria.cli.command_name import runnable
from talaria.cli.safe import printable


def show(*lines: str) -> None:
    """On stdout."""
    sys.stdout.writelines(f"{printable(line)}\n" for line in lines)
    sys.stdout.flush()


def say(text: str) -> None:
    """On stderr; commands in it are named so that they can be typed."""
    sys.stderr.write(f"{printable(runnable(text))}\n")
    sys.stderr.flush()


def complain(sentence: str) -> None:
    say(f"talaria: {sentence}")


def discard_output() -> None:
    """Whoever read stdout has left: what is written there from now on goes nowhere, and is no failure."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
