"""What a live session is made from, besides the things it works with; and what may differ from turn to turn."""

from pathlib import Path

import msgspec

from talaria.agent.limits import Limits
from talaria.core.entries import Effort, TurnOrigin
from talaria.core.ids import SessionId
from talaria.files import harmless
from talaria.providers.route import Route
from talaria.tools.output import SpillLimits


def spill_folder(home: Path, session: SessionId) -> Path:
    """Where a session's long output is kept."""
    return home / "spill" / harmless(session)


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
