"""The person behind a conversation, as far as tools may turn to them. Where nobody is there, the answer is no."""

import hashlib
import json
from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from talaria.core.messages import FileChange

Answer = Literal["no", "once", "session", "project", "always"]
ANSWERS: tuple[Answer, ...] = ("no", "once", "session", "project", "always")
"""The one that allows least first."""
MAX_INSTEAD_CHARS = 4_000
SHORT_LINES = 8
"""What is short can be seen at once; of what is longer the end may be out of sight."""


class Instead(msgspec.Struct, frozen=True):
    """No, and what to do in its place: told to the model."""

    words: str


class Measure(msgspec.Struct, frozen=True):
    """How long a text is, and its digest: so nobody is shown less of it, or something else, unnoticed."""

    size_bytes: int
    lines: int
    sha256: str
    """Of its bytes in UTF-8."""

    @property
    def text(self) -> str:
        lines = f", {self.lines:,} lines" if self.lines > 1 else ""
        return f"{self._size}{lines}, SHA-256 {self.sha256}"

    @property
    def short(self) -> str:
        """For a small screen."""
        return f"{self._size}, SHA-256 {self.sha256[:16]}…"

    @property
    def _size(self) -> str:
        return f"{self.size_bytes:,} byte{'' if self.size_bytes == 1 else 's'}"


def measure(content: str) -> Measure:
    encoded = content.encode("utf-8", "replace")
    return Measure(len(encoded), content.count("\n") + 1, hashlib.sha256(encoded).hexdigest())


ARGUMENTS = "arguments as JSON"
"""The noun of what `pretty_json` makes."""


def pretty_json(arguments: object) -> str:
    """The arguments of a call as they were read, not as they were written: a name that occurs twice is there once."""
    return json.dumps(msgspec.to_builtins(arguments), indent=2, ensure_ascii=False)


class Proposal(msgspec.Struct, frozen=True):
    """What a call would do, for whoever decides about it: a line of ours, and all that the model gave."""

    headline: str
    content: str | None = None
    """Exactly what would be written, run or sent. None: the headline says it all."""
    noun: str = "text"
    """What `content` is: the "command", the "new content"."""
    note: str = ""
    """A sentence of ours about `content`."""
    changes: tuple[FileChange, ...] = ()
    """What `content` says, for surfaces that can paint it: whole diffs, without secrets."""
    model_reason: str = ""
    """Why the model wants it, in its own words."""


class Question(msgspec.Struct, frozen=True):
    """What is to be allowed or not. A surface shows all of it, or refuses; control characters are shown as escapes."""

    id: str
    tool: str
    headline: str
    """Ours; it may name a path."""
    reason: str = ""
    """Why it is asked."""
    longest: Answer = "always"
    """How long a yes can hold."""
    in_session: str = ""
    """What a yes for the session would cover, in few words."""
    content: str | None = None
    """As in `Proposal`."""
    noun: str = "text"
    workdir: str = ""
    """The folder in which it would be done."""
    note: str = ""
    """As in `Proposal`, and so are the changes."""
    changes: tuple[FileChange, ...] = ()
    model_reason: str = ""
    """As in `Proposal`. It persuades, so it is shown after everything else."""
    opens_sandbox: bool = False
    """A yes can also hold for this project, or everywhere, until it is revoked. Of other questions a yes for good is
    for this project and 30 days."""
    title: str = ""
    """In few words, what kind of question it is; empty: whether a tool may do this."""

    @property
    def offered(self) -> tuple[Answer, ...]:
        """The answers to choose from, no first."""
        answers = ANSWERS[: ANSWERS.index(self.longest) + 1]
        return tuple(one for one in answers if one != "project" or self.opens_sandbox)

    def scope_of(self, answer: Answer) -> str:
        """How long a yes holds and, if it lasts, what it covers: goes on after "yes"."""
        if answer == "once":
            return "this once"
        if not self.opens_sandbox:
            return f"in this conversation: {self.in_session}" if answer == "session" else "always (for 30 days)"
        where = {"session": "this conversation", "project": "this project"}.get(answer, "every project")
        return f"for {where}: {self.in_session}"

    @property
    def model_words(self) -> str:
        """One line, which says whose words they are; empty: it gave no reason."""
        quoted = self.model_reason.replace('"', "'")
        return f'The model says: "{quoted}"' if quoted else ""

    @property
    def text(self) -> str:
        """All of it but the reasons. Every line of the content is indented: none can pass for ours."""
        parts = [self.headline, *([f"({self.note})"] if self.note else [])]
        if self.content is not None:
            parts.append("  " + (self.content.replace("\n", "\n  ") or "(empty)"))
        if self.workdir:
            is_far = self.content is not None and self.content.count("\n") > SHORT_LINES
            parts.insert(1 if is_far else len(parts), f"  (in {self.workdir})")
        return "\n".join(parts)


class Person(Protocol):
    def may_approve(self) -> bool:
        """Whether their yes counts now. What they allowed beforehand counts only then, too."""
        ...

    async def allow(self, question: Question) -> Answer | Instead:
        """Waits for the answer; may be cancelled, which means no. Raises `Denied` if they cannot be shown all of it."""
        ...

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        """One of `choices`, or words of their own; None: no answer."""
        ...
