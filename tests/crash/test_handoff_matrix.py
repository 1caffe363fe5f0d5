"""Kill -9 at every moment of a handoff: the chat is greeted, the next message there continues the conversation, and no
request is lost, done twice or left half done."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.crash.test_gateway_matrix import (
    PREFIX,
    SERVERS,
    Case,
    PlatformName,
    Town,
    Zygote,
    answer,
    ends,
    respond,
    zygote,
)
from tests.rules import chat_problems, transcript_problems
from tests.servers.discord_server import DiscordServer

from talaria.core.clock import SystemClock
from talaria.core.entries import MessageAdded, TurnEnded, TurnStarted
from talaria.core.ids import SessionId, new_turn_id
from talaria.core.messages import Assistant, Text, User, user
from talaria.gateway.envelope import MARK
from talaria.runtime.transcript import without_undone
from talaria.store.base import Held, NewSession
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.crash import Moment
from talaria.testing.servers.chat_service import ChatService, SeenMessage
from talaria.testing.servers.model_server import ModelServer, RecordedRequest
from talaria.testing.servers.scripted_replies import Reply
from talaria.testing.servers.telegram_server import TelegramServer

__all__ = ["zygote"]

SESSION = SessionId("moving")
GREETING = "begin-greeting end-greeting"
HOMES: dict[PlatformName, str] = {"telegram": "-100500", "discord": "7002", "slack": "C7"}
SHARES = 3
LONG_SHARES = 10


def greet_or_respond(request: RecordedRequest) -> Reply:
    last: dict[str, Any] = request.json["messages"][-1]
    return Reply(GREETING) if "moved this conversation" in str(last["content"]) else respond(request)


class Move(Case):
    """A conversation that began at the terminal, on its way to a channel in which one person is."""

    def __init__(self, town: Town, folder: Path) -> None:
        super().__init__(town, folder, [[]], "")
        self._service = town.service
        self._lost_threads = 0
        self._chat = f"{HOMES[town.platform][:-1]}{town.deaths + 1}{folder.name.removeprefix('case')}"
        self._open_chat(town)

    def _open_chat(self, town: Town) -> None:
        """A channel that no other case uses."""
        match self._service:
            case TelegramServer() as service:
                service.group(self._chat, is_forum=True)
            case DiscordServer() as service:
                service.add_channel(self._chat)
            case service:
                service.list_messages(chat=self._chat)
        people = [f"{PREFIX.get(town.platform, '')}{self.people[0].id}"]
        there = {"allowed_chats": [self._chat], "home_channel": self._chat, "require_mention": False}
        settings = {**self._service.settings, **there, "allowed_users": people}
        (self.home / "config.yaml").write_text(town.settings(self.home.parent, self.people, settings))

    def note_death(self, at: Moment) -> None:
        """A thread that was made a moment before is not known to anybody."""
        self._lost_threads += at.name in ("after create thread", "before bind")

    async def request(self) -> None:
        async with SqliteStore(self.home, SystemClock()) as store:
            await store.sessions.create(NewSession(SESSION, "terminal", cwd=str(self.home), system_prompt="Be kind."))
            owner = await store.owners.join("test")
            epoch = await store.journal.seize(SESSION, owner)
            assert not isinstance(epoch, Held)
            turn = new_turn_id()
            said = (user("please ask-before"), Assistant((Text(answer("before")),)))
            entries = [TurnStarted(turn, "terminal"), *map(MessageAdded, said), TurnEnded(turn, "completed")]
            await store.journal.record(SESSION, epoch, entries)
            await store.journal.release(SESSION, epoch)
            await store.handoffs.request(SESSION, HOMES_PLATFORM[type(self._service)])

    @property
    def seen(self) -> Sequence[SeenMessage]:
        """Without what a service shows at the top of a thread."""
        return [one for one in self._service.list_messages(chat=self._chat) if not one.text.startswith("Talaria")]

    async def _converse(self, ended: "asyncio.Future[int]", trace: object) -> None:
        """The person answers the greeting, and waits until that is answered."""
        has_asked = bool(self.people[0].said)
        while not ended.done():
            texts = [one.text for one in self.seen]
            if not has_asked and any(GREETING in text for text in texts):
                thread = next(one.thread for one in self.seen if GREETING in one.text)
                self.people[0].said.append("plain1")
                await self._service.say("please ask-plain1", user=self.people[0].id, chat=self._chat, thread=thread)
                has_asked = True
            if any("end-plain1" in text for text in texts) and await self._state() == "completed":
                return
            await asyncio.wait([ended], timeout=0.02)

    async def _state(self) -> str | None:
        async with SqliteStore(self.home, SystemClock()) as store:
            found = await store.handoffs.state(SESSION)
        return found.state if found else None

    async def problems(self) -> list[str]:
        found = [line for line in self.world.lines() if line.startswith("BROKE")]
        async with SqliteStore(self.home, SystemClock()) as store:
            state, entries = await store.handoffs.state(SESSION), without_undone(await store.journal.entries(SESSION))
            sessions = [row.id for row in await store.sessions.list()]
        messages = [one.entry.message for one in entries if isinstance(one.entry, MessageAdded)]
        asked = [one for one in messages if isinstance(one, User)]
        plain = [one.text for one in self.seen if MARK not in one.text]
        found += [*transcript_problems(messages)]
        if state is None or state.state != "completed":
            found.append(f"it is {state}")
        if [one.author for one in asked] != ["person", "host", "person"]:
            found.append(f"asked {[one.text for one in asked]}")
        for text in (GREETING, answer("plain1")):
            if plain.count(text) > 1 or not any(text in one.text for one in self.seen):
                found.append(f"{text!r} is there {plain.count(text)} times in {[one.text for one in self.seen]}")
        if len(sessions) != 2:  # this one, and that of whoever was in this home first
            found.append(f"sessions {sessions}")
        topics = [one for one in self._service.calls("createForumTopic") if str(one["chat_id"]) == self._chat]
        if len(topics) > 1 + self._lost_threads:
            found.append(f"{len(topics)} topics")
        return found


HOMES_PLATFORM: dict[type[ChatService], PlatformName] = {server: name for name, server in SERVERS.items()}


@pytest.fixture
async def town(tmp_path: Path, platform: PlatformName, zygote: Zygote) -> AsyncIterator[Town]:
    async with AsyncExitStack() as stack:
        model = stack.enter_context(ModelServer(respond=greet_or_respond))
        service = await stack.enter_async_context(SERVERS[platform]())
        town = Town(tmp_path, platform, service, model, zygote)
        first = town.case(["first"])
        await first.run()
        first.home.rename(town.used_home)
        yield town
        assert not [problem for request in model.requests for problem in chat_problems(request.json)]


async def moved(town: Town, *fatal: Moment) -> tuple[list[Moment], list[str]]:
    move = Move(town, town.folder / f"case{town.next_number()}")
    await move.request()
    for moment in fatal:
        await move.run(moment)
        move.note_death(moment)
    trace = await move.run()
    return trace, [f"killed at {fatal}: {problem}" for problem in await move.problems()]


def of_the_handoff(trace: Sequence[Moment]) -> list[Moment]:
    names = [moment.name for moment in trace]
    return list(trace[names.index("before claim") : names.index("after complete") + 1])


@pytest.mark.clause("H-19")
@pytest.mark.clause("H-X3")
@pytest.mark.parametrize(
    ("platform", "nth"),
    [
        pytest.param(name, nth, marks=[] if (name, nth) == ("telegram", 1) else [pytest.mark.long])
        for name in SERVERS
        for nth in range(SHARES)
    ],
)
async def test_killed_at_each_kind_of_moment_it_arrives_once(town: Town, nth: int) -> None:
    trace, problems = await moved(town)
    assert problems == []
    plan = ends(of_the_handoff(trace))
    assert len(plan) > 14
    found = [problem for fatal in plan[nth::SHARES] for problem in (await moved(town, fatal))[1]]
    assert found == []
    assert town.deaths > 0.5 * len(plan) / SHARES


@pytest.mark.long
@pytest.mark.parametrize("platform", SERVERS)
@pytest.mark.parametrize("nth", range(LONG_SHARES))
async def test_killed_at_each_moment_and_again_it_arrives_once(town: Town, nth: int) -> None:
    trace, _ = await moved(town)
    for first in of_the_handoff(trace)[nth::LONG_SHARES]:
        recovery, problems = await moved(town, first)
        assert problems == []
        for second in recovery[nth::LONG_SHARES]:
            assert (await moved(town, first, second))[1] == []
