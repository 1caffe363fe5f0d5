"""A chat on a platform as slash commands see it, and the commands that only such a chat has."""

from collections.abc import Awaitable, Callable, Sequence

from talaria.core.errors import BadInput
from talaria.core.ids import SessionId, new_session_id
from talaria.core.questions import Answer
from talaria.gateway.conversations import Conversations
from talaria.gateway.envelope import Mail, Received, read_received
from talaria.gateway.gateway_state import GatewayState
from talaria.runtime.chat import Chat, CommandHost, Reason
from talaria.runtime.commands import GATEWAY_COMMANDS, Ask, Command, Outcome, Say, help_text
from talaria.runtime.lease import Observer
from talaria.runtime.session import LiveSession, ignore
from talaria.runtime.turn_runner import RunningTurn
from talaria.runtime.turn_signals import SignalSender
from talaria.store.base import Session
from talaria.store.chat_ports import BusyMode, Inbound

URGENT = frozenset({"stop", "approve", "deny", "status", "steer", "busy", "whoami", "help", "start", "sandbox"})
"""Done at once, even while a turn runs."""
GREETING = (
    "Hello! I am Talaria, an AI agent that works on the computer where it is installed. Send me a message to begin; "
    "/help lists the commands."
)
_MODES: dict[str, tuple[BusyMode, str]] = {
    "queue": ("queue", "wait for its turn"),
    "steer": ("steer", "be shown to the model at once"),
    "interrupt": ("interrupt", "end that turn"),
}
_ANSWERS: dict[str, Answer] = {
    "": "once",
    "once": "once",
    "session": "session",
    "project": "project",
    "always": "always",
}


class PlatformChat(Chat):
    surface = "platform"

    def __init__(self, host: CommandHost, received: Received, live: LiveSession, conversations: Conversations) -> None:
        super().__init__(host, None if received.principal.is_admin else received.principal.person)
        self.received = received
        self._live = live
        self._conversations = conversations

    @property
    def live(self) -> LiveSession:
        return self._live

    def observer(self) -> Observer:
        return ignore

    def help(self) -> str:
        return help_text(self.host.commands, self.surface, is_admin=self.received.principal.is_admin)

    async def switch_to(self, row: Session | None, reason: Reason) -> None:
        """From now on the chat is about another conversation, and so is what waits in it."""
        session = row.id if row else new_session_id(self.host.clock.now())
        successor = await self._conversations.open(session, self.received)
        await self._live.catch_up()
        await self._live.leave_for(successor, carry_over=reason == "branch")
        await self.host.store.chats.bind(self.received.key, session, str(self.received.arrival.where))
        self._live = successor

    async def attach(self, path: str) -> str:
        raise BadInput(f"Send {path or 'the image'} as a picture.")

    async def hand_off(self, platform: str) -> None:
        raise BadInput(f"This conversation is in a chat already; go to {platform} and /resume it there.")


def _platform_chat(chat: Chat) -> PlatformChat:
    if not isinstance(chat, PlatformChat):
        raise BadInput("This is for chats on platforms.")
    return chat


