"""The vendors' own SDKs hear from `ModelServer` exactly what its script says, on each wire, streamed and whole."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
import pytest
from anthropic import Anthropic
from anthropic.types import Message
from anthropic.types import Usage as MessagesUsage
from openai import OpenAI
from openai.types import CompletionUsage
from openai.types.responses import Response

from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Call, Failure, Faults, Reply, ReplyUsage, Stop, call

MODEL = "test-model"
QUESTION: Any = [{"role": "user", "content": "What is the weather?"}]


@dataclass(frozen=True, slots=True)
class Heard:
    """What a client made of a reply, in the script's own words."""

    text: str
    thinking: str
    calls: tuple[Call, ...]
    usage: ReplyUsage | None
    stop: Stop


Ear = Callable[[ModelServer], Heard]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(models=(MODEL, "other-model")) as server:
        yield server


def open_ai(server: ModelServer) -> OpenAI:
    return OpenAI(base_url=server.base_url, api_key="x", max_retries=0)


def anthropic_client(server: ModelServer) -> Anthropic:
    return Anthropic(base_url=server.url, api_key="x", max_retries=0)


def chat_document(server: ModelServer) -> Heard:
    with open_ai(server) as client:
        completion = client.chat.completions.create(model=MODEL, messages=QUESTION)
    choice = completion.choices[0]
    extra = choice.message.model_extra or {}
    calls = tuple(
        Call(call.id, call.function.name, call.function.arguments)
        for call in choice.message.tool_calls or ()
        if call.type == "function"
    )
    text = choice.message.content or ""
    return Heard(
        text, extra.get("reasoning_content", ""), calls, chat_usage(completion.usage), stop(choice.finish_reason)
    )


def chat_stream(server: ModelServer) -> Heard:
    options: Any = {"include_usage": True}
    with open_ai(server) as client:
        stream = client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True, stream_options=options)
        chunks = list(stream)
    choices = [choice for chunk in chunks for choice in chunk.choices]
    calls: dict[int, Call] = {}
    for part in (part for choice in choices for part in choice.delta.tool_calls or ()):
        assert part.function is not None
        known = calls.get(part.index) or Call(part.id or "", part.function.name or "", "")
        calls[part.index] = Call(known.id, known.name, known.arguments + (part.function.arguments or ""))
    return Heard(
        text="".join(choice.delta.content or "" for choice in choices),
        thinking="".join((choice.delta.model_extra or {}).get("reasoning_content", "") for choice in choices),
        calls=tuple(calls.values()),
        usage=chat_usage(chunks[-1].usage),
        stop=stop(choices[-1].finish_reason),
    )


def chat_usage(usage: CompletionUsage | None) -> ReplyUsage | None:
    if usage is None:
        return None
    assert usage.prompt_tokens_details is not None
    assert usage.completion_tokens_details is not None
    read = usage.prompt_tokens_details.cached_tokens or 0
    written = usage.prompt_tokens_details.cache_write_tokens or 0
    reasoning = usage.completion_tokens_details.reasoning_tokens or 0
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    return ReplyUsage(usage.prompt_tokens - read - written, usage.completion_tokens, read, written, reasoning)


def responses_document(server: ModelServer) -> Heard:
    with open_ai(server) as client:
        return responses_heard(client.responses.create(model=MODEL, input="What is the weather?"))


def responses_stream(server: ModelServer) -> Heard:
    text = thinking = arguments = ""
    final: Response | None = None
    with open_ai(server) as client:
        events = list(client.responses.create(model=MODEL, input="What is the weather?", stream=True))
    for event in events:
        match event.type:
            case "response.output_text.delta":
                text += event.delta
            case "response.reasoning_summary_text.delta":
                thinking += event.delta
            case "response.function_call_arguments.delta":
                arguments += event.delta
            case "response.completed" | "response.incomplete":
                final = event.response
            case _:
                pass
    assert final is not None
    assert [getattr(event, "sequence_number", None) for event in events] == list(range(len(events)))
    heard = responses_heard(final)
    assert (text, thinking) == (heard.text, heard.thinking)
    assert arguments == "".join(call.arguments for call in heard.calls)
    return heard


def responses_heard(response: Response) -> Heard:
    summaries = [part.text for item in response.output if item.type == "reasoning" for part in item.summary]
    calls = tuple(
        Call(item.call_id, item.name, item.arguments) for item in response.output if item.type == "function_call"
    )
    return Heard(response.output_text, "".join(summaries), calls, responses_usage(response), responses_stop(response))


def responses_usage(response: Response) -> ReplyUsage | None:
    usage = response.usage
    if usage is None:
        return None
    read, written = usage.input_tokens_details.cached_tokens, usage.input_tokens_details.cache_write_tokens
    reasoning = usage.output_tokens_details.reasoning_tokens
    return ReplyUsage(usage.input_tokens - read - written, usage.output_tokens, read, written, reasoning)


