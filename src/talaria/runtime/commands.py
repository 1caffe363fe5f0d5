"""The table of slash commands: which word means which command, and what follows from that: help, completion, menus.

The commands that only one surface has are declared here, without their code, so that their words are reserved on every
surface before plugins register: the same word must not mean different things at the terminal and in a chat.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal

import msgspec

from talaria.core.errors import OperatorError

if TYPE_CHECKING:
    from talaria.runtime.chat import Chat

Category = Literal["conversation", "model", "info", "plugins", "leave"]
Surface = Literal["terminal", "platform"]


class Say(msgspec.Struct, frozen=True):
    """Tell the person."""

    text: str


class Ask(msgspec.Struct, frozen=True):
    """Run a turn with this as the person's message."""

    text: str


class Leave(msgspec.Struct, frozen=True):
    """Close the chat."""

    text: str = ""
    """Last words."""


Outcome = Say | Ask | Leave | None
"""What the surface does after a command. None: nothing."""
Run = Callable[["Chat", str], Awaitable[Outcome]]

MAX_MENU_DESCRIPTION_CHARS = 256
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_MENU_NAME = re.compile(r"[a-z0-9_]{1,32}")

_HEADINGS: dict[Category, str] = {
    "conversation": "Conversation",
    "model": "Model",
    "info": "Information",
    "plugins": "Plugins",
    "leave": "Leaving",
}
_WIDEST_USE = 20
_FOOTERS: dict[Surface, str] = {
    "terminal": "Ctrl-C stops an answer. Anything else is a message; //text sends /text as one.",
    "platform": "Anything else is a message; //text sends /text as one.",
}


class NameTaken(OperatorError):
    """Another command has this word."""


class UnfitName(OperatorError):
    """Not every keyboard and platform has the characters of this name."""


