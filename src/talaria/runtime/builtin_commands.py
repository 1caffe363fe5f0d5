"""The slash commands that every surface has: what each does, beside how help describes it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from talaria.core.aio import complete, in_thread
from talaria.core.entries import Effort, MessageAdded
from talaria.core.errors import BadInput
from talaria.core.ids import SessionId, new_session_id
from talaria.core.messages import Assistant, Message, User
from talaria.core.text import show_time
from talaria.runtime.accounts import summary
from talaria.runtime.auxiliary import title_for
from talaria.runtime.commands import (
    GATEWAY_COMMANDS,
    SCREEN_COMMANDS,
    Ask,
    Category,
    Command,
    Commands,
    Leave,
    Outcome,
    Run,
    Say,
)
from talaria.runtime.sandbox_report import describe_grant, describe_sandbox, place_of, revoke_grant
from talaria.runtime.transcript import without_undone
from talaria.store.base import Session
from talaria.tools.registry import toolset_of
from talaria.tools.sandbox_permissions import SANDBOX, read_grant

if TYPE_CHECKING:
    from talaria.runtime.chat import Chat
    from talaria.tools.undo.checkpoints import Checkpoints

LATEST = 10
LISTED = 30
RECALLED_CHARS = 300
_NAME_CHARS = 60

_declared: list[Command] = []


def _command(
    name: str,
    description: str,
    category: Category = "conversation",
    aliases: tuple[str, ...] = (),
    args_hint: str = "",
    *,
    cli_only: bool = False,
    in_chats: str = "",
) -> Callable[[Run], Run]:
    def add(run: Run) -> Run:
        _declared.append(Command(name, description, category, run, aliases, args_hint, cli_only, in_chats=in_chats))
        return run

    return add


@_command("clear", "begin a new conversation on an empty screen", in_chats="begin a new conversation")
@_command("new", "begin a new conversation", aliases=("reset",))
async def _new(chat: "Chat", _: str) -> Outcome:
    await chat.switch_to(None, "new")
    return Say("A new conversation.")


@_command("title", "give this one a name, or let the model find one", aliases=("name",), args_hint="[NAME]")
async def _title(chat: "Chat", title: str) -> Outcome:
    if not title:
        entries = without_undone(await chat.host.store.journal.entries(chat.session))
        messages: list[Message] = [one.entry.message for one in entries if isinstance(one.entry, MessageAdded)]
        title = await title_for(chat.session, messages, chat.host.auxiliary("title"))
    row = await chat.read_row()
    await chat.host.store.sessions.rename(row.id, title)
    return Say(f"This conversation is now called {title}.")


@_command("undo", "undo the last exchange; /rollback does the same for files")
async def _undo(chat: "Chat", _: str) -> Outcome:
    turn = await chat.live.last_turn()
    asked = await chat.live.undo()
    if asked is None:
        return Say("There is nothing to undo.")
    recorder = chat.live.services.resources.recorder
    if recorder is None or turn is None:
        return Say(f"Undone: {_short(asked)}")
    from talaria.runtime.rollback import describe_undone  # noqa: PLC0415  (not loaded at start)

    files = await in_thread(lambda: describe_undone(recorder.checkpoints(chat.session), turn))
    return Say("\n".join(filter(None, (f"Undone: {_short(asked)}", files))))


@_command("retry", "undo the last exchange and ask again")
async def _retry(chat: "Chat", _: str) -> Outcome:
    asked = await chat.live.undo()
    if asked is None:
        return Say("There is nothing to undo.")
    return Ask(asked) if asked.strip() else Say("Undone; it had no text to ask again.")


@_command(
    "rollback",
    "put changed files back as they were before checkpoint N, or list the checkpoints",
    aliases=("rewind",),
    args_hint="[N [all]]",
)
async def _rollback(chat: "Chat", argument: str) -> Outcome:
    """`all`: also files that somebody else has changed since."""
    from talaria.runtime.rollback import parse_number, roll_back  # noqa: PLC0415  (not loaded at start)

    word, _, rest = argument.partition(" ")
    if rest.strip() not in ("", "all"):
        raise BadInput(f"{_short(rest)!r} is not an option here: use /rollback N, or /rollback N all.")
    number, checkpoints = parse_number(word), _checkpoints(chat)
    return Say(await complete(in_thread(lambda: roll_back(checkpoints, number, everything=bool(rest)))))


@_command(
    "sandbox",
    "what commands can reach, what you allowed, what was blocked; or revoke a permission",
    "info",
    args_hint="[all | revoke ID]",
)
async def _sandbox(chat: "Chat", argument: str) -> Outcome:
    host = chat.host
    match argument.split():
        case [] | ["all"]:
            project = chat.live.config.cwd
            state = await in_thread(lambda: host.sandbox_state(chat.session, project))
            if state is None:
                raise BadInput("No tool of this conversation runs commands.")
            now, is_whole = host.clock.now(), bool(argument.strip())
            report = describe_sandbox(state, host.store.grants, chat.session, now, chat.person, is_whole=is_whole)
            return Say(await report)
        case ["revoke", id]:
            grant = await revoke_grant(host.store.grants, id, chat.person)
            permission = read_grant(grant.what) if grant.tool == SANDBOX else None
            still_open = await complete(host.close_again(permission)) if permission is not None else ()
            sentence = f"Revoked: {describe_grant(grant)} ({place_of(grant)}). You will be asked again."
            return Say(" ".join((sentence, *still_open)))
        case _:
            raise BadInput(
                f"{_short(argument)!r} is not an option here: use /sandbox, /sandbox all, or /sandbox revoke ID."
            )


@_command("diff", "what files changed since the latest checkpoint, or since N", args_hint="[N]")
async def _diff(chat: "Chat", argument: str) -> Outcome:
    from talaria.runtime.rollback import describe_differences, parse_number  # noqa: PLC0415  (not loaded at start)

    number, checkpoints, redactor = parse_number(argument), _checkpoints(chat), chat.live.services.redactor
    return Say(await in_thread(lambda: describe_differences(checkpoints, number, redactor)))


@_command(
    "compress",
    "shorten it for the model: keep what is about X, or the last N exchanges",
    aliases=("compact",),
    args_hint="[about X | here N]",
)
async def _compress(chat: "Chat", argument: str) -> Outcome:
    word, _, rest = argument.partition(" ")
    is_here = word == "here" and rest.strip().isdecimal()
    focus = "" if is_here else rest.strip() if word == "about" else argument
    keep_last, options = int(rest) if is_here else None, chat.host.turn_options()
    done = await chat.live.compact(chat.observer(), focus=focus, keep_last=keep_last, options=options)
    return Say(done or "There is nothing to compress: the conversation is short.")


@_command("resume", "continue another conversation, or list the latest", args_hint="[ID|TITLE]")
async def _resume(chat: "Chat", name: str) -> Outcome:
    """By id, by a unique beginning of it, or by title."""
    if not name:
        listed = _list_rows(await chat.sessions(LATEST), chat.session)
        return Say(f"{listed}\n/resume ID or /resume TITLE continues one of them.")
    row = await chat.host.store.sessions.find(name, chat.person)
    if row.id == chat.session:
        raise BadInput("You are already in that conversation.")
    await chat.switch_to(row, "resume")
    return Say(await chat.recap())


@_command("sessions", "list the latest conversations")
async def _sessions(chat: "Chat", _: str) -> Outcome:
    return Say(_list_rows(await chat.sessions(LISTED), chat.session))


@_command("branch", "continue in a copy; this conversation stays as it is", aliases=("fork",), args_hint="[TITLE]")
async def _branch(chat: "Chat", title: str) -> Outcome:
    row, copy = await chat.read_row(), new_session_id(chat.host.clock.now())
    await chat.switch_to(await chat.host.store.sessions.fork(row.id, copy, title or None), "branch")
    return Say(f"This is now a copy, {chat.session}. The original is unchanged: /resume {row.id}")


@_command("handoff", "continue this conversation in a chat, such as telegram", args_hint="PLATFORM", cli_only=True)
async def _handoff(chat: "Chat", platform: str) -> Outcome:
    if not platform:
        raise BadInput("/handoff needs a platform, such as telegram.")
    session = chat.session
    await chat.hand_off(platform.lower())
    return Leave(f"The conversation continues in {platform.lower()}. Come back with: talaria -r {session}")


@_command("image", "add an image to your next message", args_hint="PATH", cli_only=True)
async def _image(chat: "Chat", path: str) -> Outcome:
    if not path:
        raise BadInput("/image needs the path of an image.")
    return Say(await chat.attach(path))


@_command(
    "model",
    "which model answers, or another one until you leave",
    "model",
    args_hint="[NAME]",
    in_chats="which model answers",
)
async def _model(chat: "Chat", name: str) -> Outcome:
    if not name:
        return Say(f"The model in use is {chat.model}.")
    if len(name.split()) > 1:
        raise BadInput(f"{_short(name)!r} is not a model: names of models have no spaces.")
    await chat.use_model(name)
    return Say(f"From now on {chat.model} answers here, until you leave; `talaria model set {name}` keeps it.")


@_command(
    "reasoning",
    "how hard the model thinks in this conversation; `default` is as the settings say",
    "model",
    ("think",),
    "[none|minimal|low|medium|high|default]",
)
async def _reasoning(chat: "Chat", word: str) -> Outcome:
    efforts: dict[str, Effort | None] = {**{name: name for name in get_args(Effort)}, "off": "none", "default": None}
    if word and word.lower() not in efforts:
        raise BadInput(
            f"{_short(word)!r} is not a reasoning effort. Use /reasoning none, minimal, low, medium, high or default."
        )
    if word:
        await chat.live.set_effort(efforts[word.lower()])
    own, usual = await chat.live.read_effort(), chat.host.turn_options().effort
    match own or usual:
        case None:
            how = "the model decides by itself how hard it thinks"
        case "none":
            how = "the model answers without reasoning"
        case effort:
            how = f"reasoning effort is {effort}"
    sentence = f"{how} in this conversation{'' if own else ', as the settings say'}."
    return Say(f"From the next message on, {sentence}" if word else f"{sentence[0].upper()}{sentence[1:]}")


@_command("tools", "what the model may use", "info")
async def _tools(chat: "Chat", _: str) -> Outcome:
    grouped: dict[str, list[str]] = {}
    for tool in chat.live.services.toolbox.tools:
        grouped.setdefault(toolset_of(tool), []).append(tool.spec.name)
    lines = [f"{toolset}: {', '.join(names)}" for toolset, names in grouped.items()]
    return Say("\n".join(lines) or "There are no tools.")


@_command("status", "which conversation and model this is", "info")
async def _status(chat: "Chat", _: str) -> Outcome:
    context = await chat.live.services.context_status()
    facts = [f"Session {chat.session}", f"model {chat.model}"]
    if "engine" in context:
        facts.append(f"context engine {context['engine']}")
    used, limit = context.get("last_prompt_tokens"), context.get("threshold_tokens")
    if isinstance(used, int) and isinstance(limit, int) and limit > 0:
        facts.append(f"{max(used, 0):,} of {limit:,} tokens before it compacts")
    if level := await in_thread(chat.host.sandbox_level):
        facts.append(f"sandbox {level}")
    return Say(" · ".join(facts))


@_command("usage", "what this conversation and today have used and cost", "info")
async def _usage(chat: "Chat", _: str) -> Outcome:
    return Say(await summary(chat.host.store.spending, chat.session, chat.host.clock.now()))


@_command("help", "this list", "info", ("commands",))
async def _help(chat: "Chat", _: str) -> Outcome:
    return Say(chat.help())


@_command("quit", "leave; Ctrl-D does, too", "leave", ("exit",), cli_only=True)
async def _quit(_: "Chat", __: str) -> Outcome:
    return Leave()


def _checkpoints(chat: "Chat") -> "Checkpoints":
    recorder = chat.live.services.resources.recorder
    if recorder is None:
        raise BadInput("Changes to files are not recorded here: the tools of this conversation are not Talaria's.")
    return recorder.checkpoints(chat.session)


def _list_rows(rows: Sequence[Session], in_use: SessionId) -> str:
    lines: list[str] = []
    for row in rows:
        name = _short(row.title or row.preview or "(empty)")
        mark = " (this one)" if row.id == in_use else " (interrupted)" if row.open_turn else ""
        lines.append(f"{row.id}  {show_time(row.updated_at)}  {row.message_count:>4}  {name}{mark}")
    return "\n".join(lines) or "There are no conversations yet."


def format_recap(row: Session, messages: Sequence[Message]) -> str:
    """Which conversation this is and its last messages, for a person who comes back to it."""
    said = [message for message in messages if isinstance(message, User | Assistant) and message.text]
    words = (f"{'› ' if isinstance(one, User) else '  '}{_short(one.text, RECALLED_CHARS)}" for one in said[-2:])
    return "\n".join([headline(row), *words])


def headline(row: Session) -> str:
    """Which conversation it is."""
    home, cwd = str(Path.home()), row.cwd
    if cwd == home or cwd.startswith(f"{home}/"):
        cwd = f"~{cwd.removeprefix(home)}"
    return f"{row.title or _short(row.preview) or '(untitled)'} · {row.message_count} messages · in {cwd}"


def _short(text: str, chars: int = _NAME_CHARS) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= chars else f"{flat[: chars - 2]} …"


BUILTIN = tuple(_declared)
"""In the order in which help lists them."""


def builtin_commands() -> Commands:
    """A new table, in which the words of every surface are reserved: plugins are added before a surface is."""
    return Commands(BUILTIN, reserved=(*GATEWAY_COMMANDS, *SCREEN_COMMANDS))
