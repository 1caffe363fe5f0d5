"""`/v1/responses` with the official client of PyPI."""

import asyncio
from threading import Event
from typing import Any

import openai
import pytest
from tests.scenarios.api.served_api import ServedApi, said_by

from talaria.testing import Failure, Faults, Reply, call
from talaria.testing.harness import Harness

LOOKING = Reply("Let me look.", calls=(call("search_files", pattern="nothing"),))


def held(text: str, until_then: Event) -> Reply:
    return Reply(text, faults=Faults(held_by=until_then))


async def collect(stream: Any) -> list[Any]:
    return [event async for event in stream]


def text_of(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


async def test_response_has_its_text_and_usage(api: ServedApi) -> None:
    api.model.say("Hello, you.")
    async with api.openai() as client:
        response = await client.responses.create(model="talaria", input="hello", instructions="Be brief.")
    assert (response.status, response.output_text) == ("completed", "Hello, you.")
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (10, 5)
    assert response.conversation is not None
    assert (await api.session(response.conversation.id)).person == "api:me"
    assert "Be brief." in str(api.sent()[0])


async def test_tools_of_talaria_are_items_of_the_output(api: ServedApi) -> None:
    api.model.say(LOOKING, "There is nothing.")
    async with api.openai() as client:
        response = await client.responses.create(model="talaria", input="look")
        first, looked, last = response.output
        assert (first.type, looked.type, last.type) == ("message", "mcp_call", "message")
        assert looked.type == "mcp_call"
        assert (looked.name, looked.status, looked.server_label) == ("search_files", "completed", "talaria")
        assert looked.output
        assert response.output_text == "Let me look.There is nothing."
        # A client that keeps the conversation itself sends the items back.
        api.model.say("Goodbye.")
        sent: Any = [{"role": "user", "content": "look"}, *(one.model_dump() for one in response.output)]
        await client.responses.create(model="talaria", input=[*sent, {"role": "user", "content": "bye"}])
    assert len(await api.sessions()) == 1


async def test_streamed_response_has_all_events_in_order(api: ServedApi) -> None:
    api.model.say(LOOKING, "There is nothing.")
    async with api.openai() as client:
        events = await collect(await client.responses.create(model="talaria", input="look", stream=True))
        kinds = [event.type for event in events]
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert kinds[-1] == "response.completed"
        assert "response.mcp_call.completed" in kinds
        assert text_of(events) == "Let me look.There is nothing."
        numbers = [event.sequence_number for event in events]
        assert numbers == sorted(set(numbers))
        added = [event for event in events if event.type == "response.output_item.added"]
        done = [event for event in events if event.type == "response.output_item.done"]
        assert [one.output_index for one in added] == [one.output_index for one in done] == [0, 1, 2]
        assert [one.item for one in done] == events[-1].response.output
        assert events[-1].response == await client.responses.retrieve(events[-1].response.id)


async def test_response_is_streamed_by_the_helper_of_the_client(api: ServedApi) -> None:
    api.model.say("A rather long answer in many pieces.")
    async with api.openai() as client, client.responses.stream(model="talaria", input="hello") as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert "response.output_text.done" in kinds
    assert final.output_text == "A rather long answer in many pieces."


async def test_events_can_be_read_again_from_any_number_on(api: ServedApi) -> None:
    api.model.say(LOOKING, "There is nothing.")
    async with api.openai() as client:
        events = await collect(await client.responses.create(model="talaria", input="look", stream=True))
        id = events[0].response.id
        for number, event in enumerate(events):
            stream = await client.responses.retrieve(id, stream=True, starting_after=event.sequence_number)
            rest = await collect(stream)
            assert all(one.sequence_number > event.sequence_number for one in rest)
            assert text_of(rest) == text_of(events[number + 1 :])
            if rest:
                assert rest[-1] == events[-1]
        begun = next(one for one in events if one.type == "response.content_part.added")
        stream = await client.responses.retrieve(id, stream=True, starting_after=begun.sequence_number + 4)
        assert text_of(await collect(stream)) == "me look.There is nothing."


async def test_background_response_is_read_later(api: ServedApi) -> None:
    until_then = Event()
    api.model.say(held("Hello.", until_then))
    try:
        async with api.openai() as client:
            begun = await client.responses.create(model="talaria", input="hello", background=True)
            assert begun.status in ("queued", "in_progress")
            await api.wait_for_model(1)
            assert (await client.responses.retrieve(begun.id)).status == "in_progress"
            until_then.set()
            events = await collect(await client.responses.retrieve(begun.id, stream=True))
            assert events[-1].response.output_text == "Hello."
            assert (await client.responses.retrieve(begun.id)).output_text == "Hello."
    finally:
        until_then.set()


async def test_background_response_goes_on_when_its_stream_is_left(api: ServedApi) -> None:
    until_then = Event()
    api.model.say(held("Hello.", until_then))
    try:
        async with api.openai() as client:
            stream = await client.responses.create(model="talaria", input="hello", background=True, stream=True)
            first = await anext(aiter(stream))
            assert first.type == "response.created"
            await api.wait_for_model(1)
            await stream.close()
            until_then.set()
            again = await client.responses.retrieve(
                first.response.id, stream=True, starting_after=first.sequence_number
            )
            events = await collect(again)
            assert (text_of(events), events[-1].type) == ("Hello.", "response.completed")
    finally:
        until_then.set()


async def test_background_response_survives_the_end_of_the_gateway(harness: Harness) -> None:
    harness.config["gateway"]["drain_s"] = 0.1
    until_then = Event()
    harness.model.say(held("Never.", until_then), "Hello.")
    try:
        async with ServedApi.serve(harness) as before:
            token = before.token
            async with before.openai() as client:
                begun = await client.responses.create(model="talaria", input="hello", background=True)
                await before.wait_for_model(1)
        async with ServedApi.serve(harness, token) as after, after.openai() as client:
            (*_, last) = await collect(await client.responses.retrieve(begun.id, stream=True, starting_after=1))
            assert last.response.output_text == "Hello."
            assert await client.responses.retrieve(begun.id) == last.response
    finally:
        until_then.set()


async def test_response_is_cancelled(api: ServedApi) -> None:
    until_then = Event()
    api.model.say(held("Hello.", until_then), "Next.")
    try:
        async with api.openai() as client:
            begun = await client.responses.create(model="talaria", input="hello", background=True)
            await api.wait_for_model(1)
            await client.responses.cancel(begun.id)
            events = await collect(await client.responses.retrieve(begun.id, stream=True))
            assert events[-1].response.status == "cancelled"
            cancelled = await client.responses.retrieve(begun.id)
            assert (cancelled.status, cancelled.output_text) == ("cancelled", "")
            assert (await client.responses.cancel(begun.id)).status == "cancelled"
            until_then.set()
            after = await client.responses.create(model="talaria", input="next", previous_response_id=begun.id)
            assert after.output_text == "Next."
    finally:
        until_then.set()


async def test_response_that_waits_is_cancelled_before_it_begins(api: ServedApi) -> None:
    until_then = Event()
    api.model.say(held("First.", until_then))
    try:
        async with api.openai() as client:
            one = await client.responses.create(model="talaria", input="one", background=True, conversation="tab")
            await api.wait_for_model(1)
            two = await client.responses.create(model="talaria", input="two", background=True, conversation="tab")
            assert two.status == "queued"
            watching = asyncio.create_task(collect(await client.responses.retrieve(two.id, stream=True)))
            assert (await client.responses.cancel(two.id)).status == "cancelled"
            assert (await watching)[-1].response.status == "cancelled"
            until_then.set()
            events = await collect(await client.responses.retrieve(one.id, stream=True))
            assert events[-1].response.output_text == "First."
    finally:
        until_then.set()
    assert len(api.model.requests) == 1


async def test_conversation_goes_on_after_a_response_and_branches_after_an_earlier_one(api: ServedApi) -> None:
    api.model.say("First.", "Second.", "Other.")
    async with api.openai() as client:
        first = await client.responses.create(model="talaria", input="one")
        second = await client.responses.create(model="talaria", input="two", previous_response_id=first.id)
        assert second.conversation == first.conversation
        other = await client.responses.create(model="talaria", input="other", previous_response_id=first.id)
        assert other.conversation != first.conversation
        assert said_by("assistant", api.sent()) == ["First."]
        with pytest.raises(openai.NotFoundError, match="no response"):
            await client.responses.create(model="talaria", input="x", previous_response_id=f"resp_{'0' * 32}")
        with pytest.raises(openai.BadRequestError) as both:
            await client.responses.create(model="talaria", input="x", previous_response_id=first.id, conversation="tab")
        assert both.value.param == "previous_response_id"


async def test_conversation_is_named(api: ServedApi) -> None:
    api.model.say("First.", "Second.", "Third.")
    async with api.openai() as client:
        first = await client.responses.create(model="talaria", input="one", conversation="my tab")
        second = await client.responses.create(model="talaria", input="two", conversation={"id": "my tab"})
        assert second.conversation == first.conversation
        assert first.conversation is not None
        third = await client.responses.create(model="talaria", input="three", conversation=first.conversation.id)
        assert third.conversation == first.conversation
    assert said_by("assistant", api.sent()) == ["First.", "Second."]


async def test_response_that_is_cut_short_is_incomplete(api: ServedApi) -> None:
    api.model.say(*[Reply("As far as", stop="length")] * 9)
    async with api.openai() as client:
        response = await client.responses.create(model="talaria", input="hello")
        assert response.status == "incomplete"
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response == await client.responses.retrieve(response.id)


async def test_errors_are_the_exceptions_of_the_client(api: ServedApi) -> None:
    async with api.openai() as client:
        for id in ("resp_nothing", f"resp_{'0' * 32}"):
            with pytest.raises(openai.NotFoundError, match="There is no response"):
                await client.responses.retrieve(id)
            with pytest.raises(openai.NotFoundError, match="There is no response"):
                await client.responses.cancel(id)
        with pytest.raises(openai.BadRequestError, match="calls its own"):
            await client.responses.create(model="talaria", input="x", tools=[{"type": "web_search"}])
        with pytest.raises(openai.BadRequestError, match="/v1/chat/completions"):
            await client.responses.create(model="talaria-plain", input="x")
        with pytest.raises(openai.BadRequestError) as blank:
            await client.responses.create(model="talaria", input=" ")
        assert blank.value.param == "input"
        nameless: Any = [{"type": "message", "content": "hello"}]
        with pytest.raises(openai.BadRequestError) as role:
            await client.responses.create(model="talaria", input=nameless)
        assert role.value.param == "input[0].role"
    assert api.model.requests == []


async def test_failing_model_fails_the_response(api: ServedApi) -> None:
    api.model.say(*[Failure(400)] * 3)
    async with api.openai() as client:
        with pytest.raises(openai.InternalServerError):
            await client.responses.create(model="talaria", input="hello")
        with pytest.raises(openai.InternalServerError):
            await client.responses.create(model="talaria", input="hello", stream=True)
        begun = await client.responses.create(model="talaria", input="hello", background=True)
        (*_, last) = await collect(await client.responses.retrieve(begun.id, stream=True))
        failed = await client.responses.retrieve(begun.id)
    assert last.type == "response.failed"
    assert last.response == failed
    assert failed.error is not None
    assert (failed.status, failed.error.code) == ("failed", "server_error")
    assert "refused the request" in failed.error.message
    assert failed.output == []


async def test_answer_that_began_anew_still_ends_for_those_who_come_back(api: ServedApi) -> None:
    api.model.say(Reply("A rather long answer.", faults=Faults(cut_at=1200)), "Short.")
    async with api.openai() as client:
        events = await collect(await client.responses.create(model="talaria", input="hello", stream=True))
        assert [one.status for one in events[-1].response.output] == ["completed"]
        for event in events[:-1]:
            stream = await client.responses.retrieve(
                events[0].response.id, stream=True, starting_after=event.sequence_number
            )
            (*_, last) = await collect(stream)
            assert (last.type, last.response.output_text) == ("response.completed", "Short.")
            assert last.sequence_number > event.sequence_number
