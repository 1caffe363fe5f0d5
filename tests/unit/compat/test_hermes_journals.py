"""Rows of Hermes' state.db become journals that a live session can go on with."""

import json
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules import transcript_problems

from talaria.compat.hermes_home.conversation_import import make_journal
from talaria.compat.hermes_home.exchanges import NO_ANSWER, NO_BEGINNING, NO_RESULT, NO_WORDS
from talaria.compat.hermes_home.hermes_database import MessageRow
from talaria.core.entries import Compacted, Entry, MessageAdded, Noted, Recorded, TurnEnded, TurnStarted
from talaria.core.ids import CallId
from talaria.core.messages import Assistant, Context, Image, Message, Text, Thinking, ToolCall, ToolResult, User
from talaria.runtime.transcript import Transcript

PNG = "iVBORw0KGgo="
SUMMARY = "[CONTEXT COMPACTION — REFERENCE ONLY] They spoke of trees."


def told(given: Sequence[MessageRow], source: str = "cli") -> list[Recorded]:
    """The journal of these rows, a second apart."""
    dated = [replace(row, id=number, at=row.at or 100.0 + number) for number, row in enumerate(given, 1)]
    return make_journal(dated, source)


def person(text: str | None, *, is_observed: bool = False, is_marked_summary: bool = False) -> MessageRow:
    return MessageRow(0, "user", text, is_observed=is_observed, is_marked_summary=is_marked_summary)


def answer(text: str | None = None, *calls: tuple[str, str, str], finish: str = "stop") -> MessageRow:
    return MessageRow(0, "assistant", text, calls=asked(*calls), finish=finish)


def asked(*calls: tuple[str, str, str]) -> str:
    """Id, name and arguments of each, as Hermes writes them."""
    return json.dumps(
        [{"id": id, "type": "function", "function": {"name": name, "arguments": text}} for id, name, text in calls]
    )


def result(id: str, text: str, tool: str = "terminal", effect: str = "") -> MessageRow:
    return MessageRow(0, "tool", text, call_id=id, tool=tool, effect=effect)


def messages(recorded: Sequence[Recorded]) -> list[Message]:
    return [one.entry.message for one in recorded if isinstance(one.entry, MessageAdded)]


def entries(recorded: Sequence[Recorded]) -> list[Entry]:
    return [one.entry for one in recorded]


def read_by_the_model(recorded: Sequence[Recorded]) -> list[Message]:
    return list(Transcript(recorded).history)


def test_exchange_is_a_turn_as_a_live_session_writes_it() -> None:
    found = told(
        [
            person("list it"),
            answer("I look.", ("call_a", "terminal", '{"command": "ls"}')),
            result("call_a", "a.txt"),
            answer("There is a.txt."),
        ]
    )

    started, *said, ended = entries(found)
    assert isinstance(started, TurnStarted)
    assert isinstance(ended, TurnEnded)
    assert (started.origin, ended.turn, ended.outcome) == ("terminal", started.turn, "completed")
    assert said == [
        MessageAdded(User((Text("list it"),))),
        MessageAdded(
            Assistant((Text("I look."), ToolCall(CallId("call_a"), "terminal", '{"command": "ls"}')), "calls")
        ),
        MessageAdded(ToolResult(CallId("call_a"), "terminal", "a.txt")),
        MessageAdded(Assistant((Text("There is a.txt."),), "end")),
    ]
    assert [one.seq for one in found] == [1, 2, 3, 4, 5, 6]
    assert [one.at for one in found] == [101.0, 101.0, 102.0, 103.0, 104.0, 104.0]


@pytest.mark.parametrize(
    ("source", "origin"),
    [
        ("cli", "terminal"),
        ("tui", "terminal"),
        ("telegram", "platform"),
        ("cron", "schedule"),
        ("api_server", "library"),
    ],
)
def test_origin_follows_the_source(source: str, origin: str) -> None:
    started = told([person("hi"), answer("hello")], source)[0].entry
    assert isinstance(started, TurnStarted)
    assert started.origin == origin


