"""Commands that ask which one: conversations and models, to be searched and looked at before they are chosen."""

import asyncio
import time
from collections.abc import Sequence

from talaria.cli.conversation import Conversation
from talaria.cli.screen.completing import Suggestion
from talaria.cli.screen.menu import Menu, MenuItem
from talaria.cli.screen.screen import Screen
from talaria.core.errors import TalariaError
from talaria.store.base import Session

MOST_SESSIONS = 200


async def pick_argument(command: str, line: str, conversation: Conversation, screen: Screen) -> str:
    """The line with what was chosen; empty: nothing was."""
    match command:
        case "resume" | "sessions":
            title, choices = "Go on with which conversation?", await _conversations(conversation)
            line = "/resume"
        case "model":
            title, choices = f"Which model? (now {conversation.model})", await _models(conversation)
        case _:
            return line
    if not choices:
        return line
    chosen = await screen.ask(Menu(title, choices, typing="search"))
    return f"{line.rstrip()} {chosen}" if chosen else ""


async def _conversations(conversation: Conversation) -> Sequence[MenuItem]:
    rows = await conversation.sessions(MOST_SESSIONS)
    return [_conversation(row) for row in rows if row.id != conversation.session]


def _conversation(row: Session) -> MenuItem:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.updated_at))
    mark = " (interrupted)" if row.open_turn else ""
    about = f"{row.preview}\n{row.message_count} messages · {row.model} · {row.cwd} · {row.id}"
    return MenuItem(str(row.id), f"{when}  {row.title or row.preview or '(empty)'}{mark}", about, searched=about)


async def _models(conversation: Conversation) -> Sequence[MenuItem]:
    from talaria.cli.model_status import usable_models  # noqa: PLC0415  (asks every endpoint that has a key)

    names = await usable_models(conversation.app.settings)
    now = conversation.model
    return [MenuItem(name, f"{name}{'  (in use)' if name == now else ''}") for name in names]


async def is_unlisted(model: str, conversation: Conversation) -> bool:
    """Its endpoint tells its models, and this is none of them."""
    from talaria.cli.model_status import models  # noqa: PLC0415  (as above)

    provider, _, name = model.partition(":")
    try:
        told = await models(provider, conversation.app.settings, is_live=True)
    except TalariaError:
        return False
    return told.problem is None and not any(one.name == name and one.is_listed for one in told.models)


class ArgumentSuggestions:
    """What commands may be given, as far as it is known without waiting."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._known: dict[str, list[Suggestion]] = {}
        self._asking: asyncio.Task[None] | None = None

    def suggest(self, command: str) -> Sequence[Suggestion]:
        if command == "model" and self._asking is None:  # asked for once, when somebody wants to know
            self._asking = asyncio.get_running_loop().create_task(self._learn_models())
        return self._known.get(command, ())

    async def refresh(self) -> None:
        rows = await self._conversation.sessions(MOST_SESSIONS)
        self._known["resume"] = [Suggestion(row.title or str(row.id), row.preview) for row in rows]
        self._known["handoff"] = [Suggestion(name) for name in self._conversation.app.settings.config.gateway.platforms]

    async def _learn_models(self) -> None:
        self._known["model"] = [Suggestion(one.value) for one in await _models(self._conversation)]
