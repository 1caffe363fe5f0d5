"""What a live session is made from. Equal setups may share one; what changes per message is an argument of the turn."""

from pathlib import Path

import msgspec

from talaria.agent.limits import Limits
from talaria.model.entries import TurnOrigin
from talaria.providers.base import Effort


class Setup(msgspec.Struct, frozen=True):
    cwd: Path
    home: Path
    origin: TurnOrigin = "terminal"
    limits: Limits = Limits()
    effort: Effort | None = None
    instructions: str = ""
    """Of the embedding program, in place of the person's SOUL.md."""
