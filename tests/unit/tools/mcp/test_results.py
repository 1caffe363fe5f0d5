"""What a server answers, as text and images."""

import base64

import pytest
from mcp_types import AudioContent, CallToolResult, ImageContent, TextContent

from talaria.core.pictures import MAX_BYTES
from talaria.tools.mcp.wire import MAX_IMAGES, make_answer

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def image(content: bytes = PNG, mime_type: str = "image/png") -> ImageContent:
    return ImageContent(data=base64.b64encode(content).decode(), mime_type=mime_type)


def test_images_are_shown_in_order_and_by_their_content() -> None:
    lied = image(b"GIF89a\x02\0\x01\0\0\0\0", "image/png")
    got = make_answer(CallToolResult(content=[TextContent(text="Look:"), image(), lied]))
    assert got.text == "Look:\n\n[image/png, 70 bytes: shown]\n\n[image/png, 13 bytes: shown]"
    assert [shown.media_type for shown in got.images] == ["image/png", "image/gif"]
    assert base64.b64decode(got.images[0].data) == PNG


def test_lines_in_base64_are_joined() -> None:
    wrapped = ImageContent(data=base64.encodebytes(PNG).decode(), mime_type="image/png")
    assert (
        make_answer(CallToolResult(content=[wrapped])).images == make_answer(CallToolResult(content=[image()])).images
    )


def test_no_more_images_are_shown_than_allowed() -> None:
    got = make_answer(CallToolResult(content=[image()] * (MAX_IMAGES + 2)))
    assert len(got.images) == MAX_IMAGES
    assert (got.text.count("bytes: shown]"), got.text.count("bytes: not shown]")) == (MAX_IMAGES, 2)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"<svg/>", "it is not a PNG, JPEG, GIF or WebP image"),
        (PNG.ljust(MAX_BYTES + 1, b"\0"), "it is larger than 3.75 MB, which is more than models accept"),
    ],
)
def test_what_cannot_be_shown_says_why(content: bytes, why: str) -> None:
    got = make_answer(CallToolResult(content=[image(content)]))
    assert got.images == ()
    assert got.text.endswith(f" bytes: not shown, because {why}]")


def test_errors_sound_and_what_is_no_base64_are_not_shown() -> None:
    sound = AudioContent(data="aGk=", mime_type="audio/wav")
    broken = ImageContent(data="a", mime_type="image/png")
    assert make_answer(CallToolResult(content=[sound, broken])).images == ()
    failed = make_answer(CallToolResult(content=[image()], is_error=True))
    assert (failed.text, failed.images) == ("[image/png, 70 bytes: not shown]", ())