def test_turns_have_names_of_their_own() -> None:
    found = told([person("a"), answer("b"), person("c"), answer("d")])
    starts = [one.entry.turn for one in found if isinstance(one.entry, TurnStarted)]
    assert len(set(starts)) == 2


def test_nothing_said_is_no_journal() -> None:
    assert told([]) == []
    assert told([MessageRow(0, "system", "You are Hermes."), MessageRow(0, "session_meta", "{}")]) == []


def test_message_without_an_answer_is_an_interrupted_turn() -> None:
    found = told([person("first"), person("second"), answer("both")])
    assert messages(found) == [
        User((Text("first"),)),
        Assistant((Text(NO_ANSWER),), "interrupted"),
        User((Text("second"),)),
        Assistant((Text("both"),)),
    ]
    assert [one.entry.outcome for one in found if isinstance(one.entry, TurnEnded)] == ["interrupted", "completed"]


def test_call_without_a_result_is_told_to_be_of_unknown_effect() -> None:
    found = messages(told([person("go"), answer(None, ("a", "terminal", "{}"), ("b", "web", "{}")), result("b", "ok")]))
    assert found[2:] == [
        ToolResult(CallId("a"), "terminal", NO_RESULT, is_error=True, disposition="unknown"),
        ToolResult(CallId("b"), "web", "ok"),
        Assistant((Text(NO_ANSWER),), "interrupted"),
    ]


def test_results_stand_in_the_order_of_the_calls() -> None:
    given = [person("go"), answer("", ("a", "x", "{}"), ("b", "x", "{}")), result("b", "two"), result("a", "one")]
    found = messages(told([*given, answer("done")]))
    assert [message.text for message in found if isinstance(message, ToolResult)] == ["one", "two"]


def test_result_without_its_call_is_kept_as_a_note() -> None:
    found = told([person("go"), result("gone", "precious", "web"), answer("done"), result("late", "more", "web")])
    assert [type(message) for message in messages(found)] == [User, Assistant]
    notes = [one.entry.text for one in found if isinstance(one.entry, Noted)]
    assert notes == [
        "A result whose call was not kept (web): precious",
        "A result whose call was not kept (web): more",
    ]


def test_result_beside_those_that_were_asked_for_is_kept_as_a_note() -> None:
    given = [person("go"), answer("", ("a", "x", "{}")), result("a", "one"), result("b", "two", "y"), answer("done")]
    assert [one.entry.text for one in told(given) if isinstance(one.entry, Noted)] == [
        "A result whose call was not kept (y): two"
    ]


def test_result_without_an_id_belongs_to_the_next_open_call_of_its_tool() -> None:
    given = [
        person("go"),
        answer("", ("", "x", "{}"), ("", "y", "{}")),
        result("", "of y", "y"),
        result("", "of x", "x"),
    ]
    found = messages(told([*given, answer("done")]))
    assert [(one.name, one.text) for one in found if isinstance(one, ToolResult)] == [("x", "of x"), ("y", "of y")]


def test_ids_that_a_model_uses_again_are_told_apart() -> None:
    one_round = [person("go"), answer("", ("call_0", "x", "{}")), result("call_0", "r"), answer("done")]
    found = told([*one_round, *one_round, *one_round])
    calls = [call.id for message in messages(found) if isinstance(message, Assistant) for call in message.calls]
    assert calls == ["call_0", "call_0_2", "call_0_3"]
    assert transcript_problems(messages(found)) == []


def test_effect_that_hermes_knows_is_kept() -> None:
    given = [person("go"), answer("", ("a", "x", "{}"), ("b", "x", "{}")), result("a", "?", effect="unknown")]
    found = messages(told([*given, result("b", "no", effect="none"), answer("done")]))
    results = [message for message in found if isinstance(message, ToolResult)]
    assert [(one.disposition, one.is_error) for one in results] == [("unknown", True), ("none", True)]


def test_answers_in_a_row_are_one() -> None:
    found = messages(told([person("go"), answer("One."), answer("Two."), answer("", ("a", "x", "{}"))]))
    assert isinstance(found[1], Assistant)
    assert (found[1].text, len(found[1].calls)) == ("One.\n\nTwo.", 1)


