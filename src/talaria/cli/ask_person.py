"""The gate in the interactive chat: asks before a command; no answer means no."""

import asyncio
import os
import sys
import termios

from talaria.cli.safe import visible
from talaria.model.errors import Denied
from talaria.model.messages import ToolCall
from talaria.tools.base import Invocation

YES = frozenset({"y", "yes"})
ALL = frozenset({"a", "all"})
NO = frozenset({"", "n", "no"})
MAX_ANSWER_BYTES = 1024


class AskingGate:
    """One question at a time, also when calls run together."""

    def __init__(self) -> None:
        self._asking = asyncio.Lock()
        self._allows_all = False

    async def admit(self, call: ToolCall, invocation: Invocation) -> None:
        if invocation.question is not None:
            await self._ask(call, invocation.question)

    async def insist(self, call: ToolCall, invocation: Invocation, doubt: str) -> None:
        question = invocation.question or f"{call.name} {call.arguments}"
        await self._ask(call, f"{question}\n  {doubt}", is_insisting=True)

    async def _ask(self, call: ToolCall, question: str, *, is_insisting: bool = False) -> None:
        async with self._asking:
            if self._allows_all and not is_insisting:  # perhaps said while this call waited
                return
            answer = await _ask(f"\n{visible(question)}\n  [y]es, [a]ll in this chat, [N]o: ")
            while answer not in YES | ALL | NO:
                answer = await _ask("  Please answer y, a or n: ")
            self._allows_all = self._allows_all or answer in ALL
        if answer not in YES | ALL:
            raise Denied(f"The person said no to this {call.name} call. Ask what they want instead.")


async def _ask(prompt: str) -> str:
    """A line from the terminal; can be interrupted, unlike `input`."""
    descriptor = sys.stdin.fileno()
    termios.tcflush(descriptor, termios.TCIFLUSH)  # what was typed before the question does not answer it
    sys.stderr.write(prompt)
    sys.stderr.flush()
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def take() -> None:
        if not line.done():
            line.set_result(os.read(descriptor, MAX_ANSWER_BYTES).decode("utf-8", "replace"))

    loop.add_reader(descriptor, take)
    try:
        return (await line).strip().lower()
    finally:
        loop.remove_reader(descriptor)
