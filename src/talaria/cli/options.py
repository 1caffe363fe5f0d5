"""The options of a chat."""

import os
import sys
from typing import Literal, NamedTuple

Format = Literal["text", "json", "stream-json"]


class CliOptions(NamedTuple):
    format: Format = "text"
    is_one_shot: bool = False
    model: str | None = None
    resume: str | None = None
    is_continuing: bool = False
    max_turns: int | None = None
    yolo: bool = False

    @property
    def is_interactive(self) -> bool:
        return not self.is_one_shot and sys.stdin is not None and sys.stdin.isatty()

    @property
    def has_screen(self) -> bool:
        """Whether input and output are a terminal that can move its cursor."""
        return (
            self.is_interactive
            and self.format == "text"
            and sys.stdout is not None
            and sys.stdout.isatty()
            and os.environ.get("TERM", "dumb") != "dumb"
        )
