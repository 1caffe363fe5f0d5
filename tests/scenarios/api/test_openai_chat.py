"""`/v1/chat/completions` with the official client of PyPI."""

import asyncio
from threading import Event
from typing import Any

import openai
import pytest
from tests.scenarios.api.served_api import ServedApi, said_by

from talaria.core.entries import TurnEnded
from talaria.testing import Failure, Faults, Reply, call


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str | None) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


async def ask(client: openai.AsyncOpenAI, *messages: dict[str, Any], **more: Any) -> Any:
    return await client.chat.completions.create(model="talaria", messages=list(messages), **more)  # type: ignore[arg-type]


async def test_models_are_listed_and_described(api: ServedApi) -> None:
    async with api.openai() as client:
        assert [one.id async for one in client.models.list()] == ["talaria", "talaria-plain"]
        assert (await client.models.retrieve("talaria-plain")).owned_by == "talaria"
        with pytest.raises(openai.NotFoundError, match="There is no model 'gpt'"):
            await client.models.retrieve("gpt")


async def test_answer_comes_with_its_usage(api: ServedApi) -> None:
    api.model.say(Reply("Hello, you.", thinking="They greet me."))
    async with api.openai() as client:
        answer = await ask(client, user("hello"))
    assert answer.id.startswith("chatcmpl-")
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("Hello, you.", "stop")
    assert choice.message.reasoning_content == "They greet me."
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (10, 5, 15)


@pytest.mark.parametrize("with_usage", [True, False])
async def test_streamed_answer_ends_with_its_usage_if_that_was_asked_for(api: ServedApi, with_usage: bool) -> None:
    api.model.say(Reply("A rather long answer in many pieces."))
    async with api.openai() as client:
        stream = await ask(client, user("hello"), stream=True, stream_options={"include_usage": with_usage})
        chunks = [chunk async for chunk in stream]
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == "A rather long answer in many pieces."
    assert [one.choices[0].finish_reason for one in chunks if one.choices][-1] == "stop"
    assert len({one.id for one in chunks}) == 1
    usages = [one.usage for one in chunks if one.usage is not None]
    assert [one.total_tokens for one in usages] == ([15] if with_usage else [])
    assert bool(chunks[-1].choices) is not with_usage


async def test_stateless_client_stays_in_one_conversation(api: ServedApi) -> None:
    api.model.say("First.", "Second.", "Third.")
    messages: list[dict[str, Any]] = []
    async with api.openai() as client:
        for text in ("one", "two", "three"):
            messages.append(user(text))
            answer = await ask(client, *messages)
            messages.append(assistant(answer.choices[0].message.content))
    (session,) = await api.sessions()
    assert session.person == "api:me"
    assert said_by("assistant", api.sent()) == ["First.", "Second."]
    assert [text.splitlines()[-1] for text in said_by("user", api.sent())] == ["one", "two", "three"]


async def test_changed_white_space_of_the_history_still_matches(api: ServedApi) -> None:
    api.model.say("First\n\nanswer.", "Second.")
    async with api.openai() as client:
        await ask(client, user("one  and a half"))
        await ask(client, user(" one and a\thalf\n"), assistant("First answer.  "), user("two"))
    assert len(await api.sessions()) == 1


async def test_edit_of_an_earlier_message_branches(api: ServedApi) -> None:
    api.model.say("First.", "Second.", "Third.", "Other second.")
    async with api.openai() as client:
        await ask(client, user("one"))
        await ask(client, user("one"), assistant("First."), user("two"))
        await ask(client, user("one"), assistant("First."), user("two"), assistant("Second."), user("three"))
        await ask(client, user("one"), assistant("First."), user("changed"))
    branch, first = await api.sessions()
    assert branch.parent == first.id
    assert said_by("assistant", api.sent()) == ["First."]
    assert "three" not in str(api.sent())


async def test_answer_that_is_made_again_branches(api: ServedApi) -> None:
    api.model.say("First.", "Second.", "Second, again.", "Third.")
    async with api.openai() as client:
        await ask(client, user("one"))
        await ask(client, user("one"), assistant("First."), user("two"))
        again = await ask(client, user("one"), assistant("First."), user("two"))
        assert again.choices[0].message.content == "Second, again."
        chosen = (user("one"), assistant("First."), user("two"), assistant("Second, again."))
        await ask(client, *chosen, user("three"))
    assert len(await api.sessions()) == 2
    assert said_by("assistant", api.sent()) == ["First.", "Second, again."]


async def test_unknown_history_is_adopted_once(api: ServedApi) -> None:
    api.model.say("Third.", "Fourth.")
    known = [
        {"role": "system", "content": "Be brief."},
        *(user("one"), assistant("First."), user("two"), assistant("Second.")),
    ]
    async with api.openai() as client:
        await ask(client, *known, user("three"))
        await ask(client, *known, user("three"), assistant("Third."), user("four"))
    assert len(await api.sessions()) == 1
    assert said_by("assistant", api.sent()) == ["First.", "Second.", "Third."]
    assert "Be brief." in str(api.sent()[0])


