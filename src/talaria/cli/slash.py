"""Slash commands: what a person says to the chat itself."""

from typing import Protocol

from talaria.cli.notices import complain, say
from talaria.model.errors import BadInput, TalariaError

_HELP = """\
/new            begin a new conversation
/title NAME     give this one a name (then: talaria -r NAME)
/status         which conversation and model this is
/help           this
/quit           leave (Ctrl-D does, too)
Ctrl-C stops an answer. Anything else is a message."""


class Chat(Protocol):
    """What the commands act on."""

    @property
    def status(self) -> str: ...
    def begin_anew(self) -> None: ...
    def rename(self, title: str) -> None: ...


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
        case "/help":
            say(_HELP)
        case _:
            say(f"There is no command {name}; /help lists them.")
    return True


def _title(chat: Chat, title: str) -> None:
    try:
        if not title:
            raise BadInput("Give a name: /title NAME")
        chat.rename(title)
        say(f"This conversation is called {title}.")
    except TalariaError as error:
        complain(str(error))
