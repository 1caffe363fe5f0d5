"""The slash commands that are always there."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from talaria.core.entries import Effort
from talaria.core.errors import BadInput
from talaria.core.ids import SessionId
from talaria.core.messages import Assistant, Message, User
from talaria.runtime.commands import GATEWAY_COMMANDS, SCREEN_COMMANDS, Ask, Command, Commands, Leave, Outcome, Say
from talaria.runtime.rollback import parse_number
from talaria.store.base import Session

if TYPE_CHECKING:
    from talaria.runtime.chat import Chat

LATEST = 10
LISTED = 30
RECALLED_CHARS = 300
_NAME_CHARS = 60


async def _new(chat: "Chat", _: str) -> Outcome:
    await chat.start_new()
    return Say("A new conversation.")


async def _title(chat: "Chat", title: str) -> Outcome:
    title = title or await chat.propose_title()
    await chat.rename(title)
    return Say(f"This conversation is called {title}.")


async def _undo(chat: "Chat", _: str) -> Outcome:
    asked = await chat.undo()
    if asked is None:
        return Say("There is nothing to undo.")
    files = await chat.describe_undone_files()
    return Say("\n".join(filter(None, (f"Undone: {_short(asked)}", files))))


async def _retry(chat: "Chat", _: str) -> Outcome:
    asked = await chat.undo()
    if asked is None:
        return Say("There is nothing to undo.")
    return Ask(asked) if asked.strip() else Say("Undone; it had no text to ask again.")


async def _rollback(chat: "Chat", argument: str) -> Outcome:
    word, _, rest = argument.partition(" ")
    if rest.strip() not in ("", "all"):
        raise BadInput(f"{_short(rest)!r} is not known here: /rollback N, or /rollback N all.")
    return Say(await chat.rollback(parse_number(word), everything=bool(rest)))


async def _sandbox(chat: "Chat", argument: str) -> Outcome:
    match argument.split():
        case []:
            return Say(await chat.sandbox())
        case ["all"]:
            return Say(await chat.sandbox(is_whole=True))
        case ["revoke", id]:
            return Say(await chat.revoke(id))
        case _:
            raise BadInput(f"{_short(argument)!r} is not known here: /sandbox, /sandbox all, or /sandbox revoke ID.")


async def _diff(chat: "Chat", argument: str) -> Outcome:
    return Say(await chat.diff(parse_number(argument)))


async def _compress(chat: "Chat", argument: str) -> Outcome:
    word, _, rest = argument.partition(" ")
    is_here = word == "here" and rest.strip().isdecimal()
    focus = "" if is_here else rest.strip() if word == "about" else argument
    done = await chat.compress(focus, int(rest) if is_here else None)
    return Say(done or "There is nothing to compress: the conversation is short.")


async def _resume(chat: "Chat", name: str) -> Outcome:
    if not name:
        listed = _list_rows(await chat.sessions(LATEST), chat.session)
        return Say(f"{listed}\n/resume ID or /resume TITLE continues one of them.")
    await chat.resume(name)
    return Say(await chat.recap())


async def _sessions(chat: "Chat", _: str) -> Outcome:
    return Say(_list_rows(await chat.sessions(LISTED), chat.session))


async def _branch(chat: "Chat", title: str) -> Outcome:
    left = chat.session
    await chat.branch(title)
    return Say(f"This is now a copy, {chat.session}. The original is unchanged: /resume {left}")


async def _handoff(chat: "Chat", platform: str) -> Outcome:
    if not platform:
        raise BadInput("/handoff needs a platform, such as telegram.")
    session = chat.session
    await chat.hand_off(platform.lower())
    return Leave(f"The conversation goes on in {platform.lower()}. Come back with: talaria -r {session}")


async def _image(chat: "Chat", path: str) -> Outcome:
    if not path:
        raise BadInput("/image needs the path of an image.")
    return Say(await chat.attach(path))


async def _tools(chat: "Chat", _: str) -> Outcome:
    return Say(await chat.tools())


async def _status(chat: "Chat", _: str) -> Outcome:
    return Say(await chat.status())


async def _usage(chat: "Chat", _: str) -> Outcome:
    return Say(await chat.usage())


async def _model(chat: "Chat", name: str) -> Outcome:
    if name:
        if len(name.split()) > 1:
            raise BadInput(f"{_short(name)!r} is not a model: names of models have no spaces.")
        await chat.use_model(name)
        return Say(f"From now on {chat.model} answers here, until you leave; `talaria model set {name}` keeps it.")
    return Say(f"The model in use is {chat.model}.")


async def _reasoning(chat: "Chat", word: str) -> Outcome:
    efforts: dict[str, Effort | None] = {**{name: name for name in get_args(Effort)}, "off": "none", "default": None}
    if word and word.lower() not in efforts:
        raise BadInput(
            f"{_short(word)!r} is not a reasoning effort. Use /reasoning none, minimal, low, medium, high or default."
        )
    if word:
        await chat.set_effort(efforts[word.lower()])
    own, usual = await chat.effort()
    match own or usual:
        case None:
            how = "the model decides by itself how hard it thinks"
        case "none":
            how = "the model answers without reasoning"
        case effort:
            how = f"reasoning effort is {effort}"
    told = f"{how} in this conversation{'' if own else ', as the settings say'}."
    return Say(f"From the next message on, {told}" if word else f"{told[0].upper()}{told[1:]}")


async def _help(chat: "Chat", _: str) -> Outcome:
    return Say(await chat.help())


async def _quit(_: "Chat", __: str) -> Outcome:
    return Leave()


def _list_rows(rows: Sequence[Session], in_use: SessionId) -> str:
    return "\n".join(_line(row, in_use) for row in rows) or "There are no conversations yet."


def _line(row: Session, in_use: SessionId) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.updated_at))
    name = _short(row.title or row.preview or "(empty)")
    mark = " (this one)" if row.id == in_use else " (interrupted)" if row.open_turn else ""
    return f"{row.id}  {when}  {row.message_count:>4}  {name}{mark}"


def format_recap(row: Session, messages: Sequence[Message]) -> str:
    """Which conversation this is and its last messages, for a person who comes back to it."""
    said = [message for message in messages if isinstance(message, User | Assistant) and message.text]
    words = (f"{'› ' if isinstance(one, User) else '  '}{_short(one.text, RECALLED_CHARS)}" for one in said[-2:])
    return "\n".join([headline(row), *words])


def headline(row: Session) -> str:
    """Which conversation it is."""
    return f"{row.title or _short(row.preview) or '(untitled)'} · {row.message_count} messages · in {_folder(row.cwd)}"


def _folder(path: str) -> str:
    """As people write it."""
    home = str(Path.home())
    return f"~{path.removeprefix(home)}" if path == home or path.startswith(f"{home}/") else path


def _short(text: str, chars: int = _NAME_CHARS) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= chars else f"{flat[: chars - 2]} …"


BUILTIN = (
    Command("new", "begin a new conversation", "conversation", _new, ("reset",)),
    Command(
        "clear",
        "begin a new conversation on an empty screen",
        "conversation",
        _new,
        in_chats="begin a new conversation",
    ),
    Command("title", "give this one a name, or let the model find one", "conversation", _title, ("name",), "[NAME]"),
    Command("undo", "undo the last exchange; /rollback does the same for files", "conversation", _undo),
    Command("retry", "undo the last exchange and ask again", "conversation", _retry),
    Command(
        "rollback",
        "put changed files back as they were before checkpoint N, or list the checkpoints",
        "conversation",
        _rollback,
        ("rewind",),
        "[N [all]]",
    ),
    Command(
        "sandbox",
        "what commands can reach, what you allowed, what was blocked; or revoke a permission",
        "info",
        _sandbox,
        (),
        "[all | revoke ID]",
    ),
    Command("diff", "what files changed since the latest checkpoint, or since N", "conversation", _diff, (), "[N]"),
    Command(
        "compress",
        "shorten it for the model: keep what is about X, or the last N exchanges",
        "conversation",
        _compress,
        ("compact",),
        "[about X | here N]",
    ),
    Command("resume", "continue another conversation, or list the latest", "conversation", _resume, (), "[ID|TITLE]"),
    Command("sessions", "list the latest conversations", "conversation", _sessions),
    Command(
        "branch",
        "continue in a copy; this conversation stays as it is",
        "conversation",
        _branch,
        ("fork",),
        "[TITLE]",
    ),
    Command(
        "handoff",
        "continue this conversation in a chat, such as telegram",
        "conversation",
        _handoff,
        (),
        "PLATFORM",
        cli_only=True,
    ),
    Command("image", "add an image to your next message", "conversation", _image, (), "PATH", cli_only=True),
    Command(
        "model",
        "which model answers, or another one until you leave",
        "model",
        _model,
        (),
        "[NAME]",
        in_chats="which model answers",
    ),
    Command(
        "reasoning",
        "how hard the model thinks in this conversation; `default` is as the settings say",
        "model",
        _reasoning,
        ("think",),
        "[none|minimal|low|medium|high|default]",
    ),
    Command("tools", "what the model may use", "info", _tools),
    Command("status", "which conversation and model this is", "info", _status),
    Command("usage", "what this conversation and today have used and cost", "info", _usage),
    Command("help", "this list", "info", _help, ("commands",)),
    Command("quit", "leave; Ctrl-D does, too", "leave", _quit, ("exit",), cli_only=True),
)


def builtin_commands() -> Commands:
    """A new table, in which the words of every surface are reserved: plugins are added before a surface is."""
    return Commands(BUILTIN, reserved=(*GATEWAY_COMMANDS, *SCREEN_COMMANDS))
