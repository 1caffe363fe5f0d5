"""How long a conversation is believed to be, and what its summaries hand on."""

from collections.abc import Iterable

import pytest

from talaria.context import summary
from talaria.context.base import CompactionRequest
from talaria.context.compactor import BuiltinContextKeeper
from talaria.context.summary import fit, prune
from talaria.core.ids import CallId
from talaria.core.message_dicts import transcript_problems
from talaria.core.messages import Assistant, Image, Message, Text, ToolCall, ToolResult, Usage, User, user
from talaria.providers.message_history import CHARS_PER_TOKEN, History, size_tokens

GOAL = "Map every milestone between Ulm and Linz."


def answer(text: str = "So it is.", usage: Usage | None = None) -> Assistant:
    return Assistant((Text(text),), usage=usage)


def of_tokens(count: int) -> str:
    """As we estimate them."""
    return "x" * int(count * CHARS_PER_TOKEN)


class Summariser:
    room_tokens = 10_000

    async def summarise(self, question: str, max_tokens: int, seconds: float | None) -> str:
        return "New."


def counted_as_dense() -> History:
    history = History()
    history.append(user(of_tokens(10_000)))
    history.append(answer(usage=Usage(input=15_000)))
    return history


def test_new_text_is_believed_to_be_as_dense_as_what_was_counted() -> None:
    history = counted_as_dense()
    history.append(user(of_tokens(10_000)))
    assert history.tokens(0) == pytest.approx(30_000, rel=0.01)


def test_after_a_compaction_the_old_count_says_only_how_dense_the_text_is() -> None:
    history = counted_as_dense()
    history.append(user(of_tokens(1_000)))
    history.rebuild([*history][1:])
    assert history.tokens(0) == pytest.approx(1_500, rel=0.05)


def test_a_count_that_no_text_could_have_is_not_believed() -> None:
    history = History()
    history.append(user(of_tokens(1_000)))
    history.append(answer(usage=Usage(input=10**9)))
    assert history.tokens(0) < 10_000


@pytest.mark.parametrize(
    "told",
    [
        f"Goal\n{GOAL}",
        f"Goal: {GOAL}",
        f"**Goal:** {GOAL}\n\n**In progress**\nWalking.",
        f"## Latest request not yet fulfilled\n\nWalk on.\n\n## Goal\n\n{GOAL}\n\n## Blocked: no",
        f"1. Goal\n{GOAL}\n2. Completed actions (numbered, with tool and outcome)\n- walked",
    ],
)
def test_the_goal_is_found_however_its_heading_is_written(told: str) -> None:
    assert summary.goal_of([user("Another.")], told) == GOAL
    assert summary.with_goal(told, "Another.") == told


def test_a_summary_that_names_no_goal_is_told_it() -> None:
    goal = summary.goal_of([answer(), user(GOAL), user("Walk.")], "")
    assert summary.with_goal("Our goals were lofty.", goal) == f"Goal\n{GOAL}\n\nOur goals were lofty."


def test_what_the_host_writes_keeps_the_goal_and_a_models_words_and_the_newest_for_many_generations() -> None:
    told = f"Goal\n{GOAL}\n\nKey decisions\nOnly on foot."
    for generation in range(100):
        said: list[Message] = [user(f"Question {generation}-{number}: {of_tokens(50)}") for number in range(30)]
        told = summary.local(said, told)
        assert len(told) < summary.MAX_LOCAL_CHARS + 200
        assert (told.count(GOAL), told.count("Only on foot.")) == (1, 1)
        assert f"Question {generation}-29" in told
    assert "Question 97-" not in told


async def test_the_next_summary_takes_the_place_of_the_last_also_where_that_stands_near_the_end() -> None:
    carrier = User((summary.wrap("Old."), Text("And now?")))
    call = ToolCall(CallId("c1"), "look", "{}")
    output = ToolResult(CallId("c1"), "look", of_tokens(30_000))
    messages = [user(GOAL), answer(), carrier, Assistant((call,), "calls"), output]
    made = await BuiltinContextKeeper(Summariser()).compact(messages, CompactionRequest(31_000, 20_000))
    assert made is not None
    assert [summary.find_summary([message]) for message in made.messages if isinstance(message, User)] == [
        f"Goal\n{GOAL}\n\nNew."
    ]


DOT = Image("image/png", "aGk=")


def looks(*pictured: bool) -> list[Message]:
    """A round for each, with one result."""
    rounds = [(ToolCall(CallId(f"c{place}"), "look", "{}"), is_shown) for place, is_shown in enumerate(pictured)]
    return [
        message
        for call, is_shown in rounds
        for message in (
            Assistant((call,), "calls"),
            ToolResult(call.id, "look", of_tokens(50), images=(DOT,) if is_shown else ()),
        )
    ]


def images_in(messages: Iterable[Message]) -> list[int]:
    results = (message for message in messages if isinstance(message, ToolResult))
    return [len(result.images) for result in results]


def test_old_images_go_before_any_text_is_clipped_and_the_newest_goes_last() -> None:
    asked = User((Text("Look."), DOT))
    long = user(of_tokens(9_000), author="steering")
    messages = [asked, *looks(True, True, True, False), long]
    image = size_tokens(messages[2]) - 58
    total = sum(map(size_tokens, messages))
    assert fit(messages, total) == tuple(messages)
    without_old = fit(messages, total - 2 * image + 20)
    assert images_in(without_old) == [0, 0, 1, 0]
    assert without_old[-1] is long
    clipped = fit(messages, 6_000)
    assert images_in(clipped) == [0, 0, 1, 0]
    assert len(clipped[-1].text) < len(long.text)
    assert images_in(fit(messages, 100)) == [0, 0, 0, 0]
    assert fit(messages, 100)[0] is asked


def test_an_image_in_the_middle_is_left_out_with_a_word_in_its_place() -> None:
    long = ToolResult(CallId("c1"), "look", of_tokens(500), images=(DOT,))
    short = ToolResult(CallId("c2"), "look", "a dot", images=(DOT,))
    made = prune([long, short])
    assert images_in(made) == [0, 0]
    assert made[0].text.endswith("x]\n[An image was here.]")
    assert made[1].text == "a dot\n[An image was here.]"


async def test_leaving_out_old_images_may_be_all_that_is_needed() -> None:
    messages: list[Message] = [user(GOAL), answer(), user("Look."), *looks(*[True] * 40), answer(), user("And?")]
    tokens = sum(map(size_tokens, messages))
    made = await BuiltinContextKeeper(Summariser()).compact(messages, CompactionRequest(tokens, 20_000))
    assert made is not None
    assert made.summary_by == "nobody"
    shown = images_in(made.messages)
    assert sum(shown) < 5
    assert shown == sorted(shown)
    assert not transcript_problems(made.messages, is_idle=False)


def test_what_the_person_said_last_is_never_clipped() -> None:
    last = user(of_tokens(9_000))
    made = fit([user(of_tokens(9_000)), answer(of_tokens(9_000)), last, answer(of_tokens(9_000))], 1_000)
    assert made[2] is last
    assert [message for message in made if message is not last and len(message.text) > 2_000] == []
