"""Slash commands: what a person says to the chat itself."""

from textwrap import shorten
from typing import Protocol

from talaria.cli.notices import complain, say
from talaria.model.errors import TalariaError

_HELP = """\
/new            begin a new conversation
/title [NAME]   give this one a name, or let the model find one (then: talaria -r NAME)
/undo           take the last exchange back; what its tools did stays done
/retry          take it back and ask again
/compress [about X | here N]
                make the conversation shorter for the model: about X above all, or all but the last N exchanges
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
    def undo(self) -> str | None: ...
    def ask(self, text: str) -> None: ...
    def compress(self, focus: str, keep_last: int | None) -> bool: ...
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
        case "/undo" | "/retry" | "/compress":
            _change(name, argument.strip(), chat)
        case "/status":
            say(chat.status)
        case "/usage":
            _usage(chat)
        case "/help":
            say(_HELP)
        case _:
            say(f"There is no command {name}; /help lists them.")
    return True


def _change(name: str, argument: str, chat: Chat) -> None:
    try:
        if name == "/compress":
            _compress(argument, chat)
            return
        asked = chat.undo()
    except TalariaError as error:
        complain(str(error))
        return
    if asked is None:
        say("There is nothing to take back.")
    elif name == "/undo":
        say(f"Taken back: {shorten(asked, 60, placeholder=' …')}")
    else:
        chat.ask(asked)


def _compress(argument: str, chat: Chat) -> None:
    word, _, rest = argument.partition(" ")
    is_here = word == "here" and rest.isdecimal()
    focus = "" if is_here else rest if word == "about" else argument
    if not chat.compress(focus, int(rest) if is_here else None):
        say("There is nothing that could be left out.")


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
