"""However a turn was told to somebody who watches it, what programs read of it is what the journal says: no text is
lost or repeated, and each event of a response has its number."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, cast

from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from tests.properties.test_watching import (
    KILLED,
    LATE,
    LEFT_OPEN,
    NARROW,
    SESSION,
    TORN,
    WIDE,
    Step,
    Watcher,
    World,
    follow,
    scripts,
)

from talaria.api.api_requests import ApiRun
from talaria.api.api_server import ApiCall
from talaria.api.file_links import LinkedText
from talaria.api.responses import MessageItem, ResponseView
from talaria.api.turn_output import (
    Began,
    CallBegan,
    CallDone,
    Output,
    OutputEnded,
    TextAdded,
    TextDone,
    TextVoid,
    TurnReader,
)
from talaria.core.entries import TurnStarted
from talaria.core.ids import CallId, TurnId
from talaria.core.messages import ToolResult
from talaria.gateway.envelope import Principal, Received, encode_body
from talaria.gateway.replies import find_named_files
from talaria.platforms.base import Address, Arrival, Sender
from talaria.runtime.live_socket import Settled
from talaria.runtime.watching import Watched, WatchLimits
from talaria.store.chat_ports import Inbound

Numbered = tuple[int, dict[str, Any]]


class AnyCall:
    """What a response needs of the request that asks for it."""

    def make_linked_text(self, _: object) -> LinkedText:
        return LinkedText(lambda path: f"<{path}>")


def new_view() -> ResponseView:
    arrival = Arrival("0", Address("api", "ann"), "dm", Sender("ann"))
    row = Inbound("api", "a", "ann", "0", SESSION, encode_body(Received(arrival, Principal("api", "ann"), "")))
    return ResponseView(cast("ApiCall", AnyCall()), ApiRun("0", SESSION, TurnId("t"), row))


def marks(events: Sequence[Numbered]) -> list[tuple[int, str]]:
    """All that do not depend on how the text came in pieces."""
    return [(number, event["type"]) for number, event in events if "delta" not in event]


def check_numbers(events: Sequence[Numbered]) -> None:
    numbers = [number for number, _ in events]
    assert all(first < second for first, second in pairwise(numbers)), numbers


def content_of(view: ResponseView) -> list[tuple[str, ...]]:
    """Without the ids of messages."""
    return [
        (item.content[0].text,) if isinstance(item, MessageItem) else (item.id, item.status, item.output or "")
        for item in view.response.output
    ]


class Reading:
    """Of one turn, by whoever watches it."""

    def __init__(self, turn: TurnId) -> None:
        self._reader = TurnReader(turn)
        self._view = new_view()
        self._settled: list[Settled] = []
        self._outputs: list[Output] = []
        self._events: list[Numbered] = []
        self._text = ""
        """Of the text that is being written."""
        self.has_ended = False

    def read(self, one: Watched) -> None:
        if isinstance(one, Settled):
            self._settled.append(one)
        for output in self._reader.read(one):
            self._outputs.append(output)
            self._events += self._view.add(output)
            match output:
                case TextAdded(text):
                    self._text += text
                case TextVoid():
                    self._text = ""
                case TextDone(text):
                    assert self._text == text, "all of it, and once"
                    self._text = ""
                case OutputEnded():
                    self.has_ended = True
                    assert self._text == ""
                    self._check()
                case _:
                    pass

    def shows(self, answer: str) -> bool:
        """All of the answer that is being written, and perhaps more that was known before we began again."""
        return self.has_ended or self._text.startswith(answer)

    def _check(self) -> None:
        """Against what the journal says of the turn."""
        reader, view = TurnReader(TurnId(self._turn)), new_view()
        outputs = [output for one in self._settled for output in reader.read(one)]
        events = [event for output in outputs for event in view.add(output)]
        assert solid(self._outputs) == solid(outputs)
        check_numbers(self._events)
        assert content_of(self._view) == content_of(view)
        assert self._events[-1][0] == events[-1][0]
        if not any(isinstance(one, TextVoid) for one in self._outputs):
            assert marks(self._events) == marks(events)

    @property
    def _turn(self) -> str:
        (started,) = [one.recorded.entry for one in self._settled if isinstance(one.recorded.entry, TurnStarted)]
        return started.turn


def solid(outputs: Sequence[Output]) -> list[Output]:
    return [one for one in outputs if isinstance(one, TextDone | CallBegan | CallDone)]


class ReadingWatcher(Watcher):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._reading: Reading | None = None

    def note(self, one: Watched) -> None:
        super().note(one)
        if isinstance(one, Settled) and isinstance(entry := one.recorded.entry, TurnStarted):
            assert self._reading is None or self._reading.has_ended, "each turn is told to its end"
            self._reading = Reading(entry.turn)
        if self._reading is not None and not self._reading.has_ended:
            self._reading.read(one)
            assert self._reading.shows(self.screen.answer)


@example(script=TORN, limits=WIDE)
@example(script=LATE, limits=WIDE)
@example(script=LEFT_OPEN, limits=WIDE)
@example(script=KILLED, limits=WIDE)
@settings(max_examples=100, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(script=scripts, limits=st.sampled_from([NARROW, NARROW, WIDE]))
def test_programs_read_everything_once_and_in_order(script: Sequence[Step], limits: WatchLimits) -> None:
    asyncio.run(follow(script, limits, ReadingWatcher))


Round = tuple[str, int]
"""What the model says, and how many tools it calls then."""

words = st.text("ab \n", min_size=0, max_size=8)
rounds = st.lists(st.tuples(words, st.integers(0, 3)), min_size=1, max_size=4)


def pieces(text: str, cuts: Sequence[int]) -> list[str]:
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    return [text[start:end] for start, end in pairwise(places)]


def outputs_of(
    turn: Sequence[Round], cuts: Sequence[int], void: Callable[[int], str] = lambda _: ""
) -> Iterator[Output]:
    """`void`: what was written first in each round, and taken back."""
    yield Began(0.0)
    for number, (text, calls) in enumerate(turn):
        if attempt := void(number):
            yield from map(TextAdded, pieces(attempt, cuts))
            yield TextVoid()
        yield from map(TextAdded, pieces(text, cuts))
        if text:
            yield TextDone(text)
        ids = [CallId(f"{number}-{place}") for place in range(calls)]
        yield from (CallBegan(id, "tool", "{}") for id in ids)
        yield from (CallDone(ToolResult(id, "tool", "ok")) for id in ids)
    yield OutputEnded("completed")


async def replay(outputs: Iterator[Output]) -> AsyncGenerator[Output]:
    for one in outputs:
        yield one


async def stream(outputs: Iterator[Output], after: int = -1) -> list[Numbered]:
    sent = [piece async for piece in new_view().pieces(replay(outputs), after)]
    events = [json.loads(piece.split(b"data: ", 1)[1]) for piece in sent]
    return [(event["sequence_number"], event) for event in events]


def texts_of(events: Sequence[Numbered]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for _, event in events:
        if "delta" in event:
            texts[event["output_index"]] = texts.get(event["output_index"], "") + event["delta"]
    return texts


cuts = st.lists(st.integers(1, 7), max_size=4)


@example(turn=[("abab", 0)], first=[2], second=[], seen=5)
@settings(max_examples=300)
@given(turn=rounds, first=cuts, second=cuts, seen=st.integers(0, 30))
def test_who_comes_back_is_told_the_rest(
    turn: Sequence[Round], first: Sequence[int], second: Sequence[int], seen: int
) -> None:
    whole = asyncio.run(stream(outputs_of(turn, first)))
    before = whole[: max(1, seen)]
    events = before + asyncio.run(stream(outputs_of(turn, second), before[-1][0]))
    check_numbers(events)
    assert marks(events) == marks(whole)
    assert texts_of(events) == texts_of(whole)
    assert list(texts_of(whole).values()) == [text for text, _ in turn if text]


@example(turn=[("ab", 1), ("ba", 0)], first=[], second=[1], void=["aaa", "bbb", "", ""], seen=9)
@settings(max_examples=300)
@given(turn=rounds, first=cuts, second=cuts, void=st.lists(words, min_size=4, max_size=4), seen=st.integers(0, 40))
def test_who_has_seen_what_became_void_is_told_how_each_text_and_the_whole_ends(
    turn: Sequence[Round], first: Sequence[int], second: Sequence[int], void: Sequence[str], seen: int
) -> None:
    whole = asyncio.run(stream(outputs_of(turn, first, lambda number: void[number])))
    before = whole[: max(1, seen)]
    events = before + asyncio.run(stream(outputs_of(turn, second), before[-1][0]))
    check_numbers(whole)
    check_numbers(events)
    assert events[-1][1]["type"] == "response.completed"
    assert events[-1][1]["response"]["status"] == "completed"
    ended = [event["item"] for _, event in events if event["type"] == "response.output_item.done"]
    messages = [one for one in ended if one["type"] == "message" and one["status"] == "completed"]
    assert [one["content"][0]["text"] for one in messages] == [text for text, _ in turn if text]
    calls = [event["item_id"] for _, event in events if event["type"] == "response.mcp_call.completed"]
    assert calls == [f"mcp_{number}-{place}" for number, (_, calls) in enumerate(turn) for place in range(calls)]


lines = st.lists(
    st.sampled_from(["MEDIA:", "MEDIA:/a/b.txt", "ME", "\n", "\n", "```", "~~~", "~", "text", " ", "MEDIA: '/c d'"]),
    max_size=12,
).map("".join)


@given(text=lines, cuts=st.lists(st.integers(0, 60), max_size=12))
def test_a_text_with_links_is_the_same_in_whatever_pieces_it_comes(text: str, cuts: Sequence[int]) -> None:
    shown = LinkedText(lambda path: f"<{path}>")
    named = find_named_files(text)
    wanted = "\n".join(
        f"<{named[number]}>" if number in named else line for number, line in enumerate(text.split("\n"))
    )
    assert "".join([*map(shown.add, pieces(text, cuts)), shown.end()]) == wanted
