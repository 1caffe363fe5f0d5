"""What tools may ask of the person in a conversation. If nobody can be asked, the answer is no."""

import json
from collections.abc import Sequence
from typing import Protocol

import msgspec

from talaria.core.messages import FileChange
from talaria.core.questions import Answer, Instead, Question

MAX_INSTEAD_CHARS = 4_000
ARGUMENTS = "arguments as JSON"
"""The `noun` for what `pretty_json` returns."""


def pretty_json(arguments: object) -> str:
    """The arguments of a call as they were parsed, not as written: a name that occurs twice appears once."""
    return json.dumps(msgspec.to_builtins(arguments), indent=2, ensure_ascii=False)


class Proposal(msgspec.Struct, frozen=True):
    """What a call would do, for the person who decides: a headline of ours, and everything that the model gave."""

    headline: str
    content: str | None = None
    """Exactly what would be written, run or sent. None: the headline says it all."""
    noun: str = "text"
    """What `content` is, such as "command" or "new content"."""
    note: str = ""
    """Our own sentence about `content`."""
    changes: tuple[FileChange, ...] = ()
    """The same as `content`, for surfaces that can colour it: whole diffs, without secrets."""
    model_reason: str = ""
    """Why the model wants it, in its own words."""


class Person(Protocol):
    def may_approve(self) -> bool:
        """Whether their yes counts now. Earlier grants only count while it does."""
        ...

    async def allow(self, question: Question) -> Answer | Instead:
        """Waits for the answer. Cancelling means no. Raises `Denied` if the person cannot be shown all of it."""
        ...

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        """One of `choices`, or the person's own words; None: no answer."""
        ...
