"""How a conversation stands: what is known of it here, and our hold on it."""

from collections.abc import Callable

from talaria.core.entries import MessageAdded, TurnStarted
from talaria.core.ids import Epoch, TurnId
from talaria.core.messages import User
from talaria.runtime.lease import SessionLease
from talaria.runtime.transcript import Transcript, contains_undo
from talaria.store.base import Journal, NewSession

NEVER_HELD = Epoch(0)


class SessionState:
    def __init__(self, tenure: SessionLease, journal: Journal) -> None:
        self.tenure = tenure
        self.view = Transcript()
        self._journal = journal
        self._left_at: Epoch | None = None
        """The epoch of the last turn, after which the view was complete; None: that is not known."""

    def enter(self) -> Epoch | None:
        """The epoch up to which all is known; it has to be left in good order to be known again."""
        left, self._left_at = self._left_at, None
        return left

    def leave(self) -> None:
        self._left_at = self.tenure.last if self.view.open_turn is None else None

    async def begun(self, begin: Callable[[], NewSession]) -> bool:
        """Whether the conversation is begun now, by us: then nobody has ever held it."""
        return self.tenure.row is None and await self.tenure.begin(begin)

    async def hold(self, left: Epoch | None, begin: Callable[[], NewSession]) -> Epoch:
        epoch = await self.tenure.hold(begin)
        if left is None or epoch > left + 1:  # nobody else had it, or it would have grown by more
            await self.read_on()
        return epoch

    async def read_on(self) -> None:
        news = await self._journal.entries(self.tenure.session, self.view.last_seq)
        if self.view.last_seq == 0:
            self.view = Transcript(news)
        elif contains_undo(news):
            await self.look_anew()
        else:
            self.view.extend(news)

    async def look_anew(self) -> None:
        self.view = Transcript(await self._journal.entries(self.tenure.session))

    def forget(self) -> None:
        """Only the hold is kept."""
        self.view = Transcript()

    @property
    def last_asked(self) -> str:
        """What the person said last."""
        said = [one for one in self.view.history if isinstance(one, User) and one.author == "person"]
        return said[-1].text if said else ""

    async def asked_in(self, turn: TurnId) -> str:
        """What the person said at the beginning of a turn."""
        entries = [recorded.entry for recorded in await self._journal.entries(self.tenure.session)]
        start = next(
            index for index, entry in enumerate(entries) if isinstance(entry, TurnStarted) and entry.turn == turn
        )
        said = (entry.message for entry in entries[start:] if isinstance(entry, MessageAdded))
        return next((message.text for message in said if isinstance(message, User)), "")
