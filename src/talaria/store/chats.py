"""Which conversation a chat is about, and where to turn to when nobody has asked."""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from talaria.core.ids import SessionId

BusyMode = Literal["queue", "steer", "interrupt"]


class ChatRow(msgspec.Struct, frozen=True):
    key: str
    """`agent:main:telegram:dm:42`."""
    session: SessionId
    address: str
    """Where replies to it go; empty until something was said there."""
    busy_mode: BusyMode | None = None
    """None: as the settings say."""


class Chats(Protocol):
    async def get(self, key: str) -> ChatRow | None: ...
    async def bind(self, key: str, session: SessionId, address: str) -> SessionId | None:
        """From now on the chat is about this session; its mail that is still new follows. The session it was before."""
        ...

    async def list_for(self, session: SessionId) -> Sequence[ChatRow]:
        """The chats that are about it, the latest bound first."""
        ...

    async def move(self, key: str, to_key: str, address: str, to: str) -> None:
        """A chat is called otherwise now: `key`, and those of its people, begin with `to_key`; `address` is `to`.

        A chat that has the new key already keeps it.
        """
        ...

    async def set_busy_mode(self, key: str, mode: BusyMode | None) -> None: ...
    async def home(self, platform: str) -> str | None:
        """The address that a person has chosen."""
        ...

    async def home_person(self, platform: str) -> str:
        """The id of whoever chose that address; empty: nobody has, or it is not known."""
        ...

    async def set_home(self, platform: str, address: str, person: str = "") -> None: ...