def test_conversation_that_begins_with_an_answer_gets_a_beginning() -> None:
    found = messages(told([answer("hello")]))
    assert found == [User((Context(NO_BEGINNING),), "host"), Assistant((Text("hello"),))]


def test_empty_message_says_so() -> None:
    found = messages(told([person(None), answer("hm?"), person("  "), answer("hm?")]))
    assert [message.text for message in found if isinstance(message, User)] == [NO_WORDS, NO_WORDS]


def test_answer_that_was_cut_off_is_known_as_such() -> None:
    found = messages(told([person("go"), answer("half a", finish="length")]))
    assert isinstance(found[1], Assistant)
    assert found[1].stop == "length"


def test_reasoning_is_kept_as_thinking() -> None:
    thoughtful = MessageRow(0, "assistant", "42", reasoning="six times seven")
    assert messages(told([person("?"), thoughtful]))[1] == Assistant((Thinking("six times seven"), Text("42")))


def test_what_hermes_said_to_itself_is_left_out() -> None:
    harness = person("Review the conversation above and update the skill library. Then …")
    found = messages(told([person("hi"), answer("hello"), harness, answer("saved"), person("more"), answer("yes")]))
    assert [message.text for message in found if not isinstance(message, ToolResult)] == ["hi", "hello", "more", "yes"]


def test_observed_messages_stand_before_the_one_that_was_meant() -> None:
    found = messages(told([person("Ann: tea?", is_observed=True), person("Bob: make some"), answer("ok")]))
    assert found[0] == User((Text("Ann: tea?"), Text("Bob: make some")))


def test_time_never_goes_back() -> None:
    given = [
        MessageRow(0, "user", "a", at=500.0),
        MessageRow(0, "assistant", "b", at=400.0),
        MessageRow(0, "user", "c", at=450.0),
        MessageRow(0, "assistant", "d", at=600.0),
    ]
    assert [one.at for one in make_journal(given, "cli")] == [500.0] * 6 + [600.0] * 2


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("\0json:" + json.dumps([{"type": "text", "text": "look"}]), (Text("look"),)),
        ("\1json:" + json.dumps(["a", {"type": "input_text", "text": "b"}]), (Text("a"), Text("b"))),
        (
            "\0json:" + json.dumps([{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}]),
            (Image("image/png", PNG),),
        ),
        (
            "\0json:"
            + json.dumps([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}]),
            (Image("image/png", PNG),),
        ),
        (
            "\0json:" + json.dumps([{"type": "image_url", "image_url": {"url": "data:image/png;base64,%%"}}]),
            (Text("[image_url]"),),
        ),
        (
            "\0json:" + json.dumps([{"type": "image_url", "image_url": "https://example.org/a.png"}]),
            (Text("[image: https://example.org/a.png]"),),
        ),
        ("\0json:" + json.dumps([{"type": "input_audio", "input_audio": {}}]), (Text("[input_audio]"),)),
        ("\0json:[broken", (Text("[broken"),)),
        ("nul \0 and \ud800 half", (Text("nul  and \ufffd half"),)),
        ('[{"type": "text", "text": "typed by hand"}]', (Text('[{"type": "text", "text": "typed by hand"}]'),)),
    ],
)
def test_content_in_every_form_that_hermes_has_kept(content: str, parts: tuple[Text | Image, ...]) -> None:
    assert messages(told([person(content), answer("ok")]))[0] == User(parts)


@pytest.mark.parametrize(
    ("written", "calls"),
    [
        ('[{"name": "x", "arguments": {"a": 1}}]', [("call_1", "x", '{"a": 1}')]),
        ('[{"call_id": "c", "function": {"name": "x"}}]', [("c", "x", "{}")]),
        (json.dumps(asked(("c", "x", "{}"))), [("c", "x", "{}")]),
        ('{"id": "c", "function": {"name": "x", "arguments": "not json"}}', [("c", "x", "not json")]),
        ('[{"function": {}}]', [("call_1", "unknown", "{}")]),
        ("[broken", []),
        ('["text", 3, null]', []),
        ("", []),
    ],
)
def test_calls_in_every_form_that_hermes_has_kept(written: str, calls: list[tuple[str, str, str]]) -> None:
    found = messages(told([person("go"), MessageRow(0, "assistant", "x", calls=written)]))
    answered = found[1]
    assert isinstance(answered, Assistant)
    assert [(call.id, call.name, call.arguments) for call in answered.calls] == calls


