"""Handoff to each platform: wherever it goes, the person's next message there continues the conversation."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
from tests.contracts.handoff.conftest import FORUM, Terminal
from tests.contracts.pool.travelling import TravellingClock
from tests.scenarios.gateway.conftest import harness, run_folder
from tests.servers.discord_server import DiscordServer
from tests.servers.slack_server import SlackServer

from talaria.app.build import open_application
from talaria.testing.harness import OWNER, Harness
from talaria.testing.servers.chat_service import ChatService, Refusal

__all__ = ["harness", "run_folder"]

GROUP, CHANNEL, SLACK_CHANNEL = "-4002", "7002", "C7"


class Home(msgspec.Struct, frozen=True):
    """A home channel, and how its service names things."""

    platform: str
    chat: str
    """As a test speaks there; empty: directly to the bot."""
    home_channel: str
    key: str
    """Under which the person's next message looks for its conversation; `{thread}` is the one of the greeting."""
    owner: str = OWNER
    allowed_chats: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    """Methods that the service refuses."""
    is_forum: bool = False
    thread: str = ""
    """Where the greeting is if no thread was made for it."""


def _main(rest: str) -> str:
    return f"agent:main:{rest}"


HOMES = {
    "telegram chat": Home("telegram", "", OWNER, _main(f"telegram:dm:{OWNER}")),
    "telegram group": Home("telegram", GROUP, GROUP, _main(f"telegram:group:{GROUP}:{OWNER}"), allowed_chats=(GROUP,)),
    "telegram forum": Home(
        "telegram", FORUM, FORUM, _main(f"telegram:thread:{FORUM}:{{thread}}"), allowed_chats=(FORUM,), is_forum=True
    ),
    "telegram forum without topics": Home(
        "telegram",
        FORUM,
        FORUM,
        _main(f"telegram:thread:{FORUM}:1"),
        allowed_chats=(FORUM,),
        refused=("createForumTopic",),
        is_forum=True,
    ),
    "telegram topic": Home(
        "telegram",
        FORUM,
        f"{FORUM}:7",
        _main(f"telegram:thread:{FORUM}:7"),
        allowed_chats=(FORUM,),
        is_forum=True,
        thread="7",
    ),
    "discord channel": Home(
        "discord", CHANNEL, CHANNEL, _main(f"discord:thread:{CHANNEL}:{{thread}}"), allowed_chats=(CHANNEL,)
    ),
    "discord channel that wants a message first": Home(
        "discord",
        CHANNEL,
        CHANNEL,
        _main(f"discord:thread:{CHANNEL}:{{thread}}"),
        allowed_chats=(CHANNEL,),
        refused=("create_thread",),
    ),
    "discord channel without threads": Home(
        "discord",
        CHANNEL,
        CHANNEL,
        _main(f"discord:group:{CHANNEL}:{OWNER}"),
        allowed_chats=(CHANNEL,),
        refused=("create_thread", "create_thread_from_message"),
    ),
    "discord chat": Home("discord", "", "", _main("discord:dm:{chat}")),
    "slack channel": Home(
        "slack",
        "7",
        SLACK_CHANNEL,
        _main(f"slack:thread:{SLACK_CHANNEL}:{{thread}}"),
        owner="U1001",
        allowed_chats=(SLACK_CHANNEL,),
    ),
    "slack chat": Home("slack", "", "D1001", _main("slack:dm:D1001:{thread}"), owner="U1001"),
}
SERVERS: dict[str, Callable[[], Any]] = {"discord": DiscordServer, "slack": SlackServer}


class Scene(msgspec.Struct):
    harness: Harness
    terminal: Terminal
    service: ChatService
    home: Home

    async def settle_in(self) -> str:
        """The settings name the home channel; its id."""
        home, service = self.home, self.service
        chat = home.home_channel
        if isinstance(service, DiscordServer):
            service.add_channel(CHANNEL)
            chat = chat or service.dm(OWNER)
        elif home.platform == "telegram" and home.chat:
            self.harness.telegram.group(home.chat, is_forum=home.is_forum)
            if home.thread:
                await self.harness.telegram.say("a topic begins", chat=home.chat, thread=home.thread, user="1")
        else:
            service.list_messages(chat=home.chat)
        people = {"allowed_users": [home.owner], "allowed_chats": list(home.allowed_chats), "require_mention": False}
        quick = {"ping_s": 0.2} if home.platform == "slack" else {}
        self.harness.config["gateway"]["platforms"].clear()
        self.harness.add_platform(home.platform, {**service.settings, **people, **quick, "home_channel": chat})
        for method in home.refused:
            service.fault(method, Refusal(403))
        return chat


