"""What the first bytes of a picture say, which pictures every vendor takes, and messages without them."""

import base64
import struct
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.core import pictures
from talaria.core.ids import CallId
from talaria.core.messages import Assistant, Context, Image, Message, Text, ToolResult, User, user
from talaria.core.pictures import (
    MAX_BYTES,
    MAX_ENCODED_BYTES,
    UnsupportedImage,
    media_type,
    pixels,
    prepare_image,
    without_images,
)
from talaria.providers.message_history import CHARS_PER_TOKEN, IMAGE_CHARS, size_tokens

DOT = Image("image/png", "aGk=")


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", width, height, 8, 2, 0, 0, 0)


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0, 0, 0)


def jpeg(width: int, height: int, *, frame: int = 0xC0) -> bytes:
    """With a thumbnail, a table and a filling byte before its frame."""
    exif = b"Exif\0\0" + b"\xff\xc0\x00\x11\x08\x00\x01\x00\x01" * 9
    segments = [(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0"), (0xE1, exif), (0xC4, b"\0" * 29)]
    head = b"".join(struct.pack(">BBH", 0xFF, kind, len(body) + 2) + body for kind, body in segments)
    return b"\xff\xd8" + head + b"\xff" + struct.pack(">BBHBHHB", 0xFF, frame, 17, 8, height, width, 3) + b"\0" * 9


def webp(kind: bytes, body: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I4s4sI", len(body) + 12, b"WEBP", kind, len(body)) + body


def webp_lossy(width: int, height: int) -> bytes:
    return webp(b"VP8 ", b"\x30\x01\x00\x9d\x01\x2a" + struct.pack("<HH", width, height) + b"\0" * 8)


def webp_lossless(width: int, height: int) -> bytes:
    return webp(b"VP8L", b"\x2f" + struct.pack("<I", width - 1 | height - 1 << 14) + b"\0" * 8)


def webp_extended(width: int, height: int) -> bytes:
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return webp(b"VP8X", b"\x10\0\0\0" + sides)


Make = Callable[[int, int], bytes]
MAKERS: list[Make] = [png, gif, jpeg, webp_lossy, webp_lossless, webp_extended]
TYPES = ["image/png", "image/gif", "image/jpeg", "image/webp", "image/webp", "image/webp"]
every_kind = pytest.mark.parametrize("make", MAKERS, ids=[f"{type_}-{n}" for n, type_ in enumerate(TYPES)])
sides = st.integers(1, 16_383)


@every_kind
@given(width=sides, height=sides)
def test_how_large_a_picture_is_stands_in_its_head(make: Make, width: int, height: int) -> None:
    assert pixels(make(width, height)) == (width, height)


@pytest.mark.parametrize("frame", [0xC1, 0xC2, 0xC3, 0xC9, 0xCF])
def test_a_jpeg_file_may_begin_any_kind_of_frame(frame: int) -> None:
    assert pixels(jpeg(640, 480, frame=frame)) == (640, 480)


@every_kind
def test_a_picture_is_told_by_its_content_and_comes_back_from_base64(make: Make) -> None:
    content = make(3, 2)
    image, size = prepare_image(content)
    assert (image.media_type, size) == (TYPES[MAKERS.index(make)], (3, 2))
    assert base64.b64decode(image.data, validate=True) == content


@every_kind
@given(data=st.data())
def test_a_picture_that_was_cut_off_is_unfit_or_still_says_its_size(make: Make, data: st.DataObject) -> None:
    whole = make(300, 200)
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    try:
        _, size = prepare_image(cut)
    except UnsupportedImage:
        return
    assert size == (300, 200)


@given(st.binary(max_size=60), st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"RIFF0000WEBP"]))
def test_any_bytes_are_a_picture_or_unfit(tail: bytes, head: bytes) -> None:
    try:
        image, size = prepare_image(head + tail)
    except UnsupportedImage:
        return
    assert image.media_type == media_type(head + tail)
    assert min(size) > 0


@pytest.mark.parametrize("filling", [b"\xff", b"\xff\xe0\x00\x02"])
def test_the_frame_of_a_jpeg_file_is_not_looked_for_without_end(filling: bytes) -> None:
    head, frame = jpeg(640, 480)[:2], jpeg(640, 480)[-19:]
    assert pixels(head + filling * 900 + frame) == (640, 480)
    assert pixels(head + filling * 1_100 + frame) is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<svg/>", "is not a PNG, JPEG, GIF or WebP image"),
        (b"", "is not a PNG, JPEG, GIF or WebP image"),
        (png(0, 5), "is damaged: the size of the image cannot be read"),
        (png(2, 2)[:20], "is damaged: the size of the image cannot be read"),
        (png(8001, 20), "has 8001 x 20 pixels; models accept at most 8000 per side"),
        (png(20, 8001), "has 20 x 8001 pixels; models accept at most 8000 per side"),
        (png(2, 2).ljust(MAX_BYTES + 1, b"\0"), "is larger than 3.75 MB, which is more than models accept"),
    ],
)
def test_a_picture_that_some_vendor_refuses_is_unfit(content: bytes, said: str) -> None:
    with pytest.raises(UnsupportedImage) as caught:
        prepare_image(content)
    assert str(caught.value) == said


def test_the_largest_picture_fills_what_the_strictest_vendor_takes() -> None:
    image, _ = prepare_image(png(8000, 8000).ljust(MAX_BYTES, b"\0"))
    assert len(image.data) == MAX_ENCODED_BYTES


PICTURED = ToolResult(CallId("c"), "look", "a dot", images=(DOT, DOT))


@pytest.mark.parametrize("message", [user("hi"), Assistant((Text("hi"),)), ToolResult(CallId("c"), "look", "hi")])
def test_a_message_without_images_stays_the_very_same(message: Message) -> None:
    assert without_images(message) is message
    assert not pictures.has_images(message)


def test_in_the_place_of_images_stands_a_sign() -> None:
    asked = User((Text("This?"), DOT, Context("It is May.")))
    assert without_images(asked, "[?]") == User((Text("This?"), Text("[?]"), Context("It is May.")))
    assert without_images(PICTURED, "[?]") == ToolResult(CallId("c"), "look", "a dot\n[?]\n[?]")
    silent = ToolResult(CallId("c"), "look", "", images=(DOT,))
    assert without_images(silent) == ToolResult(CallId("c"), "look", "[An image was here.]")
    assert pictures.has_images(asked)
    assert pictures.has_images(PICTURED)


def test_a_result_without_images_is_stored_as_before_and_old_ones_are_read() -> None:
    stored = b'{"type":"result","call_id":"c","name":"look","text":"hi"}'
    result = ToolResult(CallId("c"), "look", "hi")
    assert msgspec.json.encode(result) == stored
    assert msgspec.json.decode(stored, type=ToolResult) == result
    assert msgspec.json.decode(msgspec.json.encode(PICTURED), type=ToolResult) == PICTURED


def test_an_image_counts_as_much_in_a_result_as_in_a_question() -> None:
    assert size_tokens(PICTURED) == size_tokens(User((Text("a dot"), DOT, DOT)))
    assert size_tokens(PICTURED) > 2 * IMAGE_CHARS / CHARS_PER_TOKEN