def responses_stop(response: Response) -> Stop:
    if response.incomplete_details is None:
        assert response.status == "completed"
        return "tool_calls" if any(item.type == "function_call" for item in response.output) else "stop"
    assert response.status == "incomplete"
    return stop(response.incomplete_details.reason)


def messages_document(server: ModelServer) -> Heard:
    with anthropic_client(server) as client:
        return messages_heard(client.messages.create(model=MODEL, max_tokens=100, messages=QUESTION))


def messages_helper_stream(server: ModelServer) -> Heard:
    with (
        anthropic_client(server) as client,
        client.messages.stream(model=MODEL, max_tokens=100, messages=QUESTION) as stream,
    ):
        return messages_heard(stream.get_final_message())


def messages_raw_stream(server: ModelServer) -> Heard:
    grown: dict[str, str] = {"thinking_delta": "", "text_delta": ""}
    with anthropic_client(server) as client:
        events = list(client.messages.create(model=MODEL, max_tokens=100, messages=QUESTION, stream=True))
    calls: dict[int, Call] = {}
    usage, reason = ReplyUsage(), ""
    for event in events:
        if event.type == "content_block_start" and event.content_block.type == "tool_use":
            calls[event.index] = Call(event.content_block.id, event.content_block.name, "")
        elif event.type == "content_block_delta" and event.delta.type == "input_json_delta":
            known = calls[event.index]
            calls[event.index] = Call(known.id, known.name, known.arguments + event.delta.partial_json)
        elif event.type == "content_block_delta" and event.delta.type == "thinking_delta":
            grown["thinking_delta"] += event.delta.thinking
        elif event.type == "content_block_delta" and event.delta.type == "text_delta":
            grown["text_delta"] += event.delta.text
        elif event.type == "message_delta":
            usage, reason = messages_usage(event.usage), event.delta.stop_reason or ""
    return Heard(grown["text_delta"], grown["thinking_delta"], tuple(calls.values()), usage, stop(reason))


def messages_heard(message: Message) -> Heard:
    blocks = message.content
    return Heard(
        text="".join(block.text for block in blocks if block.type == "text"),
        thinking="".join(block.thinking for block in blocks if block.type == "thinking"),
        calls=tuple(
            Call(block.id, block.name, json.dumps(block.input, ensure_ascii=False))
            for block in blocks
            if block.type == "tool_use"
        ),
        usage=messages_usage(message.usage),
        stop=stop(message.stop_reason),
    )


def messages_usage(usage: MessagesUsage | anthropic.types.MessageDeltaUsage) -> ReplyUsage:
    assert usage.output_tokens_details is not None
    return ReplyUsage(
        usage.input_tokens or 0,
        usage.output_tokens,
        usage.cache_read_input_tokens or 0,
        usage.cache_creation_input_tokens or 0,
        usage.output_tokens_details.thinking_tokens,
    )


def stop(reason: str | None) -> Stop:
    words: dict[str | None, Stop] = {
        "stop": "stop",
        "end_turn": "stop",
        "tool_calls": "tool_calls",
        "tool_use": "tool_calls",
        "length": "length",
        "max_tokens": "length",
        "max_output_tokens": "length",
        "content_filter": "content_filter",
        "refusal": "content_filter",
    }
    return words[reason]


EARS: tuple[Ear, ...] = (
    chat_document,
    chat_stream,
    responses_document,
    responses_stream,
    messages_document,
    messages_helper_stream,
    messages_raw_stream,
)
PARALLEL = (call("weather", city="Zürich 🌦"), call("time", id="call_2", zone="Europe/Zurich", precise=True))
REPLIES = {
    "text": Reply("Grüezi, it is sunny 🌞 today."),
    "thinking": Reply("Sunny.", thinking="The user asks; I look outside. 🤔"),
    "calls": Reply(calls=PARALLEL),
    "everything": Reply("Let me look.", "I need two tools.", PARALLEL, ReplyUsage(7, 50, 1_000, 200, 30)),
    "length": Reply("It is su", stop="length"),
    "filtered": Reply("It", stop="content_filter"),
    "one piece": Reply("All at once.", chunk_chars=1_000),
    "single characters": Reply("å∂ƒ", calls=PARALLEL, chunk_chars=1),
}


def names(ears: Iterable[Ear]) -> list[str]:
    return [getattr(ear, "__name__", "ear") for ear in ears]


@pytest.mark.parametrize("ear", EARS, ids=names(EARS))
@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES.keys())
def test_each_sdk_hears_the_reply_that_was_scripted(server: ModelServer, reply: Reply, ear: Ear) -> None:
    server.say(reply)
    heard = ear(server)
    assert heard == Heard(reply.text, reply.thinking, reply.calls, reply.usage, reply.stop_reason)


