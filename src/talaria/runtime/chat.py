"""The port of slash commands: the chat they act on, and what they want done."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from talaria.core.entries import Effort
from talaria.core.ids import SessionId
from talaria.store.base import Session

if TYPE_CHECKING:
    from talaria.context.engine import HostedEngine


class Say(msgspec.Struct, frozen=True):
    """Tell the person."""

    text: str


class Ask(msgspec.Struct, frozen=True):
    """Run a turn with this message of the person."""

    text: str


class Leave(msgspec.Struct, frozen=True):
    """Close the chat."""

    text: str = ""
    """Last words."""


Outcome = Say | Ask | Leave | None
"""What the surface does about a line. None: nothing more."""


class Chat(Protocol):
    """A person and the conversation in use, as commands see them; each surface brings its own.

    Any method may raise a `TalariaError`, which the surface tells as one sentence.
    """

    @property
    def session(self) -> SessionId:
        """Of the conversation in use, which is on the disk only once something was said."""
        ...

    @property
    def model(self) -> str:
        """`provider:model`."""
        ...

    async def engine(self) -> "HostedEngine | None":
        """The context engine of the conversation in use, if a plugin's engine is chosen. Raises `PluginError`."""
        ...

    async def help(self) -> str: ...
    async def status(self) -> str: ...
    async def usage(self) -> str: ...
    async def tools(self) -> str: ...
    async def attach(self, path: str) -> str:
        """An image goes with the person's next message; says so."""
        ...

    async def begin_anew(self) -> None: ...
    async def resume(self, name: str) -> None:
        """Go on with another conversation: by id, by a unique beginning of it, or by title."""
        ...

    async def branch(self, title: str) -> None:
        """Go on with a copy; the conversation in use until now stays as it is."""
        ...

    async def recall(self) -> str:
        """Where the conversation stands, for one who comes back to it."""
        ...

    async def sessions(self, limit: int) -> Sequence[Session]:
        """Those that this person may go on with, latest first."""
        ...

    async def undo(self) -> str | None:
        """The person's words in the turn that was taken back; None if there was none."""
        ...

    async def files_of_undone(self) -> str:
        """What the turn that was taken back last did to files, and how to put that back; empty: nothing."""
        ...

    async def rollback(self, number: int | None, *, everything: bool) -> str:
        """Files as they were before this checkpoint; without a number, which checkpoints there are. `everything`: also
        those that somebody else has changed since."""
        ...

    async def diff(self, number: int | None) -> str:
        """What has changed in files since this checkpoint, or since the latest."""
        ...

    async def sandbox(self, *, is_whole: bool = False) -> str:
        """How commands are confined, what was allowed and what was blocked."""
        ...

    async def revoke(self, id: str) -> str:
        """Take back what was allowed, by the beginning of its id; what was opened is closed at once."""
        ...

    async def compress(self, focus: str, keep_last: int | None) -> str:
        """What was done; empty: there was nothing to leave out."""
        ...

    async def rename(self, title: str) -> None: ...
    async def hand_off(self, platform: str) -> None:
        """Returns when the conversation goes on over there."""
        ...

    async def proposed_title(self) -> str: ...
    async def use_model(self, name: str) -> None:
        """From the next turn on this model answers here."""
        ...

    async def effort(self) -> tuple[Effort | None, Effort | None]:
        """How hard the model thinks: in this conversation, and by the settings. None: nothing is said about that."""
        ...

    async def set_effort(self, effort: Effort | None) -> None:
        """In this conversation, from the next turn on; None: as the settings say."""
        ...
