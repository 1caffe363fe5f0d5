"""Endpoints that cannot see: the request is mended, and the turn goes on without the images."""

from typing import TYPE_CHECKING, Any

import pytest
from tests.rules import chat_problems, messages_problems, responses_problems

from talaria.core.messages import Image
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Failure, Reply, call
from talaria.tools.base import RichResult
from talaria.tools.function import FunctionTool, tool

if TYPE_CHECKING:
    from tests.contracts.routes.conftest import OpenHarness

JUDGES = {
    "openai_chat": chat_problems,
    "openai_responses": responses_problems,
    "anthropic_messages": messages_problems,
}
DATA = b"aVZCT1J3"
UNSEEN = b"[There is an image here that you cannot be shown.]"
every_wire = pytest.mark.parametrize("wire", JUDGES)


def looking(times: int = 1) -> FunctionTool:
    @tool
    async def look(at: str) -> RichResult:
        """Look."""
        return RichResult(f"a {at}", (Image("image/png", DATA.decode()),) * times)

    return look


def settings(server: ModelServer, wire: str) -> dict[str, Any]:
    own = {"base_url": server.base_url, "wire": wire, "api_key": "k"}
    return {"model": {"default": "work:m"}, "providers": {"work": own}}


def refusal(words: str) -> Failure:
    return Failure(400, {"error": {"type": "invalid_request_error", "message": words}})


@every_wire
@pytest.mark.parametrize(
    "words",
    [
        "This model does not support image input.",
        "Unexpected role 'user' after role 'tool'",
        "Invalid type for 'input'.",
        "Only text tool_result blocks are supported when tool_result.content is an array.",
    ],
)
async def test_a_model_that_cannot_see_is_told_so_and_answers(
    harness: "OpenHarness", primary: ModelServer, wire: str, words: str
) -> None:
    calls = (call("look", at="tree"), call("look", id="call_2", at="lake"))
    async with harness(tools=[looking()], **settings(primary, wire)) as here:
        primary.say(Reply("", "", calls), refusal(words), "I cannot see it.", "Hello.")
        report = await here.ask("look")
        assert (report.outcome, report.text) == ("completed", "I cannot see it.")
        assert (await here.ask("hello")).outcome == "completed"
    counts = [(request.body.count(DATA), request.body.count(UNSEEN)) for request in primary.requests]
    assert counts == [(0, 0), (2, 0), (0, 2), (2, 0)]
    assert [problem for request in primary.requests for problem in JUDGES[wire](request.json)] == []


@every_wire
async def test_a_request_that_is_refused_without_its_images_too_is_given_up(
    harness: "OpenHarness", primary: ModelServer, wire: str
) -> None:
    async with harness(tools=[looking()], **settings(primary, wire)) as here:
        primary.say(Reply("", "", (call("look", at="tree"),)), refusal("Go away."), refusal("Go away."))
        report = await here.ask("look")
    assert report.outcome == "failed"
    assert len(primary.requests) == 3


async def test_a_refusal_of_a_request_without_images_is_not_blamed_on_them(
    harness: "OpenHarness", primary: ModelServer
) -> None:
    async with harness(**settings(primary, "openai_chat")) as here:
        primary.say(refusal("Go away."))
        assert (await here.ask("hello")).outcome == "failed"
    assert len(primary.requests) == 1


@every_wire
async def test_images_too_large_for_an_endpoint_are_left_out_of_the_conversation(
    harness: "OpenHarness", primary: ModelServer, wire: str
) -> None:
    async with harness(tools=[looking(3)], **settings(primary, wire)) as here:
        primary.say(Reply("", "", (call("look", at="tree"),)), Failure(413), "A tree, I was told.")
        report = await here.ask("look")
    assert (report.outcome, report.text) == ("completed", "A tree, I was told.")
    assert DATA not in primary.requests[-1].body
    assert JUDGES[wire](primary.requests[-1].json) == []
