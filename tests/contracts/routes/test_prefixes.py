"""Prompt caches stay warm: each request of a conversation begins with the bytes of the one before it."""

import itertools
import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.live_sessions import steer
from tests.rules import chat_problems, messages_problems, responses_problems

from talaria.core.messages import Image
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Failure, Reply, call
from talaria.tools.base import RichResult
from talaria.tools.function import tool

if TYPE_CHECKING:
    from tests.contracts.routes.conftest import OpenHarness

    from talaria.testing.harness import Harness

MARK = re.compile(rb',"cache_control":\{"type":"ephemeral"\}')
LISTED = re.compile(rb'"content":\[\{"type":"text","text":("(?:[^"\\]|\\.)*")\}\]')
TAILS = {"openai_chat": b'],"stream":', "openai_responses": b'],"stream":', "anthropic_messages": b'],"max_tokens":'}
JUDGES = {
    "openai_chat": chat_problems,
    "openai_responses": responses_problems,
    "anthropic_messages": messages_problems,
}
PIXEL = Image("image/png", "aVZCT1J3")
CASES = [
    *(("openai_chat", caching) for caching in ("off", "automatic", "markers")),
    ("openai_responses", "off"),
    *(("anthropic_messages", caching) for caching in ("off", "automatic", "markers")),
]


class Crash(BaseException):
    """The process is gone."""


def plain(body: bytes, wire: str) -> bytes:
    """Without the marks; a text that became a list only to bear one is a text again."""
    unmarked = MARK.sub(b"", body)
    return LISTED.sub(rb'"content":\1', unmarked) if wire == "openai_chat" else unmarked


def history_of(body: bytes, wire: str) -> bytes:
    """Up to the end of the history; a message of the Messages wire may still grow."""
    history = body[: body.rindex(TAILS[wire])]
    return history.removesuffix(b"]}") if wire == "anthropic_messages" else history


def check(bodies: list[bytes], wire: str) -> None:
    assert len(bodies) > 1
    shown = [plain(body, wire) for body in bodies]
    for before, after in itertools.pairwise(shown):
        assert after.startswith(history_of(before, wire))


def settings(server: ModelServer, wire: str, caching: str) -> dict[str, Any]:
    own = {"base_url": server.base_url, "wire": wire, "prompt_caching": caching, "api_key": "k"}
    return {"model": {"default": "work:m", "reasoning_effort": "high"}, "providers": {"work": own}}


@pytest.mark.parametrize(("wire", "caching"), CASES)
async def test_over_tool_rounds_steering_turns_and_processes(
    harness: "OpenHarness", primary: ModelServer, wire: str, caching: str
) -> None:
    opened: list[Harness] = []

    @tool
    async def look(at: str) -> RichResult:
        """Look."""
        steer(opened[0].live, f"and mind the {at}")
        return RichResult(f"a {at}", (PIXEL,) if at != "lake" else ())

    async with harness(tools=[look], **settings(primary, wire, caching)) as here:
        opened.append(here)
        primary.say(
            Reply("Let me see.", "thought one", (call("look", at="tree"), call("look", id="call_2", at="lake"))),
            Reply("More.", "thought two", (call("look", id="call_3", at="hill"),)),
            Reply("All seen.", "thought three"),
            Reply("Hello again."),
            Reply("", "", (call("look", id="call_4", at="sea"),)),
            Reply("Done."),
        )
        assert (await here.ask("look around")).outcome == "completed"
        assert (await here.ask("and again")).outcome == "completed"
        await here.restart()
        assert (await here.ask("go on")).outcome == "completed"
    check([request.body for request in primary.requests], wire)
    assert [problem for request in primary.requests for problem in JUDGES[wire](request.json)] == []
    assert [request.body.count(b"aVZCT1J3") for request in primary.requests] == [0, 1, 2, 2, 2, 3]
    marks = [request.body.count(b"cache_control") for request in primary.requests]
    assert all(marks) if caching != "off" else not any(marks)
    assert max(marks) <= 4


@pytest.mark.parametrize(("wire", "caching"), CASES)
async def test_over_a_crash_and_the_end_of_the_turn_that_it_left_open(
    harness: "OpenHarness", primary: ModelServer, wire: str, caching: str
) -> None:
    deaths = [Crash()]

    @tool(after_crash="repeat")
    async def look() -> RichResult:
        """Look."""
        if deaths:
            raise deaths.pop()
        return RichResult("a tree", (PIXEL,))

    async with harness(tools=[look], **settings(primary, wire, caching)) as here:
        primary.say(Reply("One.", "hm", (call("look"),)), "I see a tree.", "Hello again.")
        with pytest.raises(Crash):
            await here.ask("look")
        await here.restart()
        report = await here.live.resume()
        assert report is not None
        assert report.text == "I see a tree."
        assert (await here.ask("hello")).text == "Hello again."
    check([request.body for request in primary.requests], wire)
    assert [request.body.count(b"aVZCT1J3") for request in primary.requests] == [0, 1, 1]


@pytest.mark.parametrize("wire", TAILS)
async def test_a_turn_elsewhere_does_not_change_what_the_primary_is_sent(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer, wire: str
) -> None:
    route = settings(primary, wire, "off")
    route["providers"]["house"] = {"base_url": fallback.base_url}
    async with harness(**route, fallback_providers="house:small") as here:
        primary.say(Reply("One.", "hm"), Failure(429), "Three.")
        fallback.say("Two.")
        for _ in range(3):
            assert (await here.ask()).outcome == "completed"
    check([request.body for request in primary.requests], wire)


async def test_a_chat_is_told_apart_from_others_where_caches_are_found_by_a_name(
    harness: "OpenHarness", primary: ModelServer
) -> None:
    async with harness(**settings(primary, "openai_responses", "off")) as here:
        primary.say("One.", "Two.")
        await here.ask()
        await here.ask()
        assert {request.json["prompt_cache_key"] for request in primary.requests} == {here.live.id}
