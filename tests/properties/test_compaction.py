"""Whatever was said, what the compactor makes of it is legal, keeps what must be kept, and is shorter or nothing."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.rules import chat_problems, messages_problems, responses_problems, transcript_problems

from talaria.context.base import CompactedMessages, CompactionRequest
from talaria.context.compactor import BuiltinContextKeeper
from talaria.context.summary import find_summary
from talaria.core.errors import Overloaded
from talaria.core.ids import CallId, SessionId
from talaria.core.messages import Assistant, Image, Message, Text, ToolCall, ToolResult, User, user
from talaria.providers.base import Endpoint, ModelRequest, WireName
from talaria.providers.http_provider import wire_for
from talaria.providers.message_history import History, size_tokens

texts = st.text("abc xyz\n", max_size=900)
images = st.sampled_from([(), (), (Image("image/png", "aGk="),)])


class Summariser:
    def __init__(self, *, fails: bool = False, room_tokens: int = 4_000) -> None:
        self.room_tokens = room_tokens
        self.asked: list[str] = []
        self._fails = fails

    async def summarise(self, question: str, max_tokens: int, seconds: float | None) -> str:
        self.asked.append(question)
        if self._fails:
            raise Overloaded("hot")
        return f"Goal: go on ({len(self.asked)})"


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    messages: list[Message] = []
    for turn in range(draw(st.integers(1, 8))):
        messages.append(user(f"question {turn} {draw(texts)}"))
        for round_ in range(draw(st.integers(0, 4))):
            calls = [
                ToolCall(CallId(f"c{turn}-{round_}-{n}"), "look", f'{{"at": "{"x" * draw(st.integers(0, 700))}"}}')
                for n in range(draw(st.integers(1, 3)))
            ]
            messages.append(Assistant((Text(draw(texts)), *calls), "calls"))
            messages.extend(ToolResult(call.id, "look", draw(texts) or "-", images=draw(images)) for call in calls)
            if draw(st.booleans()):
                messages.append(user("mind the gap", author="steering"))
        messages.append(Assistant((Text(f"answer {turn} {draw(texts)}"),)))
    return messages[: draw(st.sampled_from([len(messages), len(messages) - 1]))]


def total(messages: Sequence[Message]) -> int:
    return sum(map(size_tokens, messages))


def shortened(messages: Sequence[Message], wish: CompactionRequest, summariser: Summariser) -> CompactedMessages | None:
    return asyncio.run(BuiltinContextKeeper(summariser).compact(messages, wish))


@given(
    messages=conversations(),
    threshold=st.integers(200, 4_000),
    fails=st.booleans(),
    keep_last=st.none() | st.integers(0, 3),
    focus=st.sampled_from(["", "the lake"]),
)
def test_whatever_was_said(
    messages: list[Message], threshold: int, fails: bool, keep_last: int | None, focus: str
) -> None:
    is_idle = not transcript_problems(messages)
    wish = CompactionRequest(total(messages), threshold, focus, keep_last)
    made = shortened(messages, wish, Summariser(fails=fails))
    if made is None:
        return
    assert not transcript_problems(made.messages, is_idle=is_idle)
    asked = [message for message in messages if isinstance(message, User) and message.author == "person"]
    kept = [message.text for message in made.messages if isinstance(message, User)]
    assert asked[-1].text in kept
    if not is_idle or messages[-1] not in made.messages:
        assert isinstance(made.messages[-1], type(messages[-1]))
    if made.summary_by != "nobody":
        assert find_summary(made.messages)
        assert (made.summary_by == "host") == fails


@given(messages=conversations(), threshold=st.integers(200, 1_000))
def test_a_summary_is_kept_up_to_date_and_never_doubled(messages: list[Message], threshold: int) -> None:
    summariser = Summariser()
    first = shortened(messages, CompactionRequest(10**6, threshold, focus="x"), summariser)
    if first is None or not find_summary(first.messages):  # all of it stands at the end: it was clipped
        return
    later = [*first.messages, user("and now?"), Assistant((Text("this"),)), user("more"), Assistant((Text("ok"),))]
    if transcript_problems(later):
        return
    second = shortened(later, CompactionRequest(10**6, threshold, focus="x", keep_last=1), summariser)
    assert second is not None
    carriers = [one for one in second.messages if isinstance(one, User) and find_summary([one])]
    assert len(carriers) == 1
    assert "<earlier-summary>\nGoal: go on" in summariser.asked[-1]


@given(conversations(), st.integers(200, 4_000), st.booleans())
def test_every_wire_would_take_what_is_left(messages: list[Message], threshold: int, fails: bool) -> None:
    made = shortened(messages, CompactionRequest(10**6, threshold), Summariser(fails=fails))
    if made is None:
        return
    left = [*made.messages, *([user("and now?")] if isinstance(made.messages[-1], Assistant) else [])]
    for name, problems in JUDGES.items():
        assert problems(sent(left, name)) == []


JUDGES: dict[WireName, Callable[[dict[str, Any]], list[str]]] = {
    "openai_chat": chat_problems,
    "openai_responses": responses_problems,
    "anthropic_messages": messages_problems,
}


def sent(messages: Sequence[Message], name: WireName) -> dict[str, Any]:
    """What goes over the wire."""
    endpoint, wire = Endpoint(provider="p", model="m", base_url="http://x", wire=name), wire_for(name)
    history = History(messages)
    request = ModelRequest(system="be brief", tools=(), history=history, session=SessionId("s"))
    encoded = history.encode(name, lambda message: wire.encode(message, endpoint.origin))
    return json.loads(wire.body(request, endpoint, encoded))
