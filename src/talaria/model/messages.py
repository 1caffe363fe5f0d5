"""Messages: what the model reads. Immutable, vendor-neutral, and the unit that the journal keeps."""

from typing import Literal

import msgspec

from talaria.model.ids import CallId
from talaria.model.usage import Usage


class Text(msgspec.Struct, frozen=True, tag="text"):
    text: str


class Context(msgspec.Struct, frozen=True, tag="context", omit_defaults=True):
    """What the host adds for the model (date, surroundings); people are not shown it."""

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
    """The vendor's own JSON for this block (signature, encrypted reasoning); replayed only to its origin."""


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
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))


class Assistant(msgspec.Struct, frozen=True, tag="assistant", omit_defaults=True):
    parts: tuple[AssistantPart, ...]
    stop: StopReason = "end"
    usage: Usage | None = None
    origin: str = ""
    """The endpoint that wrote it; sealed thinking goes back there and nowhere else."""

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCall))


Disposition = Literal["done", "none", "unknown"]
"""What is known of a call's effect: it ran to its end, it never started, or nobody can tell."""


class ToolResult(msgspec.Struct, frozen=True, tag="result", omit_defaults=True):
    call_id: CallId
    name: str
    text: str
    is_error: bool = False
    disposition: Disposition = "done"
    images: tuple[Image, ...] = ()
    is_private: bool = False
    """When it was made, something from outside the project had been read in its turn."""


Message = User | Assistant | ToolResult


def user(text: str, *, author: Literal["person", "steering", "host"] = "person") -> User:
    return User((Text(text),), author)
