"""Questions of the model at the terminal, and how a line is read there while the event loop goes on."""

import asyncio
import os
import sys
import termios
from collections.abc import Sequence

from talaria.cli.safe import visible

MAX_LINE_BYTES = 4096
"""A terminal hands over no longer line."""


async def choose(question: str, choices: Sequence[str]) -> str | None:
    """One of `choices`, by its number, or words of their own; None: no answer."""
    lines = [*question.split("\n"), *(f"{number}  {' '.join(one.split())}" for number, one in enumerate(choices, 1))]
    told = "".join(f"  {visible(line)}\n" for line in lines)  # every line of it set in: none can pass for ours
    hint = "A number, or your own words" if choices else "Your answer"
    answer = await typed(f"\nThe model asks:\n{told}{hint} (Enter: no answer): ")
    if answer.isdecimal() and 1 <= int(answer) <= len(choices):
        return choices[int(answer) - 1]
    return answer or None


async def typed(prompt: str) -> str:
    """A line from the terminal; can be interrupted, unlike `input`."""
    descriptor = sys.stdin.fileno()
    termios.tcflush(descriptor, termios.TCIFLUSH)  # what was typed before the question does not answer it
    sys.stderr.write(prompt)
    sys.stderr.flush()
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[str] = loop.create_future()

    def take() -> None:
        if not arrived.done():
            arrived.set_result(os.read(descriptor, MAX_LINE_BYTES).decode("utf-8", "replace"))

    loop.add_reader(descriptor, take)
    line = ""
    try:
        line = await arrived
    finally:
        loop.remove_reader(descriptor)
        if not line.endswith("\n"):  # Ctrl-C or Ctrl-D: what comes next begins a line of its own
            sys.stderr.write("\n")
            sys.stderr.flush()
    return line.strip()
