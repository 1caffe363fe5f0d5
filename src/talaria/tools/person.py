"""The person behind a conversation, as far as tools may turn to them. Where nobody is there, the answer is no."""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

Answer = Literal["no", "once", "session", "always"]


class Question(msgspec.Struct, frozen=True):
    """What is to be allowed or not."""

    id: str
    tool: str
    text: str
    """What would be done, word for word; a screen shows control signs in it as escapes."""
    reason: str = ""
    """Why it is asked."""
    longest: Answer = "always"
    """How long a yes can hold."""
    in_session: str = ""
    """What a yes for the session would cover, in few words."""


class Person(Protocol):
    def may_approve(self) -> bool:
        """Whether their yes counts now. What they allowed beforehand counts only then, too."""
        ...

    async def allow(self, question: Question) -> Answer:
        """Waits for the answer; may be cancelled, which means no."""
        ...

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        """One of `choices`, or words of their own; None: no answer."""
        ...
