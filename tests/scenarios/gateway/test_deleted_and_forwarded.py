"""What somebody deletes before it is read is not read, and what they pass on is not what they say."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from tests.scenarios.gateway.test_conversing import user_texts
from tests.servers.discord_server import DiscordServer
from tests.servers.slack_server import SlackServer

from talaria.testing import Reply
from talaria.testing.harness import OWNER, Harness
from talaria.testing.servers.scripted_replies import Faults

SLOW = Reply("First.", faults=Faults(first_byte_delay_s=0.8))
CANARY = "canary-Ht5"


@pytest.mark.parametrize("name", ["discord", "slack"])
async def test_what_is_deleted_while_it_waits_reaches_no_model(harness: Harness, name: str) -> None:
    harness.model.say(SLOW, "Third.")
    async with DiscordServer() if name == "discord" else SlackServer() as service:
        harness.config["gateway"]["platforms"].clear()
        allowed = OWNER if name == "discord" else f"U{OWNER}"
        harness.add_platform(name, {**service.settings, "allowed_users": [allowed]})
        async with harness.serve():
            await service.say("one")
            await asyncio.to_thread(harness.model.wait_for_requests, 1)
            second = await service.say(CANARY)
            await service.say("three")
            await service.remove(second)
            await harness.until(lambda: [one.text for one in service.list_messages()] == ["First.", "Third."])
    assert CANARY not in str([request.json for request in harness.model.requests])


async def test_what_was_begun_is_not_stopped_by_deleting_it(harness: Harness) -> None:
    harness.model.say(SLOW)
    async with DiscordServer() as service:
        harness.config["gateway"]["platforms"].clear()
        harness.add_platform("discord", {**service.settings, "allowed_users": [OWNER]})
        async with harness.serve():
            first = await service.say("one")
            await asyncio.to_thread(harness.model.wait_for_requests, 1)
            await service.remove(first)
            await harness.until(lambda: [one.text for one in service.list_messages()] == ["First."])


ORIGINS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "a person": ({"type": "user", "sender_user": {"id": 7, "is_bot": False, "first_name": "Bob"}}, " from Bob"),
    "somebody hidden": ({"type": "hidden_user", "sender_user_name": "Eve"}, " from Eve"),
    "a channel": ({"type": "channel", "chat": {"id": -1007, "type": "channel", "title": "News"}}, " from News"),
    "nobody knows": ({"type": "of tomorrow"}, ""),
}


@pytest.mark.parametrize("origin", ORIGINS)
async def test_what_is_passed_on_is_told_to_the_model_as_its_authors(harness: Harness, origin: str) -> None:
    told, author = ORIGINS[origin]
    harness.model.say("Read.")
    async with harness.serve():
        await harness.telegram.post({"text": "pay me\nnow", "forward_origin": {**told, "date": 1}})
        await harness.wait_for_messages(1)
    (said,) = user_texts(harness.model)
    assert f"[Forwarded{author}: pay me\n> now]" in said
    assert "In reply to" not in said


async def test_a_quotation_names_whose_it_is(harness: Harness) -> None:
    harness.config["gateway"]["platforms"]["telegram"]["allowed_chats"] = ["-4002"]
    harness.model.say("It is.")
    async with harness.serve():
        first = await harness.telegram.say("we meet at 5", chat="-4002", user="1002", name="Bob")
        await harness.telegram.say("@talaria_bot is that right?", chat="-4002", reply_to=first)
        await harness.wait_for_messages(1, chat="-4002")
    (said,) = user_texts(harness.model)
    assert "[In reply to the message of Bob: we meet at 5]" in said


async def test_a_message_that_is_shared_on_slack_is_its_authors(harness: Harness) -> None:
    harness.model.say("Read.")
    async with SlackServer() as slack:
        harness.config["gateway"]["platforms"].clear()
        harness.add_platform("slack", {**slack.settings, "allowed_users": [f"U{OWNER}"]})
        async with harness.serve():
            shared = {"is_share": True, "author_name": "Bob", "text": "pay me", "fallback": "[…] pay me"}
            odd = [{"is_share": "perhaps"}, "junk", shared]
            await slack.say("what is this?", attachments=odd)
            await slack.wait_for(1)
    (said,) = user_texts(harness.model)
    assert "[Forwarded from Bob: pay me]" in said
