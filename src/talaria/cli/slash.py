"""Slash commands: what a person says to the chat itself."""

from typing import Protocol

from talaria.cli.notices import complain, say
from talaria.model.errors import TalariaError

_HELP = """\
/new            begin a new conversation
/title [NAME]   give this one a name, or let the model find one (then: talaria -r NAME)
/status         which conversation and model this is
/usage          what it has used and cost, and what today has
/help           this
/quit           leave (Ctrl-D does, too)
Ctrl-C stops an answer. Anything else is a message."""


class Chat(Protocol):
    """What the commands act on."""

    @property
    def status(self) -> str: ...
    def usage(self) -> str: ...
    def begin_anew(self) -> None: ...
    def rename(self, title: str) -> None: ...
    def proposed_title(self) -> str: ...


def obey(line: str, chat: Chat) -> bool:
    """False to leave."""
    name, _, argument = line.partition(" ")
    match name:
        case "/quit" | "/exit":
            return False
        case "/new" | "/clear" | "/reset":
            chat.begin_anew()
            say("A new conversation.")
        case "/title":
            _title(chat, argument.strip())
        case "/status":
            say(chat.status)
        case "/usage":
            _usage(chat)
        case "/help":
            say(_HELP)
        case _:
            say(f"There is no command {name}; /help lists them.")
    return True


def _title(chat: Chat, title: str) -> None:
    try:
        title = title or chat.proposed_title()
        chat.rename(title)
        say(f"This conversation is called {title}.")
    except TalariaError as error:
        complain(str(error))


def _usage(chat: Chat) -> None:
    try:
        say(chat.usage())
    except TalariaError as error:
        complain(str(error))
