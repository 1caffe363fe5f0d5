"""The slash commands that only the screen has: what can be done while a turn runs, and beside it."""

from typing import Protocol

from talaria.cli.conversation import Conversation
from talaria.cli.screen.asides import Asides
from talaria.core.errors import BadInput
from talaria.runtime.chat import Chat, Outcome, Say
from talaria.runtime.commands import Command
from talaria.runtime.surface_commands import SCREEN_COMMANDS


class Steered(Protocol):
    """A talk, as far as one can step in."""

    @property
    def conversation(self) -> Conversation: ...
    @property
    def asides(self) -> Asides: ...
    def stop(self) -> bool:
        """False: nothing runs."""
        ...

    def forget_lines(self) -> int:
        """How many waited."""
        ...

    def enqueue(self, text: str) -> None: ...
    def steered(self, text: str) -> None: ...
    def wants_details(self) -> None: ...


class ScreenCommands:
    def __init__(self, talk: Steered) -> None:
        self._talk = talk

    def all(self) -> tuple[Command, ...]:
        return tuple(spec.command(getattr(self, f"_{spec.name}")) for spec in SCREEN_COMMANDS)

    async def _stop(self, _: Chat, __: str) -> Outcome:
        dropped = self._talk.forget_lines()
        waited = f" {dropped} waiting message(s) dropped." if dropped else ""
        return Say(f"{'Stopping.' if self._talk.stop() else 'Nothing runs.'}{waited}")

    async def _queue(self, _: Chat, text: str) -> Outcome:
        if not text:
            raise BadInput("/queue needs words.")
        self._talk.enqueue(text)
        return None

    async def _steer(self, _: Chat, text: str) -> Outcome:
        if not text:
            raise BadInput("/steer needs words.")
        self._talk.steered(text)
        return None

    async def _background(self, _: Chat, text: str) -> Outcome:
        if not text:
            raise BadInput("/background needs words.")
        number = self._talk.asides.begin(self._talk.conversation.aside(), text)
        return Say(f"Background #{number} has begun.")

    async def _export(self, _: Chat, file: str) -> Outcome:
        return Say(await self._talk.conversation.export(file))

    async def _details(self, _: Chat, __: str) -> Outcome:
        self._talk.wants_details()
        return None

    async def _approve(self, _: Chat, __: str) -> Outcome:
        return Say("A question that waits stands in place of the line: choose with ↑↓ or a letter, then Enter.")

    async def _deny(self, chat: Chat, text: str) -> Outcome:
        return await self._approve(chat, text)

    async def _sethome(self, _: Chat, __: str) -> Outcome:
        return Say("/sethome is said in the chat that should be home, such as on Telegram.")
