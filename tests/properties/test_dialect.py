"""Messages as others read them, and back: what they leave alone is what it was; what they cut is mended or refused."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from talaria.core.dialect import Illegal, as_dicts, from_dicts, transcript_problems
from talaria.core.ids import CallId
from talaria.core.messages import Assistant, Context, Image, Message, Text, Thinking, ToolCall, ToolResult, User, user

texts = st.text("abc xyz\n", min_size=1, max_size=40)
images = st.sampled_from([(), (), (Image("image/png", "aGk="),), (Image("image/png", "aGk="),) * 2])


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    messages: list[Message] = []
    for turn in range(draw(st.integers(1, 6))):
        parts = draw(
            st.lists(
                st.builds(Text, texts) | st.builds(Context, texts) | st.just(Image("image/png", "aGk=")), max_size=2
            )
        )
        messages.append(User((Text(f"question {turn}"), *parts)))
        for round_ in range(draw(st.integers(0, 3))):
            calls = [ToolCall(CallId(f"c{turn}-{round_}-{n}"), "look", "{}") for n in range(draw(st.integers(1, 3)))]
            thought = (Thinking("hm", '{"sealed": 1}'),) if draw(st.booleans()) else ()
            messages.append(Assistant((*thought, Text(draw(texts)), *calls), "calls", origin="wire url model"))
            messages.extend(ToolResult(call.id, "look", draw(texts), images=draw(images)) for call in calls)
            if draw(st.booleans()):
                messages.append(user("mind the gap", author="steering"))
        messages.append(Assistant((Text(f"answer {turn}"),), origin="wire url model"))
    return messages[: draw(st.sampled_from([len(messages), len(messages) - 1]))]


@given(conversations())
def test_what_comes_back_as_it_went_out_is_what_it_was(messages: list[Message]) -> None:
    back = from_dicts(as_dicts(messages), messages)
    assert [id(message) for message in back] == [id(message) for message in messages]


@given(conversations())
def test_whoever_reads_them_is_told_where_images_are(messages: list[Message]) -> None:
    for message, shown in zip(messages, as_dicts(messages), strict=True):
        held = message.images if isinstance(message, ToolResult) else ()
        if isinstance(message, User):
            held = [part for part in message.parts if isinstance(part, Image)]
        assert shown["content"].count("[An image is here.]") == len(held)


@given(conversations(), st.data())
def test_a_head_a_note_and_a_tail_are_legal_wherever_they_are_cut(messages: list[Message], data: st.DataObject) -> None:
    """As engines do it that count messages."""
    dicts = as_dicts(messages)
    head = data.draw(st.integers(0, len(dicts) - 1))
    tail = data.draw(st.integers(head, len(dicts) - 1))
    role = data.draw(st.sampled_from(["user", "assistant", "system"]))
    given = [*dicts[:head], {"role": role, "content": "[so far]"}, *dicts[tail:]]
    is_idle = isinstance(messages[-1], Assistant)
    back = from_dicts(given, messages)
    assert transcript_problems(back, is_idle=is_idle) == []
    assert "[so far]" in "".join(_all_text(back))
    kept = [message for message in messages[tail:] if isinstance(message, Assistant) and not message.calls]
    assert all(message in back for message in kept)


@given(conversations(), st.data())
def test_any_choice_of_messages_is_legal_if_an_answer_is_the_last(messages: list[Message], data: st.DataObject) -> None:
    """As engines do it that throw away what they like."""
    kept = data.draw(st.lists(st.sampled_from(range(len(messages))), unique=True).map(sorted))
    is_idle = isinstance(messages[-1], Assistant)
    kept = [*kept, len(messages) - 1] if is_idle and len(messages) - 1 not in kept else kept
    dicts = [as_dicts(messages)[place] for place in kept]
    assert transcript_problems(from_dicts(dicts, messages), is_idle=is_idle) == []


CALLS: list[dict[str, Any]] = [{"id": "x", "function": {"name": "n", "arguments": {}}}, {}]
broken: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "tool", "system", "narrator", None, 3]),
        "content": st.none() | texts | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts})),
        "tool_calls": st.none() | st.lists(st.sampled_from(CALLS)),
        "tool_call_id": st.none() | st.sampled_from(["x", "c0-0-0"]),
    },
)


@given(conversations(), st.data())
def test_whatever_comes_back_is_legal_or_refused(messages: list[Message], data: st.DataObject) -> None:
    dicts: list[Any] = [*as_dicts(messages), *data.draw(st.lists(broken | st.integers() | st.none(), max_size=4))]
    given = data.draw(st.permutations(dicts))
    given = given[: data.draw(st.integers(0, len(given)))]
    try:
        back = from_dicts(given, messages)
    except Illegal:
        return
    assert transcript_problems(back, is_idle=isinstance(messages[-1], Assistant)) == []


def _all_text(messages: Sequence[Message]) -> Sequence[str]:
    def text(message: Message) -> str:
        if isinstance(message, User):
            return "".join(part.text for part in message.parts if not isinstance(part, Image))
        return message.text

    return [text(message) for message in messages]
