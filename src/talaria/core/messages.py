"""Messages: what the model reads. Immutable, vendor-neutral, and the unit that the journal keeps.
And the tokens that they cost, in buckets that do not overlap (except `reasoning`, a part of
`output`).
"""

from typing import Literal

import msgspec

from talaria.core.ids import CallId


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    input: int = 0
    """Prompt tokens that were neither read from nor written to a cache."""
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    """Part of `output`."""

    @property
    def prompt(self) -> int:
        return self.input + self.cache_read + self.cache_write

    @property
    def total(self) -> int:
        return self.prompt + self.output

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.reasoning + other.reasoning,
        )


NO_USAGE = Usage()


class ToolSpec(msgspec.Struct, frozen=True):
    name: str
    description: str
    parameters: msgspec.Raw
    """A JSON schema of type object, kept as bytes."""


class Text(msgspec.Struct, frozen=True, tag="text"):
    text: str


class Context(msgspec.Struct, frozen=True, tag="context", omit_defaults=True):
    """What the host adds for the model (date, environment); people do not see it."""

    text: str
    file: str = ""
    """The file or folder outside the project that the person named, resolved: tools may read it."""


class Image(msgspec.Struct, frozen=True, tag="image"):
    media_type: str
    data: str
    """base64"""


class Thinking(msgspec.Struct, frozen=True, tag="thinking", omit_defaults=True):
    text: str = ""
    sealed: str = ""
    """The vendor's own JSON for this block (signature, encrypted reasoning); replayed only to its
    origin."""


class ToolCall(msgspec.Struct, frozen=True, tag="call"):
    id: CallId
    name: str
    arguments: str
    """JSON text exactly as the model wrote it; parsed strictly before anything runs."""


StopReason = Literal["end", "calls", "length", "refused", "interrupted"]

UserPart = Text | Context | Image
AssistantPart = Text | Thinking | ToolCall


class User(msgspec.Struct, frozen=True, tag="user", omit_defaults=True):
    parts: tuple[UserPart, ...]
    author: Literal["person", "steering", "host"] = "person"

    @property
    def text(self) -> str:
        return "\n".join([part.text for part in self.parts if isinstance(part, Text)])


class Assistant(msgspec.Struct, frozen=True, tag="assistant", omit_defaults=True):
    parts: tuple[AssistantPart, ...]
    stop: StopReason = "end"
    usage: Usage | None = None
    origin: str = ""
    """The endpoint that wrote it; sealed thinking is sent back only there."""

    @property
    def text(self) -> str:
        return "".join([part.text for part in self.parts if isinstance(part, Text)])

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCall))


Disposition = Literal["done", "none", "unknown"]
"""What is known about a call's effect: it ran to its end, it never started, or nobody can tell."""


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a call ended, for people. The model reads the text of the result."""

    kind: Literal["done", "failed", "refused", "invalid", "cancelled"] = "done"
    """`invalid`: there is no such tool, or its arguments are wrong."""
    words: str = ""
    """For one line: "exit 3", "killed by SIGSEGV", "timed out after 60 s", or why it was refused.
    """
    refused_by: Literal["", "policy", "person", "nobody"] = ""
    """`nobody`: a person should have been asked, but none was there."""
    output_chars: int = 0
    """How many characters at the start of the text a command has printed; the rest is ours."""


class FileChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call changed in one file, for people."""

    path: str
    """Relative to the project; absolute if it is outside."""
    kind: Literal["created", "changed", "deleted"]
    added: int = 0
    removed: int = 0
    """Lines."""
    diff: str = ""
    """The hunks of a unified diff, of limited length. Empty if it is not text, or too long to compare."""
    note: str = ""
    """What a diff does not show: "binary, 3,100 bytes before, 3,200 now", "mode 644 → 755"."""


class ToolResult(msgspec.Struct, frozen=True, tag="result", omit_defaults=True):
    call_id: CallId
    name: str
    text: str
    is_error: bool = False
    disposition: Disposition = "done"
    images: tuple[Image, ...] = ()
    is_private: bool = False
    """When the result was made, its turn had read something outside the project."""
    outcome: Outcome | None = None
    """None: only `is_error` is known, as in results of earlier versions."""
    changes: tuple[FileChange, ...] = ()
    more_changes: int = 0
    """How many files were changed besides those in `changes`."""


Message = User | Assistant | ToolResult


def user(text: str, *, author: Literal["person", "steering", "host"] = "person") -> User:
    return User((Text(text),), author)
