"""What live sessions and turns are made from: settings, options, and the mail that a turn answers."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from pathlib import Path

import msgspec

from talaria.agent.budget import Limits
from talaria.core.entries import Effort, TurnOrigin, TurnOutcome
from talaria.core.fs import safe_file_name
from talaria.core.ids import InboxId, SessionId, TurnId
from talaria.providers.base import Route
from talaria.store.api_ports import HistoryPoint
from talaria.store.base import Write
from talaria.store.chat_ports import InboxDone, InboxTaken, Outgoing
from talaria.store.signal_port import SignalId, SignalObeyed
from talaria.tools.executor import Executor
from talaria.tools.output import SpillLimits
from talaria.tools.person import Person


def spill_folder(home: Path, session: SessionId) -> Path:
    """The folder for a session's long output."""
    return home / "spill" / safe_file_name(session)


class SessionConfig(msgspec.Struct, frozen=True):
    """A live session is reused for as long as this stays the same."""

    route: Route
    cwd: Path
    home: Path
    origin: TurnOrigin = "terminal"
    platform: str = "cli"
    """Where the person is, by the name that plugins know."""
    conversation: str = ""
    """The key under which a chat finds its conversation; empty: the session's id."""
    person: str = "local"
    """Who asks, and whose spending is added up."""
    instructions: str = ""
    """From the embedding program, in place of the person's SOUL.md."""
    tools: tuple[str, ...] = ()
    """The names of the tools that the model may use."""
    spill_limits: SpillLimits = SpillLimits()
    settings: str = ""
    """A digest of all other settings that shape a conversation."""


class TurnOptions(msgspec.Struct, frozen=True):
    """What may differ between turns of one live session."""

    limits: Limits = Limits()
    max_attempts: int = 3
    """At one endpoint, before another is tried."""
    effort: Effort | None = None
    """If the conversation has none of its own; None: the model decides."""
    is_streaming: bool = True


class CurrentSession(msgspec.Struct, frozen=True):
    """The conversation and person for which code runs."""

    session: SessionId
    conversation: str
    platform: str
    person: str
    tools: Callable[[], Executor]
    """Makes an executor with the tools as they are now."""


current_session: ContextVar[CurrentSession | None] = ContextVar("current_session", default=None)
"""Set for everything that a turn calls, in any thread."""


class TurnResult(msgspec.Struct, frozen=True):
    """What a reply can say about its turn."""

    turn: TurnId
    outcome: TurnOutcome
    text: str
    error: str = ""
    texts: tuple[str, ...] = ()
    """Of a turn that was completed: all that the model said, also between its calls."""


class Asker(msgspec.Struct, frozen=True):
    """The person for whom tools are called."""

    id: str
    person: Person | None = None
    """Answers questions; None: nobody can be asked."""


class TurnMail(msgspec.Struct, frozen=True):
    """The messages that a turn answers: taken in the commit that starts it, and done in the commit that ends it, which
    also writes the replies."""

    ids: tuple[InboxId, ...]
    """Empty: nobody has written, but somebody gets an answer."""
    reply: Callable[[TurnResult], Sequence[Outgoing | HistoryPoint]]
    on_end: Callable[[], None] = lambda: None
    """Called when the turn's last commit is done: the replies can be sent."""
    asker: Asker | None = None
    """Who wrote; None: the person of the session."""
    turn: TurnId | None = None
    """The turn's id, so that it is found again after a crash; None: any."""
    queued: SignalId | None = None
    """The queued line that the turn answers; obeyed in the commit that starts it, so only one turn ever does."""

    def first_writes(self, turn: TurnId) -> tuple[Write, ...]:
        taken = (InboxTaken(turn, self.ids),) if self.ids else ()
        return taken if self.queued is None else (*taken, SignalObeyed(self.queued))

    def last_writes(self, result: TurnResult) -> tuple[Write, ...]:
        done = (InboxDone(self.ids),) if self.ids else ()
        return (*done, *self.reply(result))