def test_summary_of_another_session_is_context_of_the_first_message() -> None:
    found = messages(told([person(SUMMARY), person("go on"), answer("with trees")]))
    assert found[0] == User((Context(SUMMARY), Text("go on")))


def test_summary_is_one_whoever_seems_to_have_said_it() -> None:
    for role in ("user", "assistant", "system"):
        found = messages(told([MessageRow(0, role, SUMMARY), person("go on"), answer("with trees")]))
        assert found[0] == User((Context(SUMMARY), Text("go on")))


def test_result_that_reads_like_a_summary_is_a_result() -> None:
    found = messages(told([person("go"), answer("", ("a", "x", "{}")), result("a", SUMMARY), answer("done")]))
    assert found[2] == ToolResult(CallId("a"), "x", SUMMARY)


def test_archived_messages_are_in_the_journal_and_the_model_reads_what_it_read_last() -> None:
    long = "Tell me all that there is to know about oaks, please."
    archived = [
        MessageRow(0, "user", "first", is_live=False),
        MessageRow(0, "assistant", "one", is_live=False),
        MessageRow(0, "user", long, is_live=False),
        MessageRow(0, "assistant", "oaks are trees, and they grow slowly but surely", is_live=False),
    ]
    kept = [MessageRow(0, row.role, row.content) for row in archived[2:]]
    found = told([*archived, person(SUMMARY, is_marked_summary=True), *kept, person("ok"), answer("fine")])

    said = [message.text for message in messages(found) if not isinstance(message, ToolResult)]
    assert said == ["first", "one", long, archived[3].content, "ok", "fine"]
    read = read_by_the_model(found)
    assert read[0] == User((Context(SUMMARY), Text(long)))
    assert [message.text for message in read[1:] if isinstance(message, Assistant)] == [archived[3].content, "fine"]
    shortened = found[-1].entry
    assert isinstance(shortened, Compacted)
    assert len(msgspec.json.encode(shortened)) < 400


def test_short_words_that_were_said_twice_are_no_copies() -> None:
    archived = [
        MessageRow(0, role, text, is_live=False)
        for role, text in [("user", "ok"), ("assistant", "a"), ("user", "ok"), ("assistant", "b")]
    ]
    found = told([*archived, person(SUMMARY), person("now"), answer("c")])
    assert [message.text for message in messages(found) if isinstance(message, User)] == ["ok", "ok", "now"]


def test_copies_that_each_shortening_made_are_told_once() -> None:
    """Two shortenings: each keeps the first exchange before its summary and the last one behind it."""
    talk = [
        ("user", "hi"),
        ("assistant", "hello"),
        ("user", "a"),
        ("assistant", "b"),
        ("user", "c"),
        ("assistant", "d"),
    ]
    opening, summary = talk[:2], ("user", SUMMARY)
    first = [*talk[:4], *opening, summary, *talk[2:4], *talk[4:], *opening]
    archived = [MessageRow(0, role, text, is_live=False) for role, text in [*first]]
    live = [MessageRow(0, role, text) for role, text in [summary, *talk[4:], ("user", "e"), ("assistant", "f")]]

    found = told([*archived, *live])

    said = [message.text for message in messages(found) if not isinstance(message, ToolResult)]
    assert said == ["hi", "hello", "a", "b", "c", "d", "e", "f"]
    read = read_by_the_model(found)
    assert [message.text for message in read if not isinstance(message, ToolResult)] == ["c", "d", "e", "f"]


def test_long_copy_is_known_also_where_what_stood_before_it_was_changed() -> None:
    long = "oaks are trees, and they grow slowly but surely"
    archived = [MessageRow(0, "user", "first", is_live=False), MessageRow(0, "assistant", long, is_live=False)]
    copied = MessageRow(0, "assistant", long)
    found = told([*archived, person(SUMMARY), person("first, pruned"), copied, person("ok"), answer("fine")])
    answers = [message.text for message in messages(found) if isinstance(message, Assistant)]
    assert answers.count(long) == 1


