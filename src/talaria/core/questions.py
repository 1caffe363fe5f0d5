"""Questions to a person, and their answers, as every surface shows them."""

import hashlib
from typing import Literal

import msgspec

from talaria.core.messages import FileChange

Answer = Literal["no", "once", "session", "project", "always"]
ANSWERS: tuple[Answer, ...] = ("no", "once", "session", "project", "always")
"""From the one that allows least to the one that allows most."""
SHORT_LINES = 8
"""The end of a longer text may be off the screen."""


class Instead(msgspec.Struct, frozen=True):
    """No, and what the model should do instead."""

    words: str


class Measure(msgspec.Struct, frozen=True):
    """The size and digest of a text, so that showing less of it, or another text, would be noticed."""

    size_bytes: int
    lines: int
    sha256: str
    """Of the UTF-8 bytes."""

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


class Question(msgspec.Struct, frozen=True, tag="approval"):
    """Asks a person to allow something. A surface shows all of it, or refuses; control characters are escaped."""

    id: str
    tool: str
    headline: str
    """Our own words; it may name a path."""
    reason: str = ""
    """Why the person is asked."""
    longest: Answer = "always"
    """How long a yes can hold."""
    in_session: str = ""
    """What a yes for the session would cover, in a few words."""
    content: str | None = None
    """Exactly what would be written, run or sent. None: the headline says it all."""
    noun: str = "text"
    """What `content` is, such as "command" or "new content"."""
    workdir: str = ""
    """The folder in which it would be done."""
    note: str = ""
    """Our own sentence about `content`."""
    changes: tuple[FileChange, ...] = ()
    """The same as `content`, for surfaces that can colour it."""
    model_reason: str = ""
    """Why the model wants it, in its own words. It tries to persuade, so it is shown last."""
    opens_sandbox: bool = False
    """A yes can also hold for this project, or everywhere, until it is revoked. For other questions a permanent yes
    holds for this project and 30 days."""
    title: str = ""
    """The kind of question, in a few words; empty: whether a tool may do this."""

    @property
    def offered(self) -> tuple[Answer, ...]:
        """The answers to choose from, starting with no."""
        answers = ANSWERS[: ANSWERS.index(self.longest) + 1]
        return tuple(one for one in answers if one != "project" or self.opens_sandbox)

    def scope_of(self, answer: Answer) -> str:
        """How long a yes holds and, if it lasts, what it covers: continues a sentence after "yes"."""
        if answer == "once":
            return "this once"
        if not self.opens_sandbox:
            return f"in this conversation: {self.in_session}" if answer == "session" else "always (for 30 days)"
        where = {"session": "this conversation", "project": "this project"}.get(answer, "every project")
        return f"for {where}: {self.in_session}"

    def describe_answer(self, answer: Answer | Instead) -> str:
        """For people, once the question is closed."""
        if isinstance(answer, Instead):
            return f"Denied. Instead: {answer.words}"
        return "Denied." if answer == "no" else f"Allowed, {self.scope_of(answer)}."

    @property
    def model_words(self) -> str:
        """One line that attributes the reason to the model; empty: it gave none."""
        quoted = self.model_reason.replace('"', "'")
        return f'The model says: "{quoted}"' if quoted else ""

    @property
    def text(self) -> str:
        """Everything except the reasons. Each line of the content is indented, so none can pass for ours."""
        parts = [self.headline, *([f"({self.note})"] if self.note else [])]
        if self.content is not None:
            parts.append("  " + (self.content.replace("\n", "\n  ") or "(empty)"))
        if self.workdir:
            is_far = self.content is not None and self.content.count("\n") > SHORT_LINES
            parts.insert(1 if is_far else len(parts), f"  (in {self.workdir})")
        return "\n".join(parts)


class ModelQuestion(msgspec.Struct, frozen=True, tag="model_question"):
    """The model asks something. The person may also answer in their own words."""

    id: str
    text: str
    choices: tuple[str, ...] = ()
