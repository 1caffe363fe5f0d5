"""Our requests match what the official SDKs send for the same conversation, in two rounds with parallel calls.

The SDK's second round replays the SDK's own answer objects, as its documentation teaches; ours replays our message. The
arguments of each SDK call are typed, so pyright checks that the vendor has such fields.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from anthropic import Anthropic, Omit, omit
from anthropic.types import (
    CacheControlEphemeralParam,
    ImageBlockParam,
    MessageParam,
    TextBlockParam,
    ToolParam,
    ToolResultBlockParam,
)
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolUnionParam
from openai.types.responses import (
    FunctionToolParam,
    ResponseFunctionCallOutputItemListParam,
    ResponseInputItemParam,
)
from openai.types.shared_params import Reasoning

from talaria.core.clock import SystemClock
from talaria.core.ids import CallId, SessionId
from talaria.core.messages import Assistant, Context, Image, Text, ToolResult, ToolSpec, User, user
from talaria.core.secret import Secret
from talaria.net.client import HttpClient
from talaria.providers.base import Caching, Endpoint, ModelRequest, WireName
from talaria.providers.http_provider import HttpProvider
from talaria.providers.message_history import History
from talaria.providers.wires import wire_for
from talaria.testing.servers.model_server import ModelServer, RecordedRequest
from talaria.testing.servers.scripted_replies import Reply, call

KEY = "sk-test"
SYSTEM = "You are brief."
PIXEL, GIF = "iVBORw0KGgo=", "R0lGODlh"
SCHEMA: dict[str, object] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = ToolSpec("weather", "Tells the weather.", msgspec.Raw(msgspec.json.encode(SCHEMA)))
CALLS = (call("weather", city="Zürich"), call("weather", id="call_2", city="Rom"))
ANSWER = Reply("Let me look. 🌦", "Two calls.", CALLS)
TEXT_BLOCKS: list[TextBlockParam] = [{"type": "text", "text": "What is this?"}, {"type": "text", "text": "It is May."}]
EPHEMERAL: CacheControlEphemeralParam = {"type": "ephemeral"}

PICTURES = (Image("image/png", PIXEL), Image("image/gif", GIF))
CHAT_IMAGES: ChatCompletionMessageParam = {
    "role": "user",
    "content": [
        {"type": "text", "text": "[From the result of weather (call_1), not from the person:]"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        {"type": "image_url", "image_url": {"url": f"data:image/gif;base64,{GIF}"}},
    ],
}
RESPONSES_OUTPUT: ResponseFunctionCallOutputItemListParam = [
    {"type": "input_text", "text": "sunny"},
    {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{PIXEL}"},
    {"type": "input_image", "detail": "auto", "image_url": f"data:image/gif;base64,{GIF}"},
]
MESSAGES_CONTENT: list[TextBlockParam | ImageBlockParam] = [
    {"type": "text", "text": "sunny"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": GIF}},
]

Sdk = Callable[[ModelServer], None]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def ask_chat(server: ModelServer, *, shows: bool = False) -> None:
    tools: list[ChatCompletionToolUnionParam] = [
        {"type": "function", "function": {"name": "weather", "description": "Tells the weather.", "parameters": SCHEMA}}
    ]
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": SYSTEM},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "text", "text": "It is May."},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
            ],
        },
    ]
    with OpenAI(base_url=server.base_url, api_key=KEY, max_retries=0) as client:

        def create() -> Any:
            return client.chat.completions.create(
                model="gpt-5",
                messages=messages,
                tools=tools,
                max_completion_tokens=20_000,
                reasoning_effort="high",
                stream=False,
            )

        messages.append(create().choices[0].message.model_dump(exclude_none=True))
        messages.append({"role": "tool", "tool_call_id": "call_1", "content": "sunny"})
        messages.append({"role": "tool", "tool_call_id": "call_2", "content": "no such city"})
        if shows:
            messages.append(CHAT_IMAGES)
        messages.append({"role": "user", "content": "In Celsius, please."})
        create()


def ask_responses(server: ModelServer, *, shows: bool = False) -> None:
    tool: FunctionToolParam = {
        "type": "function",
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": SCHEMA,
        "strict": False,
    }
    items: list[ResponseInputItemParam] = [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What is this?"},
                {"type": "input_text", "text": "It is May."},
                {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{PIXEL}"},
            ],
        }
    ]
    reasoning: Reasoning = {"effort": "high", "summary": "auto"}
    with OpenAI(base_url=server.base_url, api_key=KEY, max_retries=0) as client:

        def create() -> Any:
            return client.responses.create(
                model="gpt-5",
                instructions=SYSTEM,
                input=items,
                tools=[tool],
                store=False,
                include=["reasoning.encrypted_content"],
                prompt_cache_key="s1",
                max_output_tokens=20_000,
                reasoning=reasoning,
                stream=False,
            )

        items.extend(create().output)
        sunny = RESPONSES_OUTPUT if shows else "sunny"
        items.append({"type": "function_call_output", "call_id": "call_1", "output": sunny})
        items.append({"type": "function_call_output", "call_id": "call_2", "output": "no such city"})
        items.append({"role": "user", "content": "In Celsius, please."})
        create()


def ask_messages(server: ModelServer, *, shows: bool = False) -> None:
    ask_anthropic(server, SYSTEM, shows=shows)


def ask_messages_cached(server: ModelServer) -> None:
    ask_anthropic(server, SYSTEM, cache_control=EPHEMERAL)


def ask_messages_marked(server: ModelServer) -> None:
    ask_anthropic(server, [{"type": "text", "text": SYSTEM, "cache_control": EPHEMERAL}], mark=EPHEMERAL)


def ask_anthropic(
    server: ModelServer,
    system: str | list[TextBlockParam],
    *,
    cache_control: CacheControlEphemeralParam | Omit = omit,
    mark: CacheControlEphemeralParam | None = None,
    shows: bool = False,
) -> None:
    tool: ToolParam = {"name": "weather", "description": "Tells the weather.", "input_schema": SCHEMA}
    pixel: ImageBlockParam = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
    }
    please: TextBlockParam = {"type": "text", "text": "In Celsius, please."}
    if mark is not None:
        pixel["cache_control"] = please["cache_control"] = mark
    results: list[ToolResultBlockParam | TextBlockParam] = [
        {"type": "tool_result", "tool_use_id": "call_1", "content": MESSAGES_CONTENT if shows else "sunny"},
        {"type": "tool_result", "tool_use_id": "call_2", "content": "no such city", "is_error": True},
        please,
    ]
    messages: list[MessageParam] = [{"role": "user", "content": [*TEXT_BLOCKS, pixel]}]
    with Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as client:

        def create() -> Any:
            return client.messages.create(
                model="claude-opus-5",
                system=system,
                messages=messages,
                tools=[tool],
                max_tokens=20_000,
                thinking={"type": "adaptive", "display": "summarized"},
                output_config={"effort": "high"},
                cache_control=cache_control,
                stream=False,
            )

        messages.append({"role": "assistant", "content": create().content})
        messages.append({"role": "user", "content": results})
        create()


async def ask_ours(
    server: ModelServer, wire: WireName, provider: str, model: str, caching: Caching = "off", *, shows: bool = False
) -> None:
    key = Secret(KEY)
    endpoint = Endpoint(provider, model, server.base_url, wire, keys=(key,), max_output=20_000, caching=caching)
    history = History([User((Text("What is this?"), Context("It is May."), Image("image/png", PIXEL)))])
    request = ModelRequest(SYSTEM, (WEATHER,), history, SessionId("s1"), effort="high", is_streaming=False, key=key)
    clock = SystemClock()
    async with HttpClient(clock) as client:
        ours = HttpProvider(endpoint, wire_for(wire), client, clock)
        answer = [item async for item in ours.stream(request)][-1]
        assert isinstance(answer, Assistant)
        for message in (
            answer,
            ToolResult(CallId("call_1"), "weather", "sunny", images=PICTURES if shows else ()),
            ToolResult(CallId("call_2"), "weather", "no such city", is_error=True),
            user("In Celsius, please.", author="steering"),
        ):
            history.append(message)
        assert [item async for item in ours.stream(request)]


def comparable(request: RecordedRequest) -> dict[str, Any]:
    """The body, where on the Responses wire two things differ on purpose.

    Items are replayed without the vendor's ids and statuses, which name what `store: false` did not keep; and an
    assistant's text is sent in the short form of the same message.
    """
    body = request.json
    if request.wire == "responses":
        body["input"] = [short(item) for item in body["input"]]
    return body


def short(item: dict[str, Any]) -> dict[str, Any]:
    if item.get("type") == "message":
        return {"role": item["role"], "content": item["content"][0]["text"]}
    return {name: value for name, value in item.items() if name not in ("id", "status")}


def credential(request: RecordedRequest) -> str:
    """The key, where Anthropic's differs on purpose.

    Since 2.0 their SDK sends it as a bearer and asks for version 2026-10-21; ours sends it as `x-api-key` and asks for
    2023-06-01, which the vendor takes as well, and so do the other vendors and proxies on this wire.
    """
    headers = request.headers
    return headers.get("authorization", "").removeprefix("Bearer ") or headers["x-api-key"]


@pytest.mark.parametrize(
    ("ask_sdk", "wire", "provider", "model", "caching"),
    [
        (ask_chat, "openai_chat", "openai", "gpt-5", "off"),
        (ask_responses, "openai_responses", "openai", "gpt-5", "off"),
        (ask_messages, "anthropic_messages", "anthropic", "claude-opus-5", "off"),
        (ask_messages_cached, "anthropic_messages", "anthropic", "claude-opus-5", "automatic"),
        (ask_messages_marked, "anthropic_messages", "anthropic", "claude-opus-5", "markers"),
    ],
)
async def test_our_requests_match_what_the_official_sdk_sends(
    server: ModelServer, ask_sdk: Sdk, wire: WireName, provider: str, model: str, caching: Caching
) -> None:
    server.say(ANSWER, "Sunny.", ANSWER, "Sunny.")
    ask_sdk(server)
    await ask_ours(server, wire, provider, model, caching)
    theirs, ours = server.requests[:2], server.requests[2:]
    assert [request.path for request in ours] == [request.path for request in theirs]
    assert [credential(request) for request in ours] == [credential(request) for request in theirs] == [KEY, KEY]
    assert [comparable(request) for request in ours] == [comparable(request) for request in theirs]


@pytest.mark.parametrize(
    ("ask_sdk", "wire", "provider", "model"),
    [
        (ask_chat, "openai_chat", "openai", "gpt-5"),
        (ask_responses, "openai_responses", "openai", "gpt-5"),
        (ask_messages, "anthropic_messages", "anthropic", "claude-opus-5"),
    ],
)
async def test_images_in_results_match_what_the_official_sdk_sends(
    server: ModelServer, ask_sdk: Callable[..., None], wire: WireName, provider: str, model: str
) -> None:
    server.say(ANSWER, "Sunny.", ANSWER, "Sunny.")
    ask_sdk(server, shows=True)
    await ask_ours(server, wire, provider, model, shows=True)
    theirs, ours = server.requests[:2], server.requests[2:]
    assert [comparable(request) for request in ours] == [comparable(request) for request in theirs]
    assert GIF.encode() in ours[1].body


async def test_anthropic_is_told_the_version_that_every_vendor_of_its_wire_knows(server: ModelServer) -> None:
    server.say(ANSWER, "Sunny.")
    await ask_ours(server, "anthropic_messages", "anthropic", "claude-opus-5")
    sent = server.requests[0].headers
    assert (sent["x-api-key"], sent["anthropic-version"]) == (KEY, "2023-06-01")
    assert "authorization" not in sent