def test_session_of_which_only_the_summary_is_live_goes_on_from_it() -> None:
    archived = [MessageRow(0, "user", "hi", is_live=False), MessageRow(0, "assistant", "hello", is_live=False)]
    read = read_by_the_model(told([*archived, person(SUMMARY)]))
    assert read[0] == User((Context(SUMMARY),), "host")
    assert transcript_problems(read) == []


# Whatever the rows are.

texts = st.one_of(
    st.text(alphabet=st.characters(exclude_categories=())),
    st.sampled_from(
        ["", " ", "\0", "\ud800", "\0json:", "\0json:[", "ok", SUMMARY, "Review the conversation above and"]
    ),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["type", "text", "image_url", "url", "source", "data"]), inner, max_size=3
            )
        ),
        max_leaves=6,
    ).map(lambda value: "\0json:" + json.dumps(value)),
)
ids = st.sampled_from(["", " ", "a", "b", "call_0", "call_1", "call_2", "a_2", "\0", "call_0123456789abcdef"])
call_texts = st.one_of(
    st.sampled_from(["", "null", "[", "{}", "[[]]", '"[]"', "[1]"]),
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "id": ids | st.none() | st.integers(),
                "call_id": ids,
                "name": st.sampled_from(["x", "", "\ud83d"]),
                "arguments": st.none() | st.text(max_size=5) | st.dictionaries(st.text(max_size=2), st.floats()),
                "function": st.none()
                | st.fixed_dictionaries(
                    {"name": st.sampled_from(["x", "y"]), "arguments": st.sampled_from(["{}", "{"])}
                ),
            },
        ),
        max_size=3,
    ).map(json.dumps),
)
any_rows = st.lists(
    st.builds(
        MessageRow,
        id=st.just(0),
        role=st.sampled_from(["user", "assistant", "tool", "system", "session_meta", "function", ""]),
        content=st.none() | texts,
        call_id=ids,
        calls=call_texts,
        tool=st.sampled_from(["", "x", "y", "\0"]),
        at=st.none() | st.floats(1.0, 4e9),
        finish=st.sampled_from(["", "stop", "length", "tool_calls", "content_filter"]),
        reasoning=st.sampled_from(["", " ", "hm", "\ud800"]),
        effect=st.sampled_from(["", "none", "unknown", "done", "?"]),
        is_live=st.booleans(),
        is_observed=st.booleans(),
        is_marked_summary=st.booleans(),
    ),
    max_size=14,
)


@settings(deadline=None, max_examples=200)
@given(any_rows)
def test_any_rows_become_a_legal_journal_that_can_be_kept(given: list[MessageRow]) -> None:
    found = make_journal([replace(row, id=number) for number, row in enumerate(given, 1)], "cli")

    assert transcript_problems(messages(found)) == []
    assert transcript_problems(read_by_the_model(found)) == []
    assert msgspec.json.decode(msgspec.json.encode(found), type=list[Recorded]) == found
    assert [one.seq for one in found] == list(range(1, len(found) + 1))
    assert [one.at for one in found] == sorted(one.at for one in found)
    assert open_turns(found) == []


@settings(deadline=None)
@given(any_rows)
def test_journal_is_the_same_each_time(given: list[MessageRow]) -> None:
    assert make_journal(given, "cli") == make_journal(given, "cli")


def open_turns(found: Sequence[Recorded]) -> list[Entry]:
    """What breaks the rule that turns follow each other, each with its end."""
    wrong: list[Entry] = []
    open_turn = None
    for entry in entries(found):
        match entry:
            case TurnStarted(turn):
                wrong.extend([entry] if open_turn is not None else [])
                open_turn = turn
            case TurnEnded(turn):
                wrong.extend([entry] if open_turn != turn else [])
                open_turn = None
            case MessageAdded():
                wrong.extend([entry] if open_turn is None else [])
            case _:
                pass
    return [*wrong, *([] if open_turn is None else entries(found)[-1:])]
