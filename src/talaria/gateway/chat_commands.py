"""A chat on a platform as slash commands see it, and the commands that only such a chat has."""

from collections.abc import Awaitable, Callable, Sequence

from talaria.core.errors import BadInput
from talaria.core.ids import SessionId, new_session_id
from talaria.gateway.chat_person import Questions
from talaria.gateway.envelope import Mail, Received, read_received
from talaria.gateway.gateway_state import GatewayState
from talaria.runtime.chat import Chat, CommandHost, Reason
from talaria.runtime.commands import GATEWAY_COMMANDS, Ask, Command, Outcome, Say, help_text
from talaria.runtime.lease import Observer
from talaria.runtime.session import LiveSession, ignore
from talaria.runtime.session_pool import SessionPool
from talaria.runtime.turn_runner import RunningTurn
from talaria.store.base import Session
from talaria.store.chat_ports import BusyMode, Inbound
from talaria.tools.person import Answer

Open = Callable[[SessionId, Received], Awaitable[LiveSession]]


class PlatformChat(Chat):
    surface = "platform"

    def __init__(self, host: CommandHost, received: Received, live: LiveSession, open_: Open) -> None:
        """`open_` opens a conversation for the person of this chat."""
        super().__init__(host, None if received.principal.is_admin else received.principal.person)
        self.received = received
        self._live = live
        self._open = open_

    @property
    def live(self) -> LiveSession:
        return self._live

    def observer(self) -> Observer:
        return ignore

    async def help(self) -> str:
        return help_text(self._host.commands, self.surface, is_admin=self.received.principal.is_admin)

    async def switch_to(self, row: Session | None, reason: Reason) -> None:
        """The chat is about another conversation from now on, and so is what waits in it."""
        arrival = self.received.arrival
        session = row.id if row else new_session_id(self._host.clock.now())
        successor = await self._open(session, self.received)
        await self._live.catch_up()
        await self._live.leave_for(successor, carry_over=reason == "branch")
        await self._host.store.chats.bind(self.received.key, session, str(arrival.where))
        self._live = successor

    async def attach(self, path: str) -> str:
        raise BadInput(f"Send {path or 'the image'} as a picture.")

    async def hand_off(self, platform: str) -> None:
        raise BadInput(f"This conversation is in a chat already; go to {platform} and /resume it there.")


Drop = Callable[[Sequence[Inbound]], Awaitable[int]]
"""Messages that wait will not be answered: how many there were."""


class Control:
    """What can be done about a chat while its turn runs."""

    def __init__(self, state: GatewayState, pool: SessionPool, questions: Questions, drop: Drop) -> None:
        self._state = state
        self._store = state.host.store
        self._pool = pool
        self._questions = questions
        self._drop = drop

    async def handle_during_turn(self, mail: Mail) -> bool:
        """A message that comes while a turn runs. False: it waits for its own turn."""
        row, arrival, principal = mail.row, mail.received.arrival, mail.received.principal
        live = self._pool.find(row.session)
        if live is None or self._find_running(row.session) is None:
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
            running.steer(mail.text, row.id)
        return False

    def _find_running(self, session: SessionId) -> RunningTurn | None:
        live = self._pool.find(session)
        return live.running if live else None

    async def stop(self, chat: PlatformChat) -> str:
        """What to say about it; empty: the turn that was stopped says it itself, in the same chat."""
        session, key = chat.session, chat.received.key
        if (running := self._find_running(session)) is not None:
            running.turn.forget_steering()
        dropped = 0
        while True:
            rows = await self._store.inbox.list_pending(session)
            count = await self._drop([row for row in rows if row.state == "new" and read_received(row.body).key == key])
            if not count:
                break
            dropped += count
        told = f"{dropped} waiting message{' was' if dropped == 1 else 's were'} dropped." if dropped else ""
        live, running = self._pool.find(session), self._find_running(session)
        if live is None or running is None:
            return f"Nothing is running here. {told}".rstrip()
        self._state.stopped[running.turn.id] = told
        running.interrupt()
        return "" if live.config.conversation == key else f"Stopped. {told}".rstrip()

    async def steer(self, chat: PlatformChat, text: str) -> bool:
        """Not somebody else's turn: it sees and may do what is theirs. False: no turn runs there."""
        if (running := self._find_running(chat.session)) is None:
            return False
        if running.asker != chat.received.principal.person:
            raise BadInput("The turn that runs is somebody else's. Send a message: it waits for a turn of your own.")
        return running.steer(text)

    async def decide(self, chat: PlatformChat, answer: Answer, instead: str = "") -> bool:
        """False: nothing of theirs waits for this answer."""
        return self._questions.decide(answer, chat.received.arrival.where, chat.received.principal, instead)

    async def set_busy_mode(self, chat: PlatformChat, mode: BusyMode) -> None:
        await self._store.chats.set_busy_mode(chat.received.key, mode)

    async def set_home(self, chat: PlatformChat) -> None:
        where, principal = chat.received.arrival.where, chat.received.principal
        await self._store.chats.set_home(where.platform, str(where), principal.user)


