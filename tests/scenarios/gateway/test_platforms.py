"""The same conversation on every service: what people see does not depend on where they are."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.gateways import gateway_harness
from tests.scenarios.gateway.test_files import PIXEL
from tests.servers.discord_server import DiscordServer
from tests.servers.slack_server import SlackServer

from talaria.app.build import open_store
from talaria.core.clock import SystemClock
from talaria.gateway.authorization import APPROVED, Pairing
from talaria.store.permission_ports import Member
from talaria.testing import ModelServer, Reply, call
from talaria.testing.harness import Harness
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.chat_service import ChatService, LostAnswer, Refusal
from talaria.testing.servers.scripted_replies import Faults
from talaria.testing.servers.telegram_server import TelegramServer


class Place(msgspec.Struct, frozen=True):
    """How a service names things."""

    serve: Callable[[], Any]
    owner: str
    """As the settings name the person `1001`."""
    send: str
    """The method that sends a message."""
    group: str
    listed: str
    """As the settings name that group."""
    mention: Callable[[Any], str]
    is_keyed: bool = False
    """A second message with the same key is recognised."""


PLACES = {
    "telegram": Place(TelegramServer, "1001", "sendMessage", "-4002", "-4002", lambda _: "@talaria_bot "),
    "discord": Place(
        DiscordServer, "1001", "create_message", "7002", "7002", lambda service: f"<@{service.bot}> ", is_keyed=True
    ),
    "slack": Place(SlackServer, "U1001", "chat.postMessage", "7", "C7", lambda service: f"{service.mention} "),
}


class Stage(msgspec.Struct):
    name: str
    place: Place
    service: ChatService
    harness: Harness

    async def texts(self, count: int, **where: str) -> list[str]:
        async with asyncio.timeout(PATIENCE_S):
            return [one.text for one in await self.service.wait_for(count, **where)]


@pytest.fixture(params=list(PLACES))
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    name: str = request.param
    place = PLACES[name]
    async with AsyncExitStack() as stack:
        model = stack.enter_context(ModelServer())
        telegram = await stack.enter_async_context(TelegramServer())
        service = telegram if name == "telegram" else await stack.enter_async_context(place.serve())
        harness = await stack.enter_async_context(gateway_harness(tmp_path, model, telegram))
        harness.config["gateway"]["platforms"].clear()
        people = {"allowed_users": [place.owner], "allowed_chats": [place.listed]}
        quick = {"ping_s": 0.2} if name == "slack" else {}
        harness.add_platform(name, {**service.settings, **people, **quick})
        yield Stage(name, place, service, harness)


async def test_a_conversation(stage: Stage) -> None:
    stage.harness.model.say("Hello.", "Again.")
    async with stage.harness.serve():
        await stage.service.say("hi")
        assert await stage.texts(1) == ["Hello."]
        await stage.service.say("and now?")
        assert await stage.texts(2) == ["Hello.", "Again."]
    assert len(await _sessions(stage)) == 1


async def test_what_is_said_while_we_are_away_is_answered_later(stage: Stage) -> None:
    stage.harness.model.say("Hello.", "Back again.")
    async with stage.harness.serve():
        await stage.service.say("hi")
        await stage.texts(1)
    await stage.service.say("are you there?")
    async with stage.harness.serve():
        assert await stage.texts(2) == ["Hello.", "Back again."]


async def test_a_slow_answer_grows_and_is_one_message(stage: Stage) -> None:
    words = " ".join(f"word{number}" for number in range(60))
    stage.harness.model.say(Reply(words, faults=Faults(chunk_delay_s=0.05)))
    async with stage.harness.serve():
        await stage.service.say("slowly")
        await stage.harness.until(lambda: [one.text for one in stage.service.list_messages()] == [words])
        (only,) = stage.service.list_messages()
        assert only.edits >= 1


async def test_a_button_answers_a_question(stage: Stage) -> None:
    stage.harness.config["approvals"] = {"ask": ["terminal"]}
    stage.harness.model.say(Reply(calls=(call("terminal", command="echo x > mark"),)), "Finished.")
    async with stage.harness.serve():
        await stage.service.say("do it")
        await stage.texts(1)
        (question,) = stage.service.list_messages()
        await stage.service.press(question.id, question.buttons[0][1])
        await stage.harness.until(lambda: "Finished." in [one.text for one in stage.service.list_messages()])
        assert list(stage.harness.home.parent.glob("people/*/mark"))
        assert not stage.service.list_messages()[0].buttons


async def test_a_refusal_for_now_is_waited_out_and_nothing_is_sent_before(stage: Stage) -> None:
    stage.service.fault(stage.place.send, Refusal(429, retry_after_s=1.0))
    stage.harness.model.say("Patience.")
    async with stage.harness.serve():
        await stage.service.say("hi")
        assert await stage.texts(1) == ["Patience."]
    first, second = [one["at"] for one in stage.service.calls(stage.place.send)]
    assert second - first >= 1.0


async def test_a_lost_answer_is_never_silently_doubled(stage: Stage) -> None:
    stage.service.fault(stage.place.send, LostAnswer())
    stage.harness.model.say("Only once.")
    async with stage.harness.serve():
        await stage.service.say("hi")
        await stage.harness.until(lambda: len(stage.service.calls(stage.place.send)) == 2)
        await stage.harness.until(lambda: _is_all_sent(stage))
        texts = [one.text for one in stage.service.list_messages()]
    if stage.place.is_keyed:
        assert texts == ["Only once."]
    else:
        assert texts[0] == "Only once."
        assert texts[1].startswith("(Sent again")


async def test_in_a_group_it_answers_who_speaks_to_it(stage: Stage) -> None:
    stage.harness.model.say("Here.")
    mention = stage.place.mention(stage.service)
    async with stage.harness.serve():
        await stage.service.say("just talking", chat=stage.place.group)
        await stage.service.say(f"{mention}hello", chat=stage.place.group)
        assert await stage.texts(1, chat=stage.place.group) == ["Here."]
    assert len(stage.harness.model.requests) == 1


async def test_a_picture_that_the_model_made_is_sent_as_a_picture(stage: Stage) -> None:
    stage.harness.config["gateway"]["cwd"] = str(stage.harness.home.parent)
    (stage.harness.home.parent / "a.png").write_bytes(PIXEL)
    stage.harness.model.say("Here.\nMEDIA: a.png")
    async with stage.harness.serve():
        await stage.service.say("draw")
        await stage.texts(2)
    assert [one.file for one in stage.service.list_messages()] == ["", "a.png"]
    match stage.service:
        case TelegramServer():
            assert stage.service.calls("sendPhoto")
        case DiscordServer():
            assert stage.service.calls("create_message")[-1]["files"] == [("a.png", PIXEL, "image/png")]
        case SlackServer() as slack:  # which looks at the content itself
            assert slack.uploaded("a.png") == PIXEL
        case other:
            raise AssertionError(other)


async def test_who_is_let_in_is_told_so_and_heard(stage: Stage) -> None:
    stage.harness.model.say("Welcome.")
    async with stage.harness.serve():
        await stage.service.say("let me in", user="1002")
        (offer,) = await stage.texts(1, user="1002")
        code = re.search(r"pairing approve \w+ (\w{8})", offer)
        assert code is not None
        async with open_store(stage.harness.home) as other:
            assert isinstance(await Pairing(other.access, SystemClock()).approve(stage.name, code[1]), Member)
        assert (await stage.texts(2, user="1002"))[1:] == [APPROVED]
        await stage.service.say("hello", user="1002")
        assert (await stage.texts(3, user="1002"))[2:] == ["Welcome."]


async def test_what_arrives_while_it_is_being_stopped_is_kept_and_answered_by_the_next_start(stage: Stage) -> None:
    stage.harness.model.say(Reply("First.", faults=Faults(first_byte_delay_s=0.5)), "Then this.")
    async with stage.harness.serve() as gateway_app:
        await stage.service.say("go")
        await asyncio.to_thread(stage.harness.model.wait_for_requests, 1)
        gateway_app.gateway.stop()
        before = gateway_app.gateway.counts.messages.total()
        await stage.service.say("and this")
        await stage.harness.until(lambda: gateway_app.gateway.counts.messages.total() > before)
    assert await stage.texts(1) == ["First."]
    assert len(stage.harness.model.requests) == 1
    async with stage.harness.serve():
        assert await stage.texts(2) == ["First.", "Then this."]


async def _is_all_sent(stage: Stage) -> bool:
    return not await stage.harness.store.outbox.list_targets()


async def _sessions(stage: Stage) -> list[object]:
    async with open_store(stage.harness.home) as store:
        return list(await store.sessions.list())
