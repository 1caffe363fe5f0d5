"""Images: what their first bytes say about them, which ones every vendor accepts, and messages without them. Pure."""

import binascii

import msgspec

from talaria.core.messages import Image, Message, Text, ToolResult, User

MAX_ENCODED_BYTES = 5 << 20
"""In base64: the most that the strictest vendor accepts."""
MAX_BYTES = MAX_ENCODED_BYTES // 4 * 3
MAX_SIDE_PIXELS = 8_000
NO_IMAGE = "is not a PNG, JPEG, GIF or WebP image"
TOO_LARGE = f"is larger than {MAX_BYTES / (1 << 20):.2f} MB, which is more than models accept"
WAS_HERE = "[An image was here.]"

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
)
_NO_FRAMES = frozenset({0xC4, 0xC8, 0xCC})
"""The segments of a JPEG file from 0xC0 to 0xCF that do not contain its size."""
_MAX_SEGMENTS = 1_000


class UnsupportedImage(Exception):
    """It cannot be sent; `str()` continues a sentence that starts with the image's name: "is not …"."""


def media_type(content: bytes) -> str | None:
    for signature, found in _SIGNATURES:
        if content.startswith(signature):
            return found
    return "image/webp" if content[:4] == b"RIFF" and content[8:12] == b"WEBP" else None


def encode_image(content: bytes, media_type: str) -> Image:
    return Image(media_type, binascii.b2a_base64(content, newline=False).decode())


def prepare_image(content: bytes) -> tuple[Image, tuple[int, int]]:
    """The image, and its width and height in pixels. Raises `UnsupportedImage` for what some vendor refuses."""
    found = media_type(content)
    if found is None:
        raise UnsupportedImage(NO_IMAGE)
    if len(content) > MAX_BYTES:
        raise UnsupportedImage(TOO_LARGE)
    size = pixels(content)
    if size is None or min(size) == 0:
        raise UnsupportedImage("is damaged: the size of the image cannot be read")
    if max(size) > MAX_SIDE_PIXELS:
        raise UnsupportedImage(f"has {size[0]} x {size[1]} pixels; models accept at most {MAX_SIDE_PIXELS} per side")
    return encode_image(content, found), size


def pixels(content: bytes) -> tuple[int, int] | None:
    """Width and height from the file's header; None if it does not contain them."""
    match media_type(content):
        case "image/png" if content[12:16] == b"IHDR" and len(content) >= 24:
            return int.from_bytes(content[16:20]), int.from_bytes(content[20:24])
        case "image/gif" if len(content) >= 10:
            return int.from_bytes(content[6:8], "little"), int.from_bytes(content[8:10], "little")
        case "image/jpeg":
            return _jpeg_pixels(content)
        case "image/webp" if len(content) >= 30:
            return _webp_pixels(content)
        case _:
            return None


def _jpeg_pixels(content: bytes) -> tuple[int, int] | None:
    """Goes from segment to segment, up to the one that begins the frame."""
    place = 2
    for _ in range(_MAX_SEGMENTS):
        head = content[place : place + 9]
        if len(head) < 9 or head[0] != 0xFF:
            return None
        if 0xC0 <= head[1] <= 0xCF and head[1] not in _NO_FRAMES:
            return int.from_bytes(head[7:9]), int.from_bytes(head[5:7])
        is_filling = head[1] == 0xFF
        place += 1 if is_filling else 2 + int.from_bytes(head[2:4])
    return None


def _webp_pixels(content: bytes) -> tuple[int, int] | None:
    match content[12:16]:
        case b"VP8X":
            return int.from_bytes(content[24:27], "little") + 1, int.from_bytes(content[27:30], "little") + 1
        case b"VP8L":
            bits = int.from_bytes(content[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            width, height = content[26:28], content[28:30]
            return int.from_bytes(width, "little") & 0x3FFF, int.from_bytes(height, "little") & 0x3FFF
        case _:
            return None


def has_images(message: Message) -> bool:
    match message:
        case User():
            return any(isinstance(part, Image) for part in message.parts)
        case ToolResult():
            return bool(message.images)
        case _:
            return False


def without_images(message: Message, note: str = WAS_HERE) -> Message:
    """The same object if it has no images; otherwise with `note` in place of each."""
    if not has_images(message):
        return message
    if isinstance(message, ToolResult):
        lines = filter(None, (message.text, *(note for _ in message.images)))
        return msgspec.structs.replace(message, text="\n".join(lines), images=())
    if isinstance(message, User):
        parts = (Text(note) if isinstance(part, Image) else part for part in message.parts)
        return msgspec.structs.replace(message, parts=tuple(parts))
    return message