async def test_history_of_somebody_else_is_not_found(api: ServedApi) -> None:
    other = await api.add_token("other")
    api.model.say("First.", "Second.")
    async with api.openai() as mine, api.openai(other) as theirs:
        await ask(mine, user("one"))
        await ask(theirs, user("one"), assistant("First."), user("two"))
    assert sorted(one.person for one in await api.sessions()) == ["api:me", "api:other"]
    assert all(one.parent is None for one in await api.sessions())


async def test_history_matches_with_rounds_of_tools_in_between(api: ServedApi) -> None:
    reading = Reply("Let me look.", calls=(call("search_files", pattern="nothing"),))
    api.model.say(reading, "There is nothing.", "Goodbye.", "Again.")
    async with api.openai() as client:
        answer = await ask(client, user("look"))
        text = answer.choices[0].message.content
        assert text == "Let me look.\n\nThere is nothing."
        history = (
            user("look"),
            {**assistant("Let me look."), "tool_calls": [_tool_call()]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Nothing."},
            {**assistant(None), "tool_calls": [_tool_call()]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Nothing."},
            assistant("There is nothing."),
        )
        await ask(client, *history, user("bye"))
        await ask(client, *history, user("bye"), assistant("Goodbye."), user("again"))
    assert len(await api.sessions()) == 1


def _tool_call() -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": "search_files", "arguments": "{}"}}


@pytest.mark.parametrize("header", ["X-Talaria-Session", "X-Hermes-Session-Id", "X-OpenWebUI-Chat-Id"])
async def test_conversation_is_named_by_a_header(api: ServedApi, header: str) -> None:
    api.model.say("First.", "Second.", "Third.", "Fourth.")
    async with api.openai() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="talaria", messages=[{"role": "user", "content": "one"}], extra_headers={header: "my: chat/1"}
        )
        id = raw.headers["X-Talaria-Session"]
        await ask(client, user("two"), extra_headers={header: "my: chat/1"})
        assert said_by("assistant", api.sent()) == ["First."]
        await ask(client, user("three"), extra_headers={header: id})
        assert said_by("assistant", api.sent()) == ["First.", "Second."]
        (session,) = await api.sessions()
        assert session.id == id
        await ask(client, user("four"), extra_headers={header: "another"})
        assert said_by("assistant", api.sent()) == []


async def test_named_conversation_branches_where_an_earlier_message_was_changed(api: ServedApi) -> None:
    api.model.say("First.", "Second.", "Other.", "Last.")
    named = {"X-OpenWebUI-Chat-Id": "tab"}
    async with api.openai() as client:
        await ask(client, user("one"), extra_headers=named)
        await ask(client, user("one"), assistant("First."), user("two"), extra_headers=named)
        await ask(client, user("one"), assistant("First."), user("changed"), extra_headers=named)
        history = (user("one"), assistant("First."), user("changed"), assistant("Other."))
        await ask(client, *history, user("last"), extra_headers=named)
    assert len(await api.sessions()) == 2
    assert said_by("assistant", api.sent()) == ["First.", "Other."]


async def test_tools_of_talaria_are_shown_as_reasoning(api: ServedApi) -> None:
    api.model.say(Reply(calls=(call("search_files", pattern="nothing"),)), "Done.")
    async with api.openai() as client:
        stream = await ask(client, user("look"), stream=True)
        deltas = [chunk.choices[0].delta async for chunk in stream if chunk.choices]
    shown = "".join(getattr(one, "reasoning_content", None) or "" for one in deltas)
    assert "⚙ search_files" in shown
    assert "done" in shown
    assert "".join(one.content or "" for one in deltas) == "Done."
    assert all(one.tool_calls is None for one in deltas)


async def test_plain_model_answers_without_a_conversation(api: ServedApi) -> None:
    api.model.say("A title.", "A tag.")
    async with api.openai() as client:
        messages: Any = [{"role": "system", "content": "Name it."}, user("hello")]
        answer = await client.chat.completions.create(model="talaria-plain", messages=messages)
        assert answer.choices[0].message.content == "A title."
        stream = await client.chat.completions.create(
            model="talaria-plain", messages=messages, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices) == "A tag."
    assert chunks[-1].usage is not None
    assert await api.sessions() == []
    assert "tools" not in api.model.requests[-1].json
    assert "Name it." in str(api.sent()[0])


async def test_errors_are_the_exceptions_of_the_client(api: ServedApi) -> None:
    weak = await api.add_token("weak", ["metrics"])
    async with api.openai() as client, api.openai("tal_wrong") as stranger, api.openai(weak) as limited:
        with pytest.raises(openai.AuthenticationError) as unknown:
            await ask(stranger, user("hello"))
        assert unknown.value.code == "invalid_token"
        with pytest.raises(openai.PermissionDeniedError, match="scope chat"):
            await ask(limited, user("hello"))
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "hello"}])
        with pytest.raises(openai.BadRequestError, match="calls its own") as tools:
            await ask(client, user("hello"), tools=[{"type": "function", "function": {"name": "x"}}])
        assert tools.value.param == "tools"
        with pytest.raises(openai.BadRequestError) as wrong:
            await ask(client, {"role": "user", "content": 5})
        assert wrong.value.param == "messages[0].content"
        with pytest.raises(openai.BadRequestError) as answered:
            await ask(client, user("hello"), assistant("Hello."))
        assert answered.value.param == "messages"
        with pytest.raises(openai.BadRequestError) as blank:
            await ask(client, user("  "))
        assert blank.value.param == "messages"
        with pytest.raises(openai.NotFoundError, match="session"):
            await ask(client, user("hello"), extra_headers={"X-Talaria-Session": "20200101_000000_abcdef01"})
    assert api.model.requests == []