class Command(msgspec.Struct, frozen=True):
    name: str
    description: str
    category: Category
    run: Run
    aliases: tuple[str, ...] = ()
    args_hint: str = ""
    cli_only: bool = False
    gateway_only: bool = False
    is_for_admins: bool = False
    """In a chat on a platform: only for admins, who may do all that the person at the terminal may."""
    in_chats: str = ""
    """What it does in a chat on a platform, if that is less. It takes no argument there."""
    owner: str = ""
    """`plugin:NAME`, `context-engine:NAME`; empty for built-in commands."""

    @property
    def words(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    def is_for(self, surface: Surface) -> bool:
        return not (self.gateway_only if surface == "terminal" else self.cli_only)


class CommandSpec(msgspec.Struct, frozen=True):
    """A built-in command without its code."""

    name: str
    description: str
    aliases: tuple[str, ...] = ()
    args_hint: str = ""
    category: Category = "conversation"
    cli_only: bool = False
    gateway_only: bool = False
    is_for_admins: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    def command(self, run: Run) -> Command:
        return Command(run=run, **msgspec.structs.asdict(self))


class GivenCommand(msgspec.Struct, frozen=True):
    command: Command
    argument: str


class PlainMessage(msgspec.Struct, frozen=True):
    """Not a command: a message for the model."""

    text: str


class Unclear(msgspec.Struct, frozen=True):
    """No command has this word, or several could be meant; `str()` of it is one clear sentence."""

    word: str
    candidates: tuple[str, ...]
    is_ambiguous: bool = False

    def __str__(self) -> str:
        names = [f"/{name}" for name in self.candidates]
        if self.is_ambiguous:
            return f"/{self.word} fits more than one command: {', '.join(names)}."
        hint = f" did you mean {' or '.join(names)}?" if names else ""
        return f"There is no command /{self.word};{hint} /help lists them."


ParsedLine = GivenCommand | PlainMessage | Unclear


def normalise(word: str) -> str:
    """A command's name: lower case, no slash, and hyphens for spaces and underscores."""
    return _fold(word).strip("/-")


def _fold(word: str) -> str:
    return re.sub(r"[\s_-]+", "-", word.lower())


class Commands:
    def __init__(self, commands: Iterable[Command] = (), *, reserved: Iterable[CommandSpec] = ()) -> None:
        """The words of `reserved` are kept for built-in commands, whether or not those are added later."""
        self._reserved = {word: spec for spec in reserved for word in spec.words}
        self._by_word: dict[str, Command] = {}
        for command in commands:
            self.add(command)

    def add(self, command: Command) -> None:
        """Add all of its words or, if one is taken, none, so that no help text promises another command's word.

        Raises `NameTaken`, `UnfitName`.
        """
        name = normalise(command.name)
        aliases = tuple(dict.fromkeys(alias for word in command.aliases if (alias := normalise(word)) != name))
        for word in (name, *aliases):
            if not _NAME.fullmatch(word):
                raise UnfitName(f"No command can be called {word!r}: use only a to z, digits and hyphens.")
        added = msgspec.structs.replace(
            command, name=name, aliases=aliases, description=" ".join(command.description.split())
        )
        for word in added.words:
            if word in self._by_word:
                raise NameTaken(f"{_whose(added)} cannot answer to /{word}: {_whose(self._by_word[word])} does.")
            if added.owner and word in self._reserved:
                built_in = self._reserved[word].name
                raise NameTaken(f"{_whose(added)} cannot answer to /{word}: the built-in /{built_in} does.")
        self._by_word |= dict.fromkeys(added.words, added)

    def remove(self, owner: str) -> None:
        """Remove all that this owner has added."""
        if not owner:
            raise ValueError("commands that are built in cannot be removed")
        self._by_word = {word: command for word, command in self._by_word.items() if command.owner != owner}

    def visible(self, surface: Surface) -> tuple[Command, ...]:
        """In the order in which they were added."""
        return tuple(one for word, one in self._by_word.items() if word == one.name and one.is_for(surface))

    def find(self, word: str, surface: Surface) -> Command | Unclear:
        """By one of its words, or by the beginning of one that fits no other command of this surface."""
        typed, wanted = word.strip().removeprefix("/"), normalise(word)
        exact = self._by_word.get(wanted)
        if exact is not None:
            return exact if exact.is_for(surface) else Unclear(typed, ())
        match list(self._find_by_prefix(wanted, surface)) if wanted else []:
            case []:
                words = [word for command in self.visible(surface) for word in command.words]
                return Unclear(typed, tuple(get_close_matches(wanted, words)))
            case [(_, command)]:
                return command
            case several:
                return Unclear(typed, tuple(candidate for candidate, _ in several), is_ambiguous=True)

    def parse(self, line: str, surface: Surface) -> ParsedLine:
        """`//text` means the message `/text`. If the first word contains another slash, it is a path."""
        if not line.startswith("/"):
            return PlainMessage(line)
        if line.startswith("//"):
            return PlainMessage(line[1:])
        word, *rest = line.split(maxsplit=1)
        if "/" in word[1:]:
            return PlainMessage(line)
        found = self.find(word, surface)
        return found if isinstance(found, Unclear) else GivenCommand(found, rest[0].strip() if rest else "")

    def completions(self, prefix: str) -> list[tuple[str, str]]:
        """At the terminal: each command that may be meant, by its word with this beginning, and its description."""
        begun = self._find_by_prefix(_fold(prefix).lstrip("/"), "terminal")
        return [(word, command.description) for word, command in begun]

    def menu(self, limit: int) -> list[tuple[str, str]]:
        """For a platform: names as Telegram wants them, which `find` understands, with their descriptions.

        Everybody gets the same menu, so commands for admins are left out.
        """
        offered = [one for one in self.visible("platform") if not one.is_for_admins]
        named = [(one.name.replace("-", "_"), one.in_chats or one.description or one.name) for one in offered]
        fit = [(name, text) for name, text in named if _MENU_NAME.fullmatch(name)]
        return [(name, text[:MAX_MENU_DESCRIPTION_CHARS]) for name, text in fit[:limit]]

    def _find_by_prefix(self, prefix: str, surface: Surface) -> Iterator[tuple[str, Command]]:
        for command in self.visible(surface):
            word = next((word for word in command.words if word.startswith(prefix)), None)
            if word is not None:
                yield word, command


async def run_command(given: ParsedLine, chat: "Chat") -> Outcome:
    """Run the command in a line; a message for the model comes back as `Ask`. Raises what the command raises."""
    match given:
        case GivenCommand(command, argument):
            return await command.run(chat, argument)
        case PlainMessage(text):
            return Ask(text)
        case Unclear():
            return Say(str(given))


def help_text(commands: Commands, surface: Surface, *, is_admin: bool = True) -> str:
    """The commands of a surface, for an admin or for somebody else."""
    visible = [one for one in commands.visible(surface) if is_admin or not one.is_for_admins]
    groups = [
        "\n".join([f"{heading}:", *(_help_line(one, surface) for one in visible if one.category == category)])
        for category, heading in _HEADINGS.items()
        if any(one.category == category for one in visible)
    ]
    return "\n\n".join([*groups, _FOOTERS[surface]])


def _help_line(command: Command, surface: Surface) -> str:
    is_less = surface == "platform" and bool(command.in_chats)
    use = f"/{command.name} {'' if is_less else command.args_hint}".rstrip()
    also = f" (also {', '.join(f'/{alias}' for alias in command.aliases)})" if command.aliases else ""
    text = f"{command.in_chats if is_less else command.description}{also}".strip()
    if surface == "platform":  # letters of different widths: columns would not align
        return f"{use} · {text}" if text else use
    gap = f"\n{' ' * _WIDEST_USE}" if len(use) >= _WIDEST_USE else " " * (_WIDEST_USE - len(use))
    return f"{use}{gap}{text}".rstrip()


def _whose(command: Command) -> str:
    return f"/{command.name} of {command.owner}" if command.owner else f"the built-in /{command.name}"


GATEWAY_COMMANDS = (
    CommandSpec("start", "what this is", gateway_only=True),
    CommandSpec("stop", "stop the running turn; waiting messages are dropped", gateway_only=True),
    CommandSpec("queue", "send a message when this turn has ended", ("q",), "TEXT", gateway_only=True),
    CommandSpec("steer", "send the model a note while it works", ("tell",), "TEXT", gateway_only=True),
    CommandSpec("busy", "what a message does during a turn", (), "queue|steer|interrupt", gateway_only=True),
    CommandSpec("approve", "allow what the agent asks for", (), "[once|session|project|always]", gateway_only=True),
    CommandSpec("deny", "do not allow it, and say what to do instead", args_hint="[WORDS]", gateway_only=True),
    CommandSpec(
        "sethome", "send unprompted messages to this chat", category="info", gateway_only=True, is_for_admins=True
    ),
    CommandSpec("whoami", "who you are here", category="info", gateway_only=True),
)
SCREEN_COMMANDS = (
    CommandSpec("stop", "stop the running turn; waiting messages are dropped", cli_only=True),
    CommandSpec("queue", "send a message when this turn has ended", ("q",), "TEXT", cli_only=True),
    CommandSpec("steer", "send the model a note while it works", ("tell",), "TEXT", cli_only=True),
    CommandSpec(
        "background", "ask in a side conversation; the answer appears here", ("bg", "btw"), "TEXT", cli_only=True
    ),
    CommandSpec(
        "export",
        "write this conversation to a file: a page (.html), .md or .jsonl",
        ("save",),
        "[FILE]",
        cli_only=True,
    ),
    CommandSpec("details", "what the last turn has thought and done, in full (Ctrl-O)", ("verbose",), cli_only=True),
    CommandSpec("approve", "allow what the agent asks for: use the keys of the question", cli_only=True),
    CommandSpec("deny", "do not allow it: use the keys of the question", cli_only=True),
    CommandSpec("sethome", "use this in the chat that should get unprompted messages", cli_only=True),
)
