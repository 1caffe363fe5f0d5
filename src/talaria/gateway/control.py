"""What can be done about a chat while its turn runs."""

from collections.abc import Awaitable, Callable, Sequence

from talaria.core.errors import BadInput
from talaria.core.ids import SessionId
from talaria.gateway.chat_person import Questions
from talaria.gateway.envelope import Received, read_received
from talaria.gateway.gateway_state import GatewayState
from talaria.gateway.platform_chat import PlatformChat
from talaria.runtime.session_pool import SessionPool
from talaria.store.chats import BusyMode
from talaria.store.mail import Inbound
from talaria.tools.person import Answer

Drop = Callable[[Sequence[Inbound]], Awaitable[int]]
"""What waits is not to be answered: how many there were."""


class Control:
    def __init__(self, desk: GatewayState, pool: SessionPool, questions: Questions, drop: Drop) -> None:
        self._desk = desk
        self._store = desk.host.store
        self._pool = pool
        self._questions = questions
        self._drop = drop

    def is_running(self, session: SessionId) -> bool:
        live = self._pool.find(session)
        return live is not None and live.turn is not None

    async def told_meanwhile(self, row: Inbound, received: Received) -> bool:
        """A message for a turn that runs. False: it waits for its own turn."""
        arrival = received.arrival
        if self._questions.is_waiting_for_words(arrival.where, received.principal):
            if (session := await self._store.inbox.take(row.id)) is not None:
                self._questions.reply(arrival.text, arrival.where, received.principal)
                await self._store.inbox.finish(session, (row.id,))
            return True
        live = self._pool.find(row.session)
        if live is None or live.setup.conversation != received.key:
            return False
        is_theirs = live.asker == received.principal.person
        match await self._mode(received.key):
            case "steer" if is_theirs and not arrival.attachments:
                live.steer(arrival.text, row.id)
            case "interrupt":
                live.interrupt()
            case _:
                pass
        return False

    async def _mode(self, key: str) -> BusyMode:
        chat = await self._store.chats.get(key)
        return (chat.busy_mode if chat else None) or self._desk.settings.busy_mode

    async def stop(self, chat: PlatformChat) -> str:
        """What to say about it; empty: the turn that was stopped says it itself, in the same chat."""
        session, dropped = chat.session, 0
        live = self._pool.find(session)
        if live is not None:
            live.forget_steering()
        while count := await self._dropped(session, chat.received.key):
            dropped += count
        waited = f"{dropped} waiting message{' was' if dropped == 1 else 's were'} dropped." if dropped else ""
        if live is None or live.turn is None:
            return f"Nothing is running here. {waited}".rstrip()
        self._desk.stopped[live.turn] = waited
        live.interrupt()
        return "" if live.setup.conversation == chat.received.key else f"Stopped. {waited}".rstrip()

    async def _dropped(self, session: SessionId, key: str) -> int:
        """How many of the messages that wait there."""
        rows = await self._store.inbox.pending(session)
        return await self._drop([row for row in rows if row.state == "new" and read_received(row.body).key == key])

    async def steer(self, chat: PlatformChat, text: str) -> bool:
        """Not somebody else's turn: it sees and may do what is theirs. False: no turn runs there."""
        live = self._pool.find(chat.session)
        if live is None or live.turn is None:
            return False
        if live.asker != chat.received.principal.person:
            raise BadInput("The turn that runs is somebody else's; a message waits for one of your own.")
        return live.steer(text)

    async def decide(self, chat: PlatformChat, answer: Answer, instead: str = "") -> bool:
        """False: nothing of theirs waits for this answer."""
        return self._questions.decide(answer, chat.received.arrival.where, chat.received.principal, instead)

    async def set_busy_mode(self, chat: PlatformChat, mode: BusyMode) -> None:
        await self._store.chats.set_busy_mode(chat.received.key, mode)

    async def set_home(self, chat: PlatformChat) -> None:
        where, principal = chat.received.arrival.where, chat.received.principal
        await self._store.chats.set_home(where.platform, str(where), principal.user)
