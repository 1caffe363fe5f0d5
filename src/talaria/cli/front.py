"""Where the person of a conversation at the terminal is: a screen, or lines."""

from typing import Protocol

from talaria.model.errors import TalariaError
from talaria.runtime.recorder import Observer
from talaria.runtime.turn import Report
from talaria.tools.person import Person


class Front(Protocol):
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

    def ended(self, report: Report) -> None:
        """So did the turn that was observed."""
        ...