class Control:
    """What people can do about a chat while its turn runs: by a message, or by the commands that only chats have."""

    def __init__(self, state: GatewayState, drop: Callable[[Sequence[Inbound]], Awaitable[int]]) -> None:
        """`drop` finishes waiting messages without an answer, and returns how many there were."""
        self._state = state
        self._store = state.host.store
        self._pool = state.pool
        self._questions = state.questions
        self._drop = drop

    async def handle_during_turn(self, mail: Mail) -> bool:
        """A message that comes while a turn runs. False: it waits for its own turn."""
        row, arrival, principal = mail.row, mail.received.arrival, mail.received.principal
        live = self._pool.find(row.session)
        if live is None or self._find_running(row.session) is None or mail.request is not None:
            return False
        if self._questions.is_waiting_for_words(arrival.where, principal):
            if (session := await self._store.inbox.take(row.id)) is not None:
                self._questions.reply(mail.text, arrival.where, principal)
                await self._store.inbox.finish(session, (row.id,))
            return True
        if live.config.conversation != mail.received.key:
            return False
        chat = await self._store.chats.get(mail.received.key)
        mode = (chat.busy_mode if chat else None) or self._state.settings.busy_mode
        if (running := self._find_running(row.session)) is None:  # it has ended meanwhile
            return False
        if mode == "interrupt":
            running.interrupt()
        elif mode == "steer" and running.asker == principal.person and not arrival.attachments:
            running.steer(mail.text, mail=row.id)
        return False

    def _find_running(self, session: SessionId) -> RunningTurn | None:
        live = self._pool.find(session)
        return live.running if live else None

    def commands(self) -> tuple[Command, ...]:
        return tuple(spec.command(getattr(self, f"_{spec.name}")) for spec in GATEWAY_COMMANDS)

    async def _start(self, _: Chat, __: str) -> Outcome:
        """The first thing that Telegram lets people say."""
        return Say(GREETING)

    async def _stop(self, chat: Chat, _: str) -> Outcome:
        """Drops what waits, and interrupts the turn, which then reports its end itself in its chat."""
        session, key = chat.session, _platform_chat(chat).received.key
        if (running := self._find_running(session)) is not None:
            running.turn.forget_steering()
        dropped = 0
        while True:
            rows = await self._store.inbox.list_pending(session)
            count = await self._drop([row for row in rows if row.state == "new" and read_received(row.body).key == key])
            if not count:
                break
            dropped += count
        note = f"{dropped} waiting message{' was' if dropped == 1 else 's were'} dropped." if dropped else ""
        live, running = self._pool.find(session), self._find_running(session)
        if live is None or running is None:
            if not await self._is_run_elsewhere(session):
                return Say(f"Nothing is running here. {note}".rstrip())
            await self._sender(chat).stop(session)
            return Say(f"Stopped at the terminal. {note}".rstrip())
        self._state.stopped[running.turn.id] = note
        running.interrupt()
        return None if live.config.conversation == key else Say(f"Stopped. {note}".rstrip())

    async def _queue(self, chat: Chat, text: str) -> Outcome:
        if text in _MODES:
            return await self._busy(chat, text)
        if not text:
            raise BadInput("/queue needs a message, or one of queue, steer, interrupt.")
        return Ask(text)

    async def _steer(self, chat: Chat, text: str) -> Outcome:
        if not text:
            raise BadInput("/steer needs a message.")
        principal = _platform_chat(chat).received.principal
        person = principal.person
        if (running := self._find_running(chat.session)) is None:
            if not principal.is_admin or not await self._is_run_elsewhere(chat.session):
                return Ask(text)
            await self._sender(chat).steer(chat.session, text)
            return Say("The model will read it in its next round, at the terminal.")
        if running.asker != person:  # it sees and may do what is theirs
            raise BadInput("The running turn is somebody else's. Send a message: it waits for a turn of your own.")
        return Say("The model will read it in its next round.") if running.steer(text) else Ask(text)

    async def _is_run_elsewhere(self, session: SessionId) -> bool:
        return await self._store.journal.holder(session) not in (None, self._state.host.owner)

    def _sender(self, chat: Chat) -> SignalSender:
        """For a turn that another process runs."""
        principal, host = _platform_chat(chat).received.principal, self._state.host
        return SignalSender(
            host.store, host.links.changes, host.links.folder, by=principal.person, surface=principal.platform
        )

    async def _busy(self, chat: Chat, word: str) -> Outcome:
        if word not in _MODES:
            raise BadInput("/busy needs one of queue, steer, interrupt.")
        mode, effect = _MODES[word]
        await self._store.chats.set_busy_mode(_platform_chat(chat).received.key, mode)
        return Say(f"A message that comes while a turn runs will {effect}.")

    async def _approve(self, chat: Chat, how_long: str) -> Outcome:
        answer = _ANSWERS.get(how_long.lower())
        if answer is None:
            raise BadInput("/approve needs one of once, session, project, always, or nothing.")
        return self._decide(chat, answer)

    async def _deny(self, chat: Chat, instead: str) -> Outcome:
        return self._decide(chat, "no", instead.strip())

    def _decide(self, chat: Chat, answer: Answer, instead: str = "") -> Outcome:
        received = _platform_chat(chat).received
        if self._questions.decide(answer, received.arrival.where, received.principal, instead):
            return None
        return Say("No question of yours is waiting for that answer here.")

    async def _sethome(self, chat: Chat, _: str) -> Outcome:
        received = _platform_chat(chat).received
        where = received.arrival.where
        await self._store.chats.set_home(where.platform, str(where), received.principal.user)
        return Say("Unprompted messages will be sent to this chat.")

    async def _whoami(self, chat: Chat, _: str) -> Outcome:
        principal = _platform_chat(chat).received.principal
        tier = "admin" if principal.is_admin else "user"
        return Say(f"{principal.name or 'You'} · {principal.person} · {tier}")
