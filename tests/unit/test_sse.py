"""`EventSplitter` finds the same events wherever the bytes are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.core.errors import Disconnected
from talaria.net.client import MAX_LINE_BYTES, EventSplitter


def split(*chunks: bytes) -> list[bytes]:
    splitter = EventSplitter()
    return [*(data for chunk in chunks for data in splitter.feed(chunk)), *splitter.end()]


def test_an_event_ends_at_an_empty_line() -> None:
    assert split(b"event: a\ndata: 1\n\ndata: 2\n\n") == [b"1", b"2"]


def test_an_event_is_told_as_soon_as_its_empty_line_is_there() -> None:
    splitter = EventSplitter()
    assert not list(splitter.feed(b"data: 1\n"))
    assert list(splitter.feed(b"\n")) == [b"1"]


def test_lines_may_end_in_crlf_even_between_two_chunks() -> None:
    assert split(b"event: a\r", b"\ndata: 1\r\n\r", b"\n") == [b"1"]


def test_the_space_behind_the_colon_may_be_missing_and_only_one_is_taken() -> None:
    assert split(b"event:a\ndata:1\n\ndata:  2\n\n") == [b"1", b" 2"]


def test_several_data_lines_are_one_datum_of_several_lines() -> None:
    assert split(b"data: {\ndata: }\n\n") == [b"{\n}"]


@pytest.mark.parametrize("noise", [b": ping\n\n", b"data:\n\n", b"data: \n\n", b"event: ping\n\n", b"id: 1\n\n"])
def test_noise_is_passed_over(noise: bytes) -> None:
    assert split(noise, b"data: 1\n\n", noise) == [b"1"]


def test_a_colon_inside_the_data_belongs_to_it() -> None:
    assert split(b'data: {"a": 1}\n\n') == [b'{"a": 1}']


def test_what_stands_complete_at_the_end_is_told() -> None:
    assert split(b"data: 1") == split(b"data: 1\n") == [b"1"]


def test_nothing_comes_of_nothing() -> None:
    assert split() == split(b"") == split(b"\n\n\n") == []


def test_a_line_without_end_is_given_up() -> None:
    splitter = EventSplitter()
    half = b"x" * (MAX_LINE_BYTES // 2 + 1)
    assert not list(splitter.feed(half))
    with pytest.raises(Disconnected, match="endless line"):
        list(splitter.feed(half))


LINES = st.sampled_from([b"data: ", b"data:", b"event: ", b": ", b"id: ", b""])
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=6).map(str.encode)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\r\n\r\n"])
STREAMS = st.lists(st.tuples(LINES, WORDS, ENDS).map(b"".join)).map(b"".join)


@given(stream=STREAMS, data=st.data())
def test_any_cut_of_the_stream_yields_the_same_events(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))))
    chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert split(*chunks) == split(stream)


PRINTED = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1).filter(str.strip).map(str.encode)
NAMES = st.text("abc_.", max_size=5)


@given(events=st.lists(st.tuples(NAMES, PRINTED)), end=st.sampled_from([b"\n", b"\r\n"]))
def test_what_was_written_is_read_back(events: list[tuple[str, bytes]], end: bytes) -> None:
    written = (end.join((b"event: " + name.encode(), b"data: " + data, b"", b"")) for name, data in events)
    assert split(b"".join(written)) == [data for _, data in events]


def test_event_without_end_is_given_up() -> None:
    splitter = EventSplitter()
    line = b"data: " + b"x" * (1 << 20) + b"\n"
    with pytest.raises(Disconnected, match="endless"):
        list(splitter.feed(line * 64))