@pytest.mark.parametrize("ear", EARS, ids=names(EARS))
def test_crlf_lines_without_spaces_and_with_huge_padding_sound_the_same_to_each_sdk(
    server: ModelServer, ear: Ear
) -> None:
    reply = Reply(
        "Hello.", calls=PARALLEL, faults=Faults(crlf=True, no_space_after_colon=True, huge_line_bytes=300_000)
    )
    server.say(reply)
    assert ear(server) == Heard(reply.text, "", reply.calls, reply.usage, "tool_calls")


def test_responses_stream_helper_accepts_the_order_and_identity_of_all_events(server: ModelServer) -> None:
    server.say(REPLIES["everything"])
    with open_ai(server) as client, client.responses.stream(model=MODEL, input="hello") as stream:
        final = stream.get_final_response()
    assert final.output_text == REPLIES["everything"].text
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]


def test_chat_stream_helper_accumulates_the_same_completion(server: ModelServer) -> None:
    server.say(REPLIES["everything"])
    with open_ai(server) as client, client.chat.completions.stream(model=MODEL, messages=QUESTION) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.content == REPLIES["everything"].text
    assert [part.function.arguments for part in message.tool_calls or ()] == [part.arguments for part in PARALLEL]


def test_sealed_thinking_reaches_the_client_under_each_vendors_name(server: ModelServer) -> None:
    reply = REPLIES["thinking"]
    server.say(reply, reply, reply)
    with open_ai(server) as client:
        reasoning = client.responses.create(model=MODEL, input="hello").output[0]
    with anthropic_client(server) as client:
        thinking = client.messages.create(model=MODEL, max_tokens=100, messages=QUESTION).content[0]
        with client.messages.stream(model=MODEL, max_tokens=100, messages=QUESTION) as stream:
            streamed = stream.get_final_message().content[0]
    assert reasoning.type == "reasoning"
    assert thinking.type == "thinking"
    assert streamed.type == "thinking"
    assert reasoning.encrypted_content == thinking.signature == streamed.signature == reply.signature


def test_response_that_ran_out_of_tokens_ends_in_an_incomplete_item(server: ModelServer) -> None:
    server.say(Reply("Let me", calls=PARALLEL, stop="length"))
    with open_ai(server) as client:
        output = client.responses.create(model=MODEL, input="hello").output
    assert [getattr(item, "status", None) for item in output] == ["completed", "completed", "incomplete"]


def test_chat_stream_has_no_usage_unless_it_was_asked_for(server: ModelServer) -> None:
    server.say("Hello.")
    with open_ai(server) as client:
        chunks = list(client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


def test_missing_usage_is_heard_as_none_by_open_ai(server: ModelServer) -> None:
    server.say(Reply("a", usage=None), Reply("b", usage=None))
    assert chat_document(server).usage is None
    assert responses_document(server).usage is None


@pytest.mark.parametrize(
    ("status", "open_ai_error", "anthropic_error"),
    [
        (400, openai.BadRequestError, anthropic.BadRequestError),
        (401, openai.AuthenticationError, anthropic.AuthenticationError),
        (404, openai.NotFoundError, anthropic.NotFoundError),
        (429, openai.RateLimitError, anthropic.RateLimitError),
        (500, openai.InternalServerError, anthropic.InternalServerError),
        (529, openai.InternalServerError, anthropic.InternalServerError),
    ],
)
def test_failures_are_worded_as_the_vendor_words_them(
    server: ModelServer,
    status: int,
    open_ai_error: type[openai.APIStatusError],
    anthropic_error: type[anthropic.APIStatusError],
) -> None:
    server.say(*[Failure(status, headers={"retry-after": "7"})] * 3)
    for ear in (chat_stream, responses_document):
        with pytest.raises(open_ai_error, match="scripted by ModelServer") as refused:
            ear(server)
        assert refused.value.response.headers["retry-after"] == "7"
        assert refused.value.type is not None
    with pytest.raises(anthropic_error, match="scripted by ModelServer") as refused:
        messages_document(server)
    assert refused.value.response.headers["retry-after"] == "7"
    assert refused.value.type is not None


def test_error_inside_a_stream_is_raised_or_delivered_by_each_sdk(server: ModelServer) -> None:
    error = {"type": "overloaded_error", "message": "too many people"}
    server.say(*[Reply("Half an ans", calls=PARALLEL, faults=Faults(error_in_stream=error))] * 3)
    with pytest.raises(openai.APIError, match="too many people"):
        chat_stream(server)
    with pytest.raises(anthropic.APIStatusError, match="too many people"):
        messages_raw_stream(server)
    with open_ai(server) as client:
        events = list(client.responses.create(model=MODEL, input="hello", stream=True))
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert not any(event.type.startswith("response.function_call") for event in events)


def test_both_sdks_list_the_models(server: ModelServer) -> None:
    with open_ai(server) as client:
        assert [model.id for model in client.models.list()] == [MODEL, "other-model"]
    with anthropic_client(server) as client:
        assert [model.id for model in client.models.list()] == [MODEL, "other-model"]
