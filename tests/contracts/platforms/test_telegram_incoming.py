"""Updates of every kind, and of no kind: they become arrivals and presses, or nothing, and never an exception."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.platforms.base import Address, Arrival, Attachment, Press, Quoted, Sender
from talaria.platforms.telegram.incoming import TelegramAccount, update, updates

ME = TelegramAccount(42, "talaria_bot")
ADA = {"id": 1001, "is_bot": False, "first_name": "Ada", "last_name": "L"}
DM = {"id": 1001, "type": "private"}
GROUP = {"id": -1005, "type": "supergroup"}


def read(message: dict[str, Any]) -> Any:
    whole = {"message_id": 7, "date": 1_800_000_000, "chat": DM, "from": ADA, **message}
    found = update(msgspec.json.encode({"update_id": 1, "message": whole}), ME)
    assert found is not None
    return found.item


def test_a_plain_message_is_read_whole() -> None:
    assert read({"text": " hello "}) == Arrival(
        message_id="7",
        where=Address("telegram", "1001"),
        kind="dm",
        sender=Sender("1001", "Ada L"),
        text="hello",
        sent_at=1_800_000_000,
    )


@pytest.mark.parametrize(
    ("fields", "kind", "name", "mime"),
    [
        ({"voice": {"file_id": "f"}}, "voice", "voice.ogg", "audio/ogg"),
        ({"audio": {"file_id": "f", "file_name": "a.m4a", "mime_type": "audio/mp4"}}, "audio", "a.m4a", "audio/mp4"),
        ({"video": {"file_id": "f"}}, "video", "video.mp4", "video/mp4"),
        ({"video_note": {"file_id": "f"}}, "video", "video.mp4", "video/mp4"),
        ({"animation": {"file_id": "f"}, "document": {"file_id": "g"}}, "video", "video.mp4", "video/mp4"),
        ({"document": {"file_id": "f", "mime_type": "text/plain"}}, "document", "document", "text/plain"),
        ({"document": {"file_id": "f", "mime_type": "image/png"}}, "image", "document", "image/png"),
        ({"document": {"file_id": "f", "mime_type": "image/svg+xml"}}, "document", "document", "image/svg+xml"),
    ],
)
def test_each_kind_of_file_is_known(fields: dict[str, Any], kind: Any, name: str, mime: str) -> None:
    assert read(fields).attachments == (Attachment(kind, "f", name, mime),)


def test_of_a_photo_the_largest_is_taken() -> None:
    sizes = [{"file_id": str(width), "width": width, "height": 10, "file_size": width} for width in (90, 1280, 320)]
    assert read({"photo": sizes}).attachments == (Attachment("image", "1280", "photo.jpg", "image/jpeg", 1280),)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"sticker": {"emoji": "🦉"}}, "🦉"),
        ({"location": {"latitude": 1.5, "longitude": -2}}, "Location: 1.5, -2.0"),
        (
            {"location": {"latitude": 1, "longitude": 2}, "venue": {"title": "Inn", "address": "Road 5"}},
            "Location: Inn, Road 5, 1.0, 2.0",
        ),
        ({"contact": {"phone_number": "+1", "first_name": "Bo"}}, "Contact: Bo +1"),
    ],
)
def test_what_is_said_without_words_is_put_into_words(fields: dict[str, Any], text: str) -> None:
    assert read(fields).text == text


@pytest.mark.parametrize(
    "message",
    [
        {"text": "x", "from": {**ADA, "is_bot": True}},
        {"text": "x", "from": None},
        {"text": "x", "chat": GROUP, "sender_chat": {"id": -1007, "type": "channel"}},
        {"text": "x", "chat": {"id": -1007, "type": "channel"}},
        {"new_chat_members": [ADA]},
        {"pinned_message": {"message_id": 5}},
        {"sticker": {}},
    ],
)
def test_bots_channels_and_notices_are_not_heard(message: dict[str, Any]) -> None:
    assert read(message) is None


@pytest.mark.parametrize(("length", "is_continued"), [(3999, False), (4000, True), (4096, True)])
def test_a_text_that_the_app_has_split_goes_on(length: int, is_continued: bool) -> None:
    assert read({"text": "x" * length}).is_continued == is_continued
    assert read({"text": "🦉" * (length // 2) + "x" * (length % 2)}).is_continued == is_continued


def test_a_mention_by_id_counts_and_one_of_somebody_else_does_not() -> None:
    def mention(user: int) -> Any:
        entity = {"type": "text_mention", "offset": 0, "length": 7, "user": {"id": user}}
        return read({"text": "Talaria, hi", "chat": GROUP, "entities": [entity]})

    assert (mention(42).text, mention(42).is_addressed) == ("hi", True)
    assert (mention(43).text, mention(43).is_addressed) == ("Talaria, hi", False)


def test_a_mention_under_a_picture_counts() -> None:
    found = read(
        {
            "photo": [{"file_id": "f"}],
            "chat": GROUP,
            "caption": "see @talaria_bot",
            "caption_entities": [{"type": "mention", "offset": 4, "length": 12}],
        }
    )
    assert (found.text, found.is_addressed) == ("see", True)


def test_only_the_quoted_part_is_told() -> None:
    answered = {"message_id": 5, "chat": DM, "from": {"id": 42, "is_bot": True}, "text": "all of it"}
    assert read({"text": "x", "reply_to_message": answered}).reply_to == Quoted("all of it", is_ours=True)
    quoting = read({"text": "x", "reply_to_message": answered, "quote": {"text": "of", "position": 4}})
    assert quoting.reply_to == Quoted("of", is_ours=True)


@pytest.mark.parametrize("beginning", [{"message_id": 5}, {"message_id": 4, "forum_topic_created": {"name": "x"}}])
def test_in_a_topic_what_seems_to_reply_to_its_beginning_does_not(beginning: dict[str, Any]) -> None:
    place = {"chat": GROUP, "message_thread_id": 5, "is_topic_message": True}
    began = {"chat": GROUP, "from": {"id": 42, "is_bot": True}, **beginning}
    found = read({"text": "x", **place, "reply_to_message": began})
    assert (found.is_addressed, found.reply_to, found.where.thread) == (False, None, "5")


def test_replies_outside_of_forums_make_no_thread() -> None:
    assert read({"text": "x", "chat": GROUP, "message_thread_id": 5}).where.thread == ""


def test_a_press_without_a_message_or_data_is_nothing() -> None:
    for query in (
        {"id": "1", "from": ADA, "data": "d"},
        {"id": "1", "from": ADA, "message": {"message_id": 1, "chat": DM}},
    ):
        found = update(msgspec.json.encode({"update_id": 1, "callback_query": query}), ME)
        assert found is not None
        assert found.item is None


def test_a_press_under_a_message_that_telegram_has_forgotten_still_counts() -> None:
    query = {"id": "1", "from": ADA, "data": "d", "message": {"message_id": 1, "chat": DM, "date": 0}}
    found = update(msgspec.json.encode({"update_id": 1, "callback_query": query}), ME)
    assert found is not None
    assert found.item == Press("1", Address("telegram", "1001"), "dm", Sender("1001", "Ada L"), "d", "1")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3),
    max_leaves=8,
)
ENTITY = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["mention", "bot_command", "text_mention", "bold"]),
        "offset": st.integers(-5, 40),
        "length": st.integers(-5, 40),
    },
    optional={"user": st.fixed_dictionaries({"id": st.sampled_from([42, 43])})},
)
TEXT = st.lists(st.sampled_from(["@talaria_bot", "/new", " ", "🦉", "x", "\u0301", "@"]), max_size=9).map("".join)
MESSAGE = st.fixed_dictionaries(
    {"message_id": st.integers(), "chat": st.sampled_from([DM, GROUP]), "from": st.just(ADA)},
    optional={
        "date": st.integers(),
        "text": TEXT,
        "entities": st.lists(ENTITY, max_size=4),
        "caption": TEXT,
        "caption_entities": st.lists(ENTITY, max_size=4),
        "message_thread_id": st.integers(),
        "is_topic_message": st.booleans(),
        "reply_to_message": JSON,
        "photo": JSON,
        "quote": JSON,
        "document": JSON,
        "location": JSON,
    },
)


@settings(deadline=None)
@given(
    st.fixed_dictionaries({"update_id": st.integers()}, optional={"message": MESSAGE | JSON, "callback_query": JSON})
)
def test_no_update_is_too_odd(told: dict[str, Any]) -> None:
    found = update(msgspec.json.encode(told), ME)
    assert found is not None
    assert found.id == told["update_id"]


@settings(deadline=None)
@given(st.binary() | JSON.map(msgspec.json.encode))
def test_no_bytes_are_too_odd(told: bytes) -> None:
    update(told, ME)
    updates(told, ME)
    updates(b'[%b,{"update_id":5}]' % told, ME)


def test_one_update_that_cannot_be_read_takes_no_other_with_it() -> None:
    result = [{"update_id": 5, "message": 1}, {}, {"update_id": 6}]
    assert [found.id for found in updates(msgspec.json.encode(result), ME)] == [5, 6]
