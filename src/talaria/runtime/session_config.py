"""What a live session and each of its turns are made from: settings, options, and the mail that a turn answers."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from pathlib import Path

import msgspec

from talaria.agent.budget import Limits
from talaria.core.entries import Effort, TurnOrigin, TurnOutcome
from talaria.core.fs import safe_file_name
from talaria.core.ids import InboxId, SessionId, TurnId
from talaria.providers.base import Route
from talaria.store.base import Write
from talaria.store.chat_ports import InboxDone, InboxTaken, Outgoing
from talaria.tools.executor import Executor
from talaria.tools.output import SpillLimits
from talaria.tools.person import Person


def spill_folder(home: Path, session: SessionId) -> Path:
    """Where a session's long output is kept."""
    return home / "spill" / safe_file_name(session)


class SessionConfig(msgspec.Struct, frozen=True):
    """A live session is used again for as long as this is the same."""

    route: Route
    cwd: Path
    home: Path
    origin: TurnOrigin = "terminal"
    platform: str = "cli"
    """Where the person is, as plugins know it."""
    conversation: str = ""
    """The key under which a chat finds its conversation; empty: the session's id is that."""
    person: str = "local"
    """Who asks, and whose spending is counted together."""
    instructions: str = ""
    """Of the embedding program, in place of the person's SOUL.md."""
    tools: tuple[str, ...] = ()
    """The names of those that the model may use."""
    spill_limits: SpillLimits = SpillLimits()
    settings: str = ""
    """A digest of all other settings that shape a conversation."""


class TurnOptions(msgspec.Struct, frozen=True):
    """What may differ from turn to turn of one live session."""

    limits: Limits = Limits()
    max_attempts: int = 3
    """At one endpoint, before another is asked."""
    effort: Effort | None = None
    """Where the conversation has none of its own; None: as hard as the model does by itself."""
    is_streaming: bool = True


class CurrentSession(msgspec.Struct, frozen=True):
    """For which conversation, and for whom, code runs."""

    session: SessionId
    conversation: str
    platform: str
    person: str
    tools: Callable[[], Executor]
    """As they are now."""


current_session: ContextVar[CurrentSession | None] = ContextVar("current_session", default=None)
"""Known to everything that a turn calls, in whatever thread."""


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
    """Who can be asked; None: nobody."""


class TurnMail(msgspec.Struct, frozen=True):
    """The messages that a turn answers: taken in the commit that starts it, done in the one that ends it, together
    with the replies."""

    ids: tuple[InboxId, ...]
    """Empty: nobody has written, but somebody gets an answer."""
    reply: Callable[[TurnResult], Sequence[Outgoing]]
    on_end: Callable[[], None] = lambda: None
    """Called when the turn's last commit is done: the replies can be sent."""
    asker: Asker | None = None
    """Who wrote; None: for whom the session was made."""
    turn: TurnId | None = None
    """The id under which the turn is to run, so that it is found again after a crash; None: any."""

    def first_writes(self, turn: TurnId) -> tuple[Write, ...]:
        return (InboxTaken(turn, self.ids),) if self.ids else ()

    def last_writes(self, result: TurnResult) -> tuple[Write, ...]:
        done = (InboxDone(self.ids),) if self.ids else ()
        return (*done, *self.reply(result))
