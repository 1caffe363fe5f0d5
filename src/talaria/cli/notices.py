"""What is said beside the answers: stderr, so that stdout carries only these."""

import sys

from talaria.cli.safe import printable


def say(text: str) -> None:
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def complain(sentence: str) -> None:
    say(f"talaria: {sentence}")
