"""Where the person of a conversation at the terminal is: a screen, or lines."""

from collections.abc import Sequence
from typing import Protocol

from talaria.core.entries import Recorded
from talaria.core.errors import TalariaError
from talaria.runtime.open_chat import Reason
from talaria.runtime.recorder import Observer
from talaria.runtime.turn_runner import Report
from talaria.store.base import Session
from talaria.tools.person import Person


class UserInterface(Protocol):
    @property
    def person(self) -> Person | None:
        """None: nobody can be asked."""
        ...

    def say(self, text: str) -> None: ...
    def failed(self, error: TalariaError) -> None:
        """A line could not be heeded, or a turn not be taken."""
        ...

    def observer(self) -> Observer:
        """Of the turn that begins."""
        ...

    def switched(self, reason: Reason) -> None:
        """The conversation is another one from now on."""
        ...

    async def repaint(self, row: Session, entries: Sequence[Recorded]) -> bool:
        """Show the end of a conversation that somebody comes back to. False: nothing is painted here; a few words must
        do."""
        ...

    def ended(self, report: Report) -> None:
        """So did the turn that was observed."""
        ...
