"""The slash commands that only a chat on a platform has.

A chat on a platform, as slash commands see it.
What can be done about a chat while its turn runs.
"""

from collections.abc import Awaitable, Callable, Sequence

from talaria.core.errors import BadInput
from talaria.core.ids import SessionId, new_session_id
from talaria.gateway.chat_person import Questions
from talaria.gateway.envelope import Received, read_received
from talaria.gateway.gateway_state import GatewayState
from talaria.runtime.chat import Ask, Chat, Outcome, Say
from talaria.runtime.command_host import CommandHost
from talaria.runtime.commands import GATEWAY_COMMANDS, Command, Commands, GivenCommand, PlainMessage, help_text
from talaria.runtime.open_chat import OpenChat, Reason
from talaria.runtime.recorder import Observer
from talaria.runtime.session import LiveSession, ignore
from talaria.runtime.session_pool import SessionPool
from talaria.store.base import Session
from talaria.store.chats import BusyMode
from talaria.store.mail import Inbound
from talaria.tools.person import Answer

Open = Callable[[SessionId, Received], Awaitable[LiveSession]]


class PlatformChat(OpenChat):
    surface = "platform"

    def __init__(self, host: CommandHost, received: Received, live: LiveSession, open_: Open) -> None:
        """`open_` opens a conversation for whoever is here."""
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
        await self._live.hand_over(successor, carry_over=reason == "branch")
        await self._host.store.chats.bind(self.received.key, session, str(arrival.where))
        self._live = successor

    async def attach(self, path: str) -> str:
        raise BadInput(f"Send {path or 'the image'} as a picture.")

    async def hand_off(self, platform: str) -> None:
        raise BadInput(f"This conversation is in a chat already; go to {platform} and /resume it there.")


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


def is_command(commands: Commands, text: str) -> bool:
    """Or something that was meant as one."""
    return not isinstance(commands.parse(text, "platform"), PlainMessage)


def is_urgent(commands: Commands, text: str) -> bool:
    given = commands.parse(text, "platform")
    return isinstance(given, GivenCommand) and given.command.name in URGENT


def _here(chat: Chat) -> PlatformChat:
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
        said = await self._control.stop(_here(chat))
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
        return Say("Told.") if await self._control.steer(_here(chat), text) else Ask(text)

    async def _busy(self, chat: Chat, mode: str) -> Outcome:
        if mode not in _MODES:
            raise BadInput("/busy needs one of queue, steer, interrupt.")
        await self._control.set_busy_mode(_here(chat), _MODES[mode])
        return Say(f"A message that comes while a turn runs will {_DOES[mode]}.")

    async def _approve(self, chat: Chat, how_long: str) -> Outcome:
        answer = _ANSWERS.get(how_long.lower())
        if answer is None:
            raise BadInput("/approve needs one of once, session, project, always, or nothing.")
        return await self._decided(chat, answer)

    async def _deny(self, chat: Chat, instead: str) -> Outcome:
        return await self._decided(chat, "no", instead.strip())

    async def _decided(self, chat: Chat, answer: Answer, instead: str = "") -> Outcome:
        if await self._control.decide(_here(chat), answer, instead):
            return None
        return Say("No question of yours waits for that answer here.")

    async def _sethome(self, chat: Chat, _: str) -> Outcome:
        await self._control.set_home(_here(chat))
        return Say("What nobody has asked for comes here from now on.")

    async def _whoami(self, chat: Chat, _: str) -> Outcome:
        principal = _here(chat).received.principal
        tier = "admin" if principal.is_admin else "user"
        return Say(f"{principal.name or 'You'} · {principal.person} · {tier}")


_DOES = {"queue": "wait for its turn", "steer": "be told to the model at once", "interrupt": "end that turn"}