URGENT = frozenset({"stop", "approve", "deny", "status", "steer", "busy", "whoami", "help", "start", "sandbox"})
"""Done at once, also while a turn runs."""
GREETING = (
    "Hello! I am Talaria, an AI agent that works on the computer where it is installed. Send me a message to begin; "
    "/help lists the commands."
)
_MODES: dict[str, BusyMode] = {"queue": "queue", "steer": "steer", "interrupt": "interrupt"}
_ANSWERS: dict[str, Answer] = {
    "": "once",
    "once": "once",
    "session": "session",
    "project": "project",
    "always": "always",
}


def _platform_chat(chat: Chat) -> PlatformChat:
    if not isinstance(chat, PlatformChat):
        raise BadInput("This is for chats on platforms.")
    return chat


class GatewayCommands:
    def __init__(self, control: Control) -> None:
        self._control = control

    def all(self) -> tuple[Command, ...]:
        return tuple(spec.command(getattr(self, f"_{spec.name}")) for spec in GATEWAY_COMMANDS)

    async def _start(self, _: Chat, __: str) -> Outcome:
        """The first thing that Telegram lets people say."""
        return Say(GREETING)

    async def _stop(self, chat: Chat, _: str) -> Outcome:
        said = await self._control.stop(_platform_chat(chat))
        return Say(said) if said else None

    async def _queue(self, chat: Chat, text: str) -> Outcome:
        if text in _MODES:
            return await self._busy(chat, text)
        if not text:
            raise BadInput("/queue needs words, or one of queue, steer, interrupt.")
        return Ask(text)

    async def _steer(self, chat: Chat, text: str) -> Outcome:
        if not text:
            raise BadInput("/steer needs words.")
        return (
            Say("The model will read it in its next round.")
            if await self._control.steer(_platform_chat(chat), text)
            else Ask(text)
        )

    async def _busy(self, chat: Chat, mode: str) -> Outcome:
        if mode not in _MODES:
            raise BadInput("/busy needs one of queue, steer, interrupt.")
        await self._control.set_busy_mode(_platform_chat(chat), _MODES[mode])
        return Say(f"A message that comes while a turn runs will {_DOES[mode]}.")

    async def _approve(self, chat: Chat, how_long: str) -> Outcome:
        answer = _ANSWERS.get(how_long.lower())
        if answer is None:
            raise BadInput("/approve needs one of once, session, project, always, or nothing.")
        return await self._decide(chat, answer)

    async def _deny(self, chat: Chat, instead: str) -> Outcome:
        return await self._decide(chat, "no", instead.strip())

    async def _decide(self, chat: Chat, answer: Answer, instead: str = "") -> Outcome:
        if await self._control.decide(_platform_chat(chat), answer, instead):
            return None
        return Say("No question of yours is waiting for that answer here.")

    async def _sethome(self, chat: Chat, _: str) -> Outcome:
        await self._control.set_home(_platform_chat(chat))
        return Say("Unprompted messages will be sent to this chat.")

    async def _whoami(self, chat: Chat, _: str) -> Outcome:
        principal = _platform_chat(chat).received.principal
        tier = "admin" if principal.is_admin else "user"
        return Say(f"{principal.name or 'You'} · {principal.person} · {tier}")


_DOES = {"queue": "wait for its turn", "steer": "be shown to the model at once", "interrupt": "end that turn"}
