"""What a live session is made from, besides the things it works with."""

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
    is_streaming: bool = True
    instructions: str = ""
    """Of the embedding program, in place of the person's SOUL.md."""
