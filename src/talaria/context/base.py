"""The port of this area: a `Compactor` says what a conversation becomes when its model's window fills."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from talaria.model.compaction import SummaryAuthor
from talaria.model.messages import Message


class Wish(msgspec.Struct, frozen=True):
    """How much shorter, and what about."""

    tokens: int
    """What the prompt takes now."""
    threshold: int
    """Below this it shall be."""
    focus: str = ""
    """What the person wants to be kept above all."""
    keep_last: int | None = None
    """So many of the person's messages, with all that followed, stay as they are."""
    seconds: float | None = None
    """What there is time for."""
    may_ask: bool = True
    """False: a model failed at this a short while ago; go without."""


class Shortened(msgspec.Struct, frozen=True):
    """What the model shall read from now on."""

    messages: tuple[Message, ...]
    summary_by: SummaryAuthor
    """Who wrote the summary; nobody: only old tool output was left out."""


class Compactor(Protocol):
    async def compact(self, messages: Sequence[Message], wish: Wish) -> Shortened | None:
        """None: there is nothing that could be left out."""
        ...