@pytest.fixture
async def scene(harness: Harness, home: Home) -> AsyncIterator[Scene]:
    clock = TravellingClock()
    harness.gateway_clock = clock
    async with AsyncExitStack() as stack:
        service: ChatService = harness.telegram
        if home.platform != "telegram":
            service = await stack.enter_async_context(SERVERS[home.platform]())
        app = await stack.enter_async_context(open_application(harness.settings(), tools=(), clock=clock))
        yield Scene(harness, Terminal(app, harness, clock), service, home)


@pytest.mark.clause("H-17")
@pytest.mark.clause("H-18")
@pytest.mark.clause("H-20")
@pytest.mark.parametrize("home", HOMES.values(), ids=HOMES)
async def test_the_next_message_continues_the_conversation(scene: Scene) -> None:
    home, harness, service = scene.home, scene.harness, scene.service
    chat = await scene.settle_in()
    async with harness.serve():
        session = await scene.terminal.talk()
        harness.model.say("We spoke of the cat.", "White.")
        assert (await scene.terminal.request(session, home.platform)).error is None
        await harness.until(
            lambda: any(one.text == "We spoke of the cat." for one in service.list_messages(chat=home.chat))
        )
        (greeting,) = [one for one in service.list_messages(chat=home.chat) if one.text == "We spoke of the cat."]
        assert bool(greeting.thread) == ("{thread}" in home.key or bool(home.thread))
        key = home.key.format(thread=greeting.thread, chat=chat)
        assert await harness.session_of(key) == session
        await service.say("what colour?", chat=home.chat, thread=greeting.thread)
        await harness.until(lambda: service.list_messages(chat=home.chat)[-1].text == "White.")
        assert service.list_messages(chat=home.chat)[-1].thread == greeting.thread
    assert "the cat is white" in harness.model.requests[-1].body.decode()
    assert len(harness.model.requests) == 3


@pytest.mark.clause("H-18")
@pytest.mark.parametrize("home", [HOMES["telegram group"]], ids=["telegram group"])
async def test_in_a_group_where_all_have_their_own_it_goes_to_whoever_chose_it(scene: Scene) -> None:
    harness = scene.harness
    people = {"allowed_users": [OWNER, "1002"], "allowed_chats": [GROUP], "require_mention": False}
    harness.add_platform("telegram", {**harness.telegram.settings, **people})
    async with harness.serve():
        harness.model.say("Of my own.")
        await harness.telegram.say("hello", chat=GROUP, user="1002")
        await harness.wait_for_messages(1, chat=GROUP)
        await harness.telegram.say("/sethome", chat=GROUP)
        await harness.wait_for_messages(2, chat=GROUP)
        session = await scene.terminal.talk()
        harness.model.say("We spoke of the cat.", "Still of my own.", "White.")
        assert (await scene.terminal.request(session)).state == "completed"
        for number, (person, knows) in enumerate({"1002": False, OWNER: True}.items(), 4):
            await harness.telegram.say("what colour?", chat=GROUP, user=person)
            await harness.wait_for_messages(number, chat=GROUP)
            assert ("the cat is white" in harness.model.requests[-1].body.decode()) is knows


@pytest.mark.clause("H-18")
@pytest.mark.parametrize("home", [HOMES["telegram group"]], ids=["telegram group"])
@pytest.mark.parametrize("admins", [("1001", "1002"), ("1002",), ()])
async def test_if_nobody_chose_it_it_goes_to_the_admins(scene: Scene, admins: tuple[str, ...]) -> None:
    harness = scene.harness
    people: dict[str, Any] = {"admin_users": list(admins), "allowed_users": [OWNER, "1002"] if admins else []}
    if not admins:
        people["allow_all_users"] = True
    there = {"allowed_chats": [GROUP], "require_mention": False, "home_channel": GROUP}
    harness.add_platform("telegram", {**harness.telegram.settings, **people, **there})
    harness.telegram.group(GROUP)
    async with harness.serve():
        session = await scene.terminal.talk()
        harness.model.say("We spoke of the cat.", "To one.", "To the other.")
        ended = await scene.terminal.request(session)
        if not admins:
            assert ended.state == "failed"
            assert "send /sethome there" in (ended.error or "")
            return
        for number, person in enumerate((OWNER, "1002"), 2):
            await harness.telegram.say("what colour?", chat=GROUP, user=person)
            await harness.wait_for_messages(number, chat=GROUP)
            assert ("the cat is white" in harness.model.requests[-1].body.decode()) == (person in admins)


@pytest.mark.clause("H-20")
@pytest.mark.parametrize("home", [HOMES["telegram group"]], ids=["telegram group"])
async def test_in_a_group_with_one_conversation_for_all_it_is_everybodys(scene: Scene) -> None:
    await scene.settle_in()
    scene.harness.config["gateway"]["group_sessions_per_user"] = False
    async with scene.harness.serve():
        session = await scene.terminal.talk()
        scene.harness.model.say("We spoke of the cat.")
        assert (await scene.terminal.request(session)).state == "completed"
        assert await scene.harness.session_of(f"agent:main:telegram:group:{GROUP}") == session
