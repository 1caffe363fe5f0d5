"""What Matrix tells and is told, as values: events that become arrivals, markdown that becomes HTML."""

import json
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.platforms.base import AccessLost, Arrival, NotTaken, Refused, Rejected, Unsure
from talaria.platforms.matrix import matrix_client, room_events
from talaria.platforms.matrix.room_events import JoinedRoom, MatrixAccount

ME = MatrixAccount("@talaria:server.org", "Talaria")
GROUP = JoinedRoom("!room:server.org", "group")
DIRECT = JoinedRoom("!room:server.org", "dm")

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
anything = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
FIELDS = (
    "type", "content", "sender", "event_id", "origin_server_ts", "unsigned", "msgtype", "body", "formatted_body",
    "m.relates_to", "m.mentions", "user_ids", "rel_type", "m.in_reply_to", "is_falling_back", "url", "file", "info",
    "size", "mimetype", "key", "k", "iv", "hashes", "filename", "m.relations", "m.replace", "m.new_content",
)  # fmt: skip
VALUES = st.sampled_from(["m.room.message", "m.text", "m.image", "m.thread", "m.replace", "$1", "@a:b", "mxc://a/b"])
odd = st.recursive(
    scalars | VALUES,
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(FIELDS) | st.text(), inner),
    max_leaves=30,
)


def event(content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "m.room.message",
        "event_id": "$1",
        "sender": "@alice:server.org",
        "origin_server_ts": 1_700_000_000_000,
        "content": {"msgtype": "m.text", **content},
    }


def arrived(body: str, more: Mapping[str, Any], room: JoinedRoom = GROUP) -> Arrival:
    said = room_events.message(event({"body": body, **more}), ME)
    assert said is not None
    return room_events.arrival(said, room, ME)


@pytest.mark.parametrize(
    ("text", "more", "expected"),
    [
        ("what do you think?", {}, None),
        ("TALARIA: what?", {}, "what?"),
        ("talaria what?", {}, "what?"),
        ("talaria", {}, ""),
        ("@talaria, what?", {}, "what?"),
        ("@talaria:server.org: what?", {}, "what?"),
        ("@talaria:server.organ: what?", {}, None),
        ("talaria:what?", {}, "what?"),
        ("talariax: what?", {}, None),
        ("ask talaria", {}, None),
        ("well?", {"m.mentions": {"user_ids": ["@talaria:server.org"]}}, "well?"),
        ("well?", {"m.mentions": {"user_ids": ["@talaria:server.orgy"]}}, None),
        ("so?", {"formatted_body": '<a href="https://matrix.to/#/@talaria:server.org">T</a> so?'}, "so?"),
        ("so?", {"formatted_body": '<a href="https://matrix.to/#/%40talaria%3Aserver.org">T</a> so?'}, "so?"),
        ("so?", {"formatted_body": '<a href="https://matrix.to/#/@talaria:server.organ">T</a> so?'}, None),
        ("/status", {}, "/status"),
        ("talaria: !status now", {}, "/status now"),
        ("talaria: !!", {}, "!!"),
        ("!status", {}, None),
        ("@room hello", {}, None),
    ],
)
def test_in_a_group_it_is_known_whether_somebody_means_us(
    text: str, more: dict[str, Any], expected: str | None
) -> None:
    heard = arrived(text, more)
    assert heard.is_addressed is (expected is not None)
    assert heard.text == (text if expected is None else expected)


def test_among_two_everything_is_meant_for_us_without_saying_so() -> None:
    heard = arrived("!status", {}, DIRECT)
    assert (heard.text, heard.is_addressed, heard.kind) == ("/status", False, "dm")


@pytest.mark.parametrize(
    ("text", "maybe"),
    [
        ("!status now", "/status now"),
        ("!important thing", "/important thing"),
        ("!!", ""),
        ("a !status", ""),
        ("/x", ""),
    ],
)
def test_in_a_group_words_that_may_be_a_command_are_told_apart_from_those_that_are_for_us(
    text: str, maybe: str
) -> None:
    heard = arrived(text, {})
    assert (heard.text, heard.maybe_command) == (text, maybe)


def test_only_the_quotation_of_a_reply_is_left_out() -> None:
    replying = {"m.relates_to": {"m.in_reply_to": {"event_id": "$0"}}}
    assert arrived("> <@a:b> one\n> two\n\n> mine\nall mine", replying).text == "> mine\nall mine"
    assert arrived("> quoted by hand\n\nmine", {}).text == "> quoted by hand\n\nmine"


