"""The mail that a turn answers. It is taken in the commit that starts the turn and done in the one that ends it,
together with the replies."""

from collections.abc import Callable, Sequence

import msgspec

from talaria.core.entries import TurnOutcome
from talaria.core.ids import InboxId, TurnId
from talaria.store.base import Write
from talaria.store.mail import InboxDone, InboxTaken, Outgoing
from talaria.tools.person import Person


class TurnResult(msgspec.Struct, frozen=True):
    """What a reply can tell of its turn."""

    turn: TurnId
    outcome: TurnOutcome
    text: str
    error: str = ""


class Asker(msgspec.Struct, frozen=True):
    """For whom tools are called."""

    id: str
    person: Person | None = None
    """Who can be asked; None: nobody is there."""


class TurnMail(msgspec.Struct, frozen=True):
    ids: tuple[InboxId, ...]
    """Empty: nobody has written, but somebody is to be answered."""
    reply: Callable[[TurnResult], Sequence[Outgoing]]
    asker: Asker | None = None
    """Who wrote it; None: for whom the session was made."""
    turn: TurnId | None = None
    """The id under which the turn is to run, so that whoever asked finds it again after a crash; None: any."""

    def opening(self, turn: TurnId) -> tuple[Write, ...]:
        return (InboxTaken(turn, self.ids),) if self.ids else ()

    def closing(self, ending: TurnResult) -> tuple[Write, ...]:
        done = (InboxDone(self.ids),) if self.ids else ()
        return (*done, *self.reply(ending))
