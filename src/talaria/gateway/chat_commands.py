"""The slash commands that only a chat on a platform has."""

from talaria.core.errors import BadInput
from talaria.gateway.control import Control
from talaria.gateway.platform_chat import PlatformChat
from talaria.runtime.chat import Ask, Chat, Outcome, Say
from talaria.runtime.commands import Command, Commands, GivenCommand, PlainMessage
from talaria.runtime.surface_commands import GATEWAY_COMMANDS
from talaria.store.chats import BusyMode
from talaria.tools.person import Answer

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
