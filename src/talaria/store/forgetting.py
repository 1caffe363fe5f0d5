"""The port for deleting things for good. Apart from the others, because only the person at the terminal needs it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from talaria.core.errors import SessionBusy
from talaria.core.ids import SessionId
from talaria.store.chat_ports import ChatRow, Inbound
from talaria.store.signal_port import Signal

NOBODY = "forgotten"
"""The name under which forgotten people's model calls stay counted."""


class Stale(msgspec.Struct, frozen=True):
    """A conversation that may be deleted."""

    id: SessionId
    name: str
    """Its title or, without one, its beginning."""
    updated_at: float
    message_count: int
    size_bytes: int
    """The size of its journal."""


class PersonQuery(msgspec.Struct, frozen=True):
    """Somebody on a platform, and how to tell their traces from other people's."""

    platform: str
    user: str
    has_said: Callable[[str], bool]
    """Takes the body of an inbox row: they wrote it."""
    has_chat: Callable[[str], bool]
    """Takes the key of a chat: the key says that it is theirs alone."""
    is_private: Callable[[str], bool]
    """Takes the key of a chat: only one person writes there."""

    @property
    def person(self) -> str:
        return f"{self.platform}:{self.user}"


class Traces(msgspec.Struct, frozen=True):
    """What is kept about somebody."""

    conversations: tuple[SessionId, ...] = ()
    """Those that they started."""
    messages: int = 0
    """In those conversations."""
    inbox: int = 0
    outbox: int = 0
    chats: int = 0
    approvals: int = 0
    grants: int = 0
    signals: int = 0
    """That they sent."""
    tokens: int = 0
    """For the HTTP API, in their name."""
    pairing: int = 0
    """Rows that say that they were let in with a code, or asked for one."""
    homes: int = 0
    """Platforms whose home channel is their chat."""
    spending: int = 0
    """Model calls in their name, which stay counted without it."""
    shared: tuple[SessionId, ...] = ()
    """Other people's conversations in which they wrote, as far as the inbox still shows. These stay."""
    names: tuple[str, ...] = ()
    """Their names when they were let in."""
    folders: tuple[str, ...] = ()
    """Where the agent worked for them and for nobody else."""


class PersonalData:
    """Which of all chats and messages are somebody's."""

    def __init__(
        self,
        who: PersonQuery,
        conversations: Sequence[SessionId],
        mail: Iterable[Inbound],
        chats: Iterable[ChatRow],
        signals: Iterable[Signal],
    ) -> None:
        self.conversations = conversations
        """Those that they started."""
        began = frozenset(conversations)
        self.said = [one for one in mail if one.platform == who.platform and who.has_said(one.body)]
        self.elsewhere = [one for one in self.said if one.session not in began]
        """What they wrote in other people's conversations."""
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
    """What is deleted is overwritten, too; older copies of it are gone after `SqliteStore.erase`."""

    async def stale(self, before: float | None = None, keep: int = 0, *, is_empty: bool = False) -> Sequence[Stale]:
        """Conversations at rest, oldest first: not active since `before`, not among the newest `keep`, and with
        `is_empty` only those without a message."""
        ...

    async def discard(self, session: SessionId) -> bool:
        """Delete it with all that belongs to it. False: it does not exist, or it runs, or mail waits for it."""
        ...

    async def traces(self, who: PersonQuery) -> Traces: ...
    async def forget(self, who: PersonQuery) -> Traces:
        """Returns what there was; all of it is gone, except what `Traces` says stays. Raises `SessionBusy` while their
        turn runs."""
        ...
