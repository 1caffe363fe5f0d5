"""The port for what is thrown away for good. Beside the others, because only the person at the
terminal needs it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from talaria.core.errors import SessionBusy
from talaria.core.ids import SessionId
from talaria.store.chat_ports import ChatRow, Inbound
from talaria.store.signal_port import Signal

NOBODY = "forgotten"
"""In whose name model calls stay counted."""


class Stale(msgspec.Struct, frozen=True):
    """A conversation that may go."""

    id: SessionId
    name: str
    """Its title, else how it began."""
    updated_at: float
    message_count: int
    size_bytes: int
    """Of its journal."""


class PersonQuery(msgspec.Struct, frozen=True):
    """Somebody on a platform, and how their traces are told from those of others."""

    platform: str
    user: str
    has_said: Callable[[str], bool]
    """Of the body of an inbox row: they said it."""
    has_chat: Callable[[str], bool]
    """Of the key of a chat: by its name it is theirs alone."""
    is_private: Callable[[str], bool]
    """Of the key of a chat: whoever speaks there is alone with us."""

    @property
    def person(self) -> str:
        return f"{self.platform}:{self.user}"


class Traces(msgspec.Struct, frozen=True):
    """What is kept about somebody."""

    conversations: tuple[SessionId, ...] = ()
    """That they began."""
    messages: int = 0
    """In those."""
    inbox: int = 0
    outbox: int = 0
    chats: int = 0
    approvals: int = 0
    grants: int = 0
    signals: int = 0
    """That they sent."""
    pairing: int = 0
    """That they were let in by a code, or asked for one."""
    homes: int = 0
    """Their chat as the home channel of a platform."""
    spending: int = 0
    """Model calls in their name. These stay counted, without the name."""
    shared: tuple[SessionId, ...] = ()
    """Conversations of others in which they spoke, as far as the inbox still tells. These stay."""
    names: tuple[str, ...] = ()
    """How they were called when they were let in."""
    folders: tuple[str, ...] = ()
    """Where the agent worked for them, and for nobody else."""


class PersonalData:
    """What of the chats and of the mail of all is somebody's."""

    def __init__(
        self,
        who: PersonQuery,
        conversations: Sequence[SessionId],
        mail: Iterable[Inbound],
        chats: Iterable[ChatRow],
        signals: Iterable[Signal],
    ) -> None:
        self.conversations = conversations
        """That they began."""
        began = frozenset(conversations)
        self.said = [one for one in mail if one.platform == who.platform and who.has_said(one.body)]
        self.elsewhere = [one for one in self.said if one.session not in began]
        """What they said in conversations of others."""
        self.signals = [one for one in signals if one.by == who.person]
        said_in = {one.key for one in self.said if who.is_private(one.key)}
        own = [one for one in chats if one.session in began or who.has_chat(one.key) or one.key in said_in]
        self.keys = [chat.key for chat in own]
        self.addresses = sorted({chat.address for chat in own if chat.address and who.is_private(chat.key)})

    def check_at_rest(self, is_running: Callable[[SessionId], bool]) -> None:
        """Raises `SessionBusy`."""
        for session in self.conversations:
            if is_running(session):
                raise SessionBusy(f"Session {session} is running a turn of theirs; stop it before forgetting them.")
        for one in self.elsewhere:
            if one.state == "taken":
                raise SessionBusy(f"Session {one.session} is answering a message of theirs; wait until that is done.")
        for signal in self.signals:
            if signal.state == "new" and is_running(signal.session):
                raise SessionBusy(f"Session {signal.session} is about to obey them; wait until that is done.")


class Forgetting(Protocol):
    """What goes is overwritten, not only given up; older copies of it are gone after
    `SqliteStore.erase`."""

    async def stale(self, before: float | None = None, keep: int = 0, *, is_empty: bool = False) -> Sequence[Stale]:
        """Those at rest, oldest first: not active since `before`, not among the newest `keep`,
        without a message."""
        ...

    async def discard(self, session: SessionId) -> bool:
        """Delete it with all that belongs to it. False: it is not at rest (it runs, or mail waits),
        or not there."""
        ...

    async def traces(self, who: PersonQuery) -> Traces: ...
    async def forget(self, who: PersonQuery) -> Traces:
        """What was there, and is gone but for what `Traces` says. Raises `SessionBusy` while their
        turn runs."""
        ...