def test_a_caption_is_told_apart_from_a_name() -> None:
    file = {"msgtype": "m.file", "url": "mxc://server.org/abc"}
    alone = arrived("a.txt", file)
    assert (alone.text, alone.attachments[0].name) == ("", "a.txt")
    assert arrived("look", {**file, "filename": "a.txt"}).text == "look"
    assert arrived("a.txt", {**file, "filename": "a.txt"}).text == ""
    voice = arrived("voice", {**file, "msgtype": "m.audio", "org.matrix.msc3245.voice": {}})
    assert voice.attachments[0].kind == "voice"


@given(odd)
def test_no_event_is_too_odd(content: Any) -> None:
    told: Mapping[str, Any]
    for told in ({**event({}), "content": content}, {"content": content}, {"unsigned": content}):
        said = room_events.message(told, ME)
        room_events.read_quote(told, ME)
        if said is not None:
            room_events.arrival(said, GROUP, ME)


@pytest.mark.parametrize(
    ("markdown", "html"),
    [
        (
            "# T\n\n**b** *i* ~~s~~ `<c>`",
            "<h1>T</h1>\n<p><strong>b</strong> <em>i</em> <s>s</s> <code>&lt;c&gt;</code></p>",
        ),
        ("```py\na<b\n```", '<pre><code class="language-py">a&lt;b\n</code></pre>'),
        ("a\nb", "<p>a<br />\nb</p>"),
        ("[l](https://x.org)", '<p><a href="https://x.org">l</a></p>'),
        ("[l](javascript:x)", "<p>[l](javascript:x)</p>"),
        ("![alt](https://x.org/a.png)", '<p><a href="https://x.org/a.png">alt</a></p>'),
        ("![](https://x.org/a.png)", '<p><a href="https://x.org/a.png">https://x.org/a.png</a></p>'),
        ("[![alt](https://x.org/a.png)](https://y.org)", '<p><a href="https://y.org">alt</a></p>'),
        ("<img src=x><script>", "<p>&lt;img src=x&gt;&lt;script&gt;</p>"),
    ],
)
def test_markdown_is_shown_as_html_without_pictures(markdown: str, html: str) -> None:
    assert room_events.render_html(markdown) == html


def test_plain_words_need_no_html() -> None:
    assert room_events.text_content("hello") == {"body": "hello", "m.mentions": {}}
    assert "formatted_body" in room_events.text_content("*hello*")


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.text, self.tags = "", set[str]()

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)


@given(st.text() | st.text(alphabet="ab *_`#[]()!<>&|\n-~\\\"'"))
def test_whatever_is_said_is_shown_and_fits(text: str) -> None:
    reader = Reader()
    html = room_events.render_html(text)
    reader.feed(html)
    assert not reader.tags & {"img", "script", "b", "iframe"}
    assert {sign for sign in text if sign.isalnum() and sign.isascii()} <= {
        *reader.text,
        *room_events.render_html(text),
    }
    for content in (room_events.text_content(text), room_events.edit_content(text)):
        assert len(json.dumps(content)) <= 2 * room_events.MAX_CONTENT_CHARS
    assert room_events.text_content(text)["body"] == text


@pytest.mark.parametrize(
    ("status", "errcode", "expected"),
    [
        (429, "", NotTaken),
        (400, "M_LIMIT_EXCEEDED", NotTaken),
        (401, "M_UNKNOWN_TOKEN", matrix_client.LoggedOut),
        (401, "", Refused),
        (403, "M_FORBIDDEN", AccessLost),
        (403, "M_USER_SUSPENDED", Refused),
        (404, "M_NOT_FOUND", Rejected),
        (413, "M_TOO_LARGE", Rejected),
        (400, "M_DUPLICATE_ANNOTATION", matrix_client.AlreadySo),
        (500, "M_UNKNOWN", Unsure),
        (503, "", Unsure),
        (200, "", Unsure),
        (0, "", Unsure),
    ],
)
def test_every_refusal_has_its_meaning(status: int, errcode: str, expected: type[Exception]) -> None:
    failure = matrix_client.explain_refusal(status, errcode, "some\nwords", 3.0)
    assert type(failure) is expected
    assert "some words" in str(failure)
    assert getattr(failure, "retry_after_s", None) == (3.0 if expected is NotTaken else None)
