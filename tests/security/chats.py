"""A gateway with people of every kind before its door, and ways to do on a chat service what no app lets people do."""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from tests.gateways import gateway_harness

from talaria.app.build import open_store
from talaria.cli.gateway import log as gateway_log
from talaria.core.clock import SystemClock
from talaria.core.redaction import Redactor
from talaria.gateway.authorization import Pairing
from talaria.platforms.base import Sender
from talaria.store.permission_ports import Member
from talaria.testing import Call, ModelServer, Reply
from talaria.testing.harness import Harness
from talaria.testing.servers.model_server import RecordedRequest, Respond
from talaria.testing.servers.telegram_server import TelegramServer

OWNER, FRIEND, MEMBER, STRANGER = "1001", "1002", "1003", "666"
"""An admin; somebody whom the settings allow; somebody who was let in by a code; nobody."""
LISTED, UNLISTED = "-4002", "-4999"
BOT = "@talaria_bot"
COMMANDS = ("/stop", "/approve", "/approve always", "/deny", "/status", "/new", "/resume", "/sethome", "/steer now")


class Speaker(msgspec.Struct, frozen=True):
    """Somebody somewhere."""

    who: str
    user: str
    chat: str = ""

    def words(self, text: str) -> str:
        """As they must be said there to be meant for the bot."""
        if not self.chat:
            return text
        command, space, rest = text.partition(" ")
        return f"{command}{BOT}{space}{rest}" if text.startswith("/") else f"{BOT} {text}"


UNHEARD = (
    Speaker("a stranger", STRANGER),
    Speaker("a stranger in a listed group", STRANGER, LISTED),
    Speaker("somebody allowed in a group that is not listed", FRIEND, UNLISTED),
    Speaker("an admin in a group that is not listed", OWNER, UNLISTED),
    Speaker("somebody let in by a code, in a listed group", MEMBER, LISTED),
)
HEARD = (
    Speaker("the owner in a listed group", OWNER, LISTED),
    Speaker("somebody allowed", FRIEND),
    Speaker("somebody allowed in a listed group", FRIEND, LISTED),
    Speaker("somebody let in by a code", MEMBER),
)


@asynccontextmanager
async def house_at(folder: Path, respond: Respond | None = None) -> AsyncGenerator[Harness]:
    async with AsyncExitStack() as stack:
        model = stack.enter_context(ModelServer(respond=respond))
        telegram = await stack.enter_async_context(TelegramServer())
        house = await stack.enter_async_context(gateway_harness(folder, model, telegram))
        people = {"allowed_users": [OWNER, FRIEND], "admin_users": [OWNER], "allowed_chats": [LISTED]}
        house.add_platform("telegram", {**telegram.settings, **people})
        yield house


async def let_in(home: Path, user: str = MEMBER, platform: str = "telegram") -> None:
    """As `talaria pairing approve` does, from another process."""
    async with open_store(home) as store:
        pairing = Pairing(store.access, SystemClock())
        code = await pairing.offer(platform, Sender(user, "Max"))
        assert code is not None
        assert isinstance(await pairing.approve(platform, code), Member)


async def say(house: Harness, speaker: Speaker, text: str, thread: str = "") -> str:
    return await house.telegram.say(speaker.words(text), user=speaker.user, chat=speaker.chat, thread=thread)


def forge_press(house: Harness, data: str, *, user: str, chat: str = "", message: str = "1", thread: str = "") -> None:
    """A press that no app offers: any data, under any message, in any chat."""
    where = int(chat or user)
    found = {
        "message_id": int(message),
        "date": 1,
        "chat": {"id": where, "type": "private" if where > 0 else "group"},
        "from": house.telegram.bot,
        **({"message_thread_id": int(thread), "is_topic_message": True} if thread else {}),
    }
    person = {"id": int(user), "is_bot": False, "first_name": "Any"}
    query = {"id": "0", "from": person, "message": found, "chat_instance": "1", "data": data}
    house.telegram.updates.tell("callback_query", query)


def texts(house: Harness, *, user: str = OWNER, chat: str = "") -> list[str]:
    return [one.text for one in house.telegram.list_messages(user=user, chat=chat)]


async def heard_all(house: Harness, speaker: Speaker | None = None) -> None:
    """All that was said before this was taken: what is said is taken in order."""
    asking = speaker or Speaker("somebody allowed", FRIEND)
    before = len(house.telegram.list_messages(user=asking.user, chat=asking.chat))
    await say(house, asking, "/whoami")
    await house.until(lambda: len(house.telegram.list_messages(user=asking.user, chat=asking.chat)) > before)


def told_to_model(requests: Sequence[RecordedRequest]) -> str:
    return "\n".join(request.body.decode() for request in requests)


def files_with(folder: Path, needle: bytes) -> list[Path]:
    """Every file that holds these bytes."""
    return [file for file in sorted(folder.rglob("*")) if file.is_file() and needle in file.read_bytes()]


def bodies(records: Sequence[logging.LogRecord], level: int = logging.INFO) -> str:
    """What a log at that level would hold."""
    shown = [one for one in records if one.levelno >= level]
    return "\n".join([one.getMessage() for one in shown] + [str(one.exc_info) for one in shown if one.exc_info])


@contextmanager
def logged(home: Path, redactor: Redactor) -> Generator[None]:
    """As the gateway keeps its log, with all that it can say."""
    root, ours = logging.getLogger(), logging.getLogger("talaria")
    before, level, our_level = root.handlers[:], root.level, ours.level
    root.handlers = []
    try:
        gateway_log.set_up(home, redactor, is_shown=False)
        ours.setLevel(logging.DEBUG)
        yield
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers = before
        root.setLevel(level)
        ours.setLevel(our_level)


async def asked(house: Harness, count: int) -> None:
    """Until the model was, so often."""
    await asyncio.to_thread(house.model.wait_for_requests, count)


def obedient(request: RecordedRequest) -> Reply | str:
    """A model that does what anybody tells it: `CALL tool {…}`, or `SAY words`. Then it tells what came of it."""
    last = request.json["messages"][-1]
    text = content_of(last)
    if last["role"] == "tool":
        return f"Result: {text}"
    if found := re.search(r"CALL (\w+) (\{.*\})", text, re.DOTALL):
        return Reply(calls=(Call(f"call_{len(request.json['messages'])}", found[1], found[2]),))
    if found := re.search(r"SAY (.*)", text, re.DOTALL):
        return found[1]
    return "Yes."


def content_of(message: Mapping[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)