async def test_failing_model_is_an_error_that_the_client_does_not_repeat(api: ServedApi) -> None:
    api.model.say(*[Failure(400)] * 2)
    async with api.openai(max_retries=2) as client:
        for is_streamed in (True, False):
            with pytest.raises(openai.InternalServerError) as failed:
                await ask(client, user("hello"), stream=is_streamed)
            assert (failed.value.status_code, failed.value.code) == (502, "turn_failed")
    assert len(api.model.requests) == len(await api.sessions()) == 2


async def test_words_arrive_before_the_answer_is_complete_and_hanging_up_stops_it(api: ServedApi) -> None:
    api.model.say(Reply("A rather long answer.", faults=Faults(stall_at=900)))
    async with api.openai() as client:
        stream = await ask(client, user("hello"), stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                assert "A rather".startswith(chunk.choices[0].delta.content[:8])
                break
        await stream.close()
    (session,) = await api.sessions()
    await api.harness.until(lambda: _has_ended(api, session.id))
    (*_, ended) = await api.store.journal.entries(session.id)
    assert isinstance(ended.entry, TurnEnded)
    assert ended.entry.outcome == "interrupted"


async def _has_ended(api: ServedApi, session: str) -> bool:
    return (await api.session(session)).open_turn is None


async def test_several_messages_of_one_speaker_count_as_one(api: ServedApi) -> None:
    api.model.say("First.", "Second.", "Third.")
    begun = (assistant("How can I help?"), user("one"), user("and a half"))
    async with api.openai() as client:
        await ask(client, *begun)
        await ask(client, *begun, assistant("First."), user("two"))
        await ask(client, *begun, assistant("First."), user("two"), assistant("Second."), user("three"))
    assert len(await api.sessions()) == 1
    assert said_by("assistant", api.sent()) == ["How can I help?", "First.", "Second."]


async def test_busy_conversation_is_an_error_unless_the_client_waits(api: ServedApi) -> None:
    until_then = Event()
    api.model.say(Reply("First.", faults=Faults(held_by=until_then)), "Second.")
    named = {"X-Talaria-Session": "tab"}
    try:
        async with api.openai() as client:
            first = asyncio.create_task(ask(client, user("one"), extra_headers=named))
            await api.wait_for_model(1)
            with pytest.raises(openai.ConflictError) as busy:
                await ask(client, user("two"), extra_headers=named)
            assert busy.value.code == "session_busy"
            second = asyncio.create_task(ask(client, user("two"), extra_headers=named | {"X-Talaria-Queue": "true"}))
            (session,) = await api.sessions()
            await api.harness.until(lambda: _count_pending(api, session.id, 2))
            until_then.set()
            assert (await first).choices[0].message.content == "First."
            assert (await second).choices[0].message.content == "Second."
    finally:
        until_then.set()
    assert said_by("assistant", api.sent()) == ["First."]


async def _count_pending(api: ServedApi, session: Any, count: int) -> bool:
    return len(await api.store.inbox.list_pending(session, 10)) == count


async def test_client_retries_what_is_busy_by_itself(api: ServedApi) -> None:
    until_then = Event()
    api.model.say(Reply("First.", faults=Faults(held_by=until_then)), "Second.")
    named = {"X-Talaria-Session": "tab"}
    try:
        async with api.openai() as client, api.openai(max_retries=20) as patient:
            first = asyncio.create_task(ask(client, user("one"), extra_headers=named))
            await api.wait_for_model(1)
            with pytest.raises(openai.ConflictError):
                await ask(client, user("two"), extra_headers=named)
            second = asyncio.create_task(ask(patient, user("two"), extra_headers=named))
            until_then.set()
            await first
            assert (await second).choices[0].message.content == "Second."
    finally:
        until_then.set()
